"""The whole service by hardware policies, on machines that are faked below the kernel's interface: strict hardening,
the full sandbox, tenants from a signed list, RA-TLS as the only way in, a stranger who verifies from the root up."""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import http.client
import json
import os
import socket
import ssl
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from cryptography import x509

from appliance.attestation import evidence
from appliance.attestation.case import certified, reading
from appliance.attestation.judge import verify
from appliance.attestation.judge.validate import Expectations, validate
from appliance.attestation.tpm import abi as tpm_abi
from appliance.attestation.tpm import container
from appliance.attestation.tpm.judging import protection
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.attestation.x509.walks import fingerprint
from appliance.attestation.x509.walks import load as load_certificates
from appliance.client import transport
from appliance.http import loop
from appliance.policy import load
from tests.support import fake_appliance, forked, hardware_server, server, swtpm, waiting, written
from tests.support.fake_amd import NOW
from tests.support.require import absent
from tests.support.tpm_maker import Maker, other_key

Process = tuple[str, Path]


def _start(kind: str, policy: Path, model: Path, out: Path, *more: str) -> forked.Forked:
    """The process. Its environment is empty: strict hardening refuses much of a usual one, and the tracer of measured
    coverage too."""
    with (out / "stdout").open("wb") as said, (out / "stderr").open("wb") as err:
        return forked.start([kind, str(policy), str(model.parent), str(out), *more], {}, out=said.fileno(),
                            err=err.fileno(), entry="tests.support.hardware_server:main")


def _said(process: forked.Forked, out: Path) -> dict[str, Any]:
    """What it said first: that it is ready, or why not."""
    def said() -> str:
        for line in written.lines(out / "stderr"):
            if line.startswith("{") and '"leak"' not in line:
                return line
        assert process.poll() is None, (out / "stderr").read_text()
        return ""

    return dict(json.loads(waiting.until(said, "first word", lambda: waiting.processor_time(process.pid))))


@contextlib.contextmanager
def running(kind: str, policy: Path, model: Path, out: Path, *more: str) -> Iterator[str]:
    """The URL of a service that has booted."""
    process = _start(kind, policy, model, out, *more)
    try:
        said = _said(process, out)
        if said["event"] != "ready" and str(said["code"]).startswith("hardening"):
            absent(f"a machine that takes strict hardening, with prebuilt kernels: {said['summary']}")
        assert "ready" == said["event"], said
        yield str(said["listening"][0])
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def snp(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Process]:
    """An SEV-SNP guest that rotates its key every three seconds."""
    out = tmp_path_factory.mktemp("snp")
    policy = hardware_server.write(out, "sev-snp", tiny_model)
    with running("sev-snp", policy, tiny_model, out, "3000") as url:
        yield url, out


def _any_certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _connect(url: str) -> tuple[http.client.HTTPSConnection, certified.CertifiedEvidence]:
    connection = http.client.HTTPSConnection(url.removeprefix("https://"), context=_any_certificate(), timeout=30)
    connection.connect()
    der = connection.sock.getpeercert(binary_form=True)  # type: ignore[union-attr]
    assert der is not None
    return connection, certified.parse(der)


def _attested(connection: http.client.HTTPSConnection, nonce: bytes) -> evidence.Evidence:
    connection.request("GET", f"/v1/attestation?nonce={nonce.hex()}")
    answer = connection.getresponse()
    data = answer.read()
    assert 200 == answer.status, data
    return reading.parse(data)


def _roots(out: Path) -> Roots:
    return Roots(amd=json.loads((out / "roots.json").read_text()))


def test_a_stranger_verifies_before_asking(snp: Process, tiny_model: Path) -> None:
    """From the pinned root to the connection's own key, by the policy's file alone; each rule that was asked holds."""
    url, out = snp
    connection, carried = _connect(url)
    assert carried.nonce == verify.verify(carried.evidence, at=NOW, roots=_roots(out)).nonce
    nonce, loaded = os.urandom(32), load(out / "policy.hcl")
    claims = verify.verify(_attested(connection, nonce), at=NOW, roots=_roots(out))
    expected = Expectations(
        platforms=frozenset(loaded.policy.tee.platforms), nonce=nonce, policy_sha384=loaded.digest, at=NOW,
        tls_spki_sha256=carried.spki_sha256, hardware=loaded.policy.tee.evidence,
        models={"tiny": bytes.fromhex(server.sha256(tiny_model.read_bytes()))})
    outcomes = {finding.rule: finding.outcome for finding in validate(claims, expected).findings}
    assert set() == {rule for rule, outcome in outcomes.items() if outcome == "fails"}
    asked = ("platform", "nonce", "policy", "launch-policy", "tls-key", "models")
    assert {"holds"} == {outcomes[rule] for rule in asked}
    connection.close()


def test_the_official_client_chats_with_a_tenant_of_the_list(snp: Process) -> None:
    """The signed list's key may ask; another may not."""
    with httpx.Client(verify=_any_certificate()) as transport:
        for key, allowed in ((server.KEY, True), ("sk-stranger", False)):
            client = openai.OpenAI(base_url=f"{snp[0]}/v1", api_key=key, max_retries=0, http_client=transport)
            with contextlib.nullcontext() if allowed else pytest.raises(openai.AuthenticationError):
                answer = client.chat.completions.create(
                    model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)
                assert answer.choices[0].finish_reason in ("length", "stop")


def _chat(policy: Path, url: str, roots: Roots, launch: bytes) -> Any:
    """One question by OpenAI's SDK over a transport that verifies each connection before it is used."""
    judge = fake_appliance.verifier(
        policy, roots=roots, at=dt.datetime.now(dt.UTC), need_revocation=False,
        known=fake_appliance.measured(launch=(launch,)))
    with httpx.Client(transport=transport(judge, life=0.0)) as verified:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=server.KEY, max_retries=0, http_client=verified)
        return client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=4)


def test_a_verifying_client_chats_or_keeps_quiet(snp: Process) -> None:
    """The client's own verifier, end to end: "verified" for the image that was measured, refused for another. Between
    two answers, no request came with those that were refused."""
    url, out = snp
    first = _chat(out / "policy.hcl", url, _roots(out), hardware_server.MEASUREMENT)
    assert first.choices[0].finish_reason in ("length", "stop")
    with pytest.raises(openai.InternalServerError, match="measurement"):
        _chat(out / "policy.hcl", url, _roots(out), b"\x06" * 48)
    with pytest.raises(openai.InternalServerError, match="pinned root"):
        _chat(out / "policy.hcl", url, Roots(), hardware_server.MEASUREMENT)
    last = _chat(out / "policy.hcl", url, _roots(out), hardware_server.MEASUREMENT)
    log = out / "audit.jsonl"
    begin, end = (written.audited(log, answer._request_id)["seq"] for answer in (first, last))
    between = [record for record in written.records(log) if begin < record["seq"] < end]
    assert [] == [record for record in between if "/v1/chat/completions" == record.get("endpoint")]


def test_rotation_in_the_sandbox(snp: Process) -> None:
    """Where nothing may open a file to write, keys still rotate; old connections attest the key that they have."""
    url, out = snp
    old, first = _connect(url)

    def another() -> tuple[Any, Any] | None:
        new, second = _connect(url)
        if second.spki_sha256 != first.spki_sha256:
            return new, second
        new.close()
        return None

    found = waiting.until(another, "rotation")
    assert found is not None
    new, second = found
    assert first.spki_sha256 != second.spki_sha256
    assert first.statement.generation < second.statement.generation
    for connection, carried in ((old, first), (new, second)):
        claims = verify.verify(_attested(connection, os.urandom(32)), at=NOW, roots=_roots(out))
        assert carried.spki_sha256.hex() == getattr(claims.statement, "tls_spki_sha256", None)
        connection.close()
    log, new = out / "audit.jsonl", ("generation.new", second.statement.generation)
    written.record(log, lambda each: new == (each["event"], each.get("generation")), f"record of {new}")
    events = [each["event"] for each in written.records(log)]
    assert 2 <= events.count("generation.new")
    assert 0 == events.count("runtime.exception")


def test_a_tdx_guest_serves_in_the_same_way(tmp_path: Path, tiny_model: Path) -> None:
    """The other vendor: quotes, MRCONFIGID as the launch policy, collateral that the verifier brings."""
    policy = hardware_server.write(tmp_path, "tdx", tiny_model)
    with running("tdx", policy, tiny_model, tmp_path) as url:
        connection, carried = _connect(url)
        nonce = os.urandom(32)
        found = _attested(connection, nonce)
        connection.close()
    der = (tmp_path / "root.der").read_bytes()
    roots = Roots(intel=fingerprint(load_certificates(der, "root")[0]), intel_der=der)
    brought = Collateral(documents=[json.loads((tmp_path / "collateral.json").read_text())])
    claims = verify.verify(found, collateral=brought, at=NOW, roots=roots)
    assert (nonce, load(policy).digest) == (claims.nonce, claims.host_data)
    assert "tdx" == carried.evidence.platform


def _activates(connection: http.client.HTTPSConnection, found: evidence.Evidence) -> None:
    """In the sandbox, too, the TPM opens a challenge for its own two keys, once and again; and no other."""
    parts = container.parse(found.report_bytes())
    assert parts.ek_certificate is not None
    ek = x509.load_der_x509_certificate(parts.ek_certificate).public_key()
    name = tpm_abi.parse_public(parts.key).name
    mine = [protection.new(ek, name) for _ in range(2)]  # type: ignore[arg-type]
    texts = [base64.urlsafe_b64encode(each.sent).rstrip(b"=").decode() for each in (
        *mine, protection.new(other_key(), name), protection.new(ek, bytes(34)))]  # type: ignore[arg-type]
    cases = [(texts[0], 200, mine[0].expected), (texts[1], 200, mine[1].expected),
             (texts[2], 400, "activation_refused"), (texts[3], 400, "activation_refused"),
             (texts[0] + "=", 400, "invalid_value"), (texts[0][:-4], 400, "invalid_value"),
             (f"{texts[0]}&challenge={texts[1]}", 400, "invalid_value"), ("", 400, "invalid_value")]
    for text, status, wanted in cases:
        connection.request("GET", f"/v1/attestation/activation?challenge={text}")
        answer = connection.getresponse()
        said = json.loads(answer.read())
        told = bytes.fromhex(said["answer"]) if status == 200 else said["error"]["code"]
        assert (status, wanted) == (answer.status, told), said
    connection.request("GET", "/v1/attestation/activation")
    answer = connection.getresponse()
    assert (400, True) == (answer.status, b"missing_required_parameter" in answer.read())


def test_a_tpm_machine_says_that_its_host_is_trusted(tmp_path: Path, tiny_model: Path) -> None:
    """A TPM alone serves as well, and every piece of evidence carries the warning; it is never called genuine."""
    policy = hardware_server.write(tmp_path, "tpm", tiny_model)
    with contextlib.ExitStack() as stack:
        socket = stack.enter_context(swtpm.running())
        Maker().furnish(socket, chain=True)
        url = stack.enter_context(running(str(socket), policy, tiny_model, tmp_path))
        connection, carried = _connect(url)
        nonce = os.urandom(32)
        found = _attested(connection, nonce)
        _activates(connection, found)
        connection.request("GET", "/health")
        health = json.loads(connection.getresponse().read())
        connection.close()
    at, loaded = dt.datetime.now(dt.UTC), load(policy)
    verdict = validate(verify.verify(found, at=at), Expectations(
        platforms=frozenset({"tpm"}), nonce=nonce, policy_sha384=loaded.digest, tls_spki_sha256=carried.spki_sha256,
        at=at))
    assert (True, False) == (verdict.met, verdict.genuine)
    assert "HOST TRUSTED" in str(found.notice)
    assert "HOST TRUSTED" in json.dumps(health["boot"])


@pytest.mark.parametrize(("machine", "version", "code"), [
    ("tdx", 3, "platform-absent"), ("sev-snp", 2, "tenants-version"), ("other-sev-snp", 3, "policy-binding")])
def test_what_stops_the_boot(tmp_path: Path, tiny_model: Path, machine: str, version: int, code: str) -> None:
    """A machine of another kind than the policy names, one launched with another policy, a list rolled back."""
    policy = hardware_server.write(tmp_path, "sev-snp", tiny_model, version=version)
    process = _start(machine, policy, tiny_model, tmp_path)
    try:
        said = _said(process, tmp_path)
        assert (2, "refused", code) == (process.wait(30), said["event"], said["code"])
    finally:
        process.kill()
        process.wait()


def _anonymous(process: forked.Forked) -> int:
    """Bytes that a process has of its own."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def _read(connection: ssl.SSLSocket) -> bytes:
    """All that still comes."""
    return b"".join(iter(lambda: connection.recv(1 << 16), b""))


@pytest.mark.slow
def test_evidence_that_nobody_reads(tmp_path: Path, tiny_model: Path) -> None:
    """Clients without a key ask a TPM with a long event log for evidence, some together and others each for itself, and
    do not read it: what is held for each is no more than the plan has for a connection. Who reads gets all of it."""
    many, together, log = 128, 64, os.urandom((1 << 18) - 64)
    (tmp_path / "none").write_bytes(log)
    policy = hardware_server.write(tmp_path, "tpm", tiny_model)
    secure = ssl.create_default_context()
    secure.check_hostname, secure.verify_mode = False, ssl.CERT_NONE
    with swtpm.running() as device, contextlib.ExitStack() as stack:
        process = _start(str(device), policy, tiny_model, tmp_path)
        stack.callback(process.wait, waiting.STALL_SECONDS)
        stack.callback(process.terminate)
        host, _, port = _said(process, tmp_path)["listening"][0].rpartition("/")[2].partition(":")

        def come() -> ssl.SSLSocket:
            raw = socket.socket()
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            raw.settimeout(20)
            raw.connect((host, int(port)))
            return stack.enter_context(secure.wrap_socket(raw))

        def ask(connection: ssl.SSLSocket, number: int) -> None:
            connection.sendall(b"GET /v1/attestation?nonce=" + bytes((number,)).hex().encode() * 32 +
                               b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")

        def once(_: int) -> None:
            with come() as connection:
                ask(connection, 255)
                _read(connection)

        with futures.ThreadPoolExecutor(32) as crowd:  # threads keep memory once they have made a report
            list(crowd.map(once, range(many)))
        for number in range(4 * loop.THREADS):
            once(number)
        before, came = _anonymous(process), [come() for _ in range(many)]
        for number, connection in enumerate(came):
            ask(connection, number)
            time.sleep(0 if number < together else 0.1)
        time.sleep(1)
        grown, answers = _anonymous(process) - before, [_read(came[number]) for number in (0, many - 1)]
    assert grown < many * (96 << 10)
    for number, answer in zip((0, many - 1), answers, strict=True):
        head, _, body = answer.partition(b"\r\n\r\n")
        found = reading.parse(body)
        assert f"content-length: {len(body)}".encode() in head.lower()
        assert (log, bytes((number,)).hex() * 32) == (
            container.parse(found.report_bytes()).log, found.proof.nonce)
