"""The client against the real service: booted by hardware policies on faked machines, over RA-TLS."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.case import measurements
from appliance.attestation.measured import first
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging.collateral import Collateral
from appliance.client import Channel, Verifier, target
from appliance.client.connection import connect
from appliance.client.proxy import Proxy
from appliance.client.reference import KnownImage, Reference
from appliance.client.verdict import HOST_TRUSTED, INVALID, NOT_MET, UNCHECKED, VERIFIED, Verdict
from appliance.errors import RejectedEvidenceError
from appliance.policy import load
from tests.service.test_hardware_service import running
from tests.support import fake_appliance as fake
from tests.support import hardware_server, server, swtpm
from tests.support.fake_amd import NOW

ROTATION_MS = 1500
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}


def _verifier(out: Path, known: measurements.Measurements, roots: Roots, **options: Any) -> Verifier:
    return Verifier(Reference(load(out / "policy.hcl"), KnownImage(known), need_revocation=False, roots=roots,
                              **options))


def _amd(out: Path) -> Verifier:
    roots = Roots(amd=json.loads((out / "roots.json").read_text()))
    return _verifier(out, fake.measured(launch=(b"\x05" * 48,)), roots)


@contextmanager
def _chatting(verifier: Verifier, url: str, **options: Any) -> Iterator[tuple[openai.OpenAI, list[Verdict]]]:
    told: list[Verdict] = []
    channel = Channel(verifier, target.endpoint(url), tell=told.append, **options)
    with Proxy(channel) as proxy:
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        yield openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=server.KEY, max_retries=0, timeout=600), told
        proxy.shutdown()
    channel.close()


@pytest.fixture(scope="module")
def snp(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[str, Path]]:
    """An SEV-SNP guest that rotates its TLS key every second and a half."""
    out = tmp_path_factory.mktemp("snp")
    with running("sev-snp", hardware_server.write(out, "sev-snp", tiny_model), tiny_model, out,
                 str(ROTATION_MS)) as url:
        yield url, out


def test_the_service_is_verified(snp: tuple[str, Path]) -> None:
    """Evidence in the certificate, evidence for a nonce, all about the key of this connection."""
    verdict = _amd(snp[1]).verify(snp[0])
    assert (VERIFIED, "") == (verdict.status, verdict.code), str(verdict)
    held = {each.rule for each in verdict.findings if each.outcome == "holds"}
    assert {"certificate", "certificate-evidence", "tls-key", "nonce", "launch-policy", "measurement", "models"} <= held


def test_head_through_the_proxy(snp: tuple[str, Path]) -> None:
    """A probe by HEAD gets the head of GET, by the proxy as by the service, and no body; the connection goes on."""
    with _chatting(_amd(snp[1]), snp[0]) as (client, _told):
        host = str(client.base_url.host), client.base_url.port
        connection = http.client.HTTPConnection(*host, timeout=600)
        found = []
        for method in ("GET", "HEAD", "GET"):
            connection.request(method, "/v1/models", headers={"Authorization": f"Bearer {server.KEY}"})
            answer = connection.getresponse()
            found.append((answer.status, answer.headers["content-length"], len(answer.read())))
        connection.close()
    assert (200, int(found[0][1])) == (found[0][0], found[0][2])
    assert [found[0], (200, found[0][1], 0), found[0]] == found


def test_a_chat_goes_on_over_rotations(snp: tuple[str, Path]) -> None:
    """The key changes under the client's feet; each key is verified before a prompt goes to it, and no chat fails."""
    with _chatting(_amd(snp[1]), snp[0], life=1.0) as (client, told):
        while len({each.spki_sha256 for each in told}) < 3:
            assert client.chat.completions.create(**CHAT).choices[0].finish_reason
            time.sleep(0.1)  # between two chats, as somebody types
        assert "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(
            **CHAT, stream=True) if chunk.choices) is not None
    assert {VERIFIED} == {each.status for each in told}
    assert len({each.spki_sha256 for each in told}) >= 3


def test_another_image_gets_no_prompt(snp: tuple[str, Path]) -> None:
    """Measurements of another build: refused by name, and the official client sees why."""
    url, out = snp
    other = Verifier(replace(_amd(out).reference, known=KnownImage(fake.measured())))
    with _chatting(other, url) as (client, told), pytest.raises(openai.InternalServerError, match="wrong image"):
        client.chat.completions.create(**CHAT)
    assert [NOT_MET] == [each.status for each in told]
    verdict = other.verify(url)  # not "splice", although what the certificate carries is of another image as well
    assert ("evidence-measurement", "wrong image") == (verdict.code, verdict.reason[:11])


def test_the_certificate_by_itself(snp: tuple[str, Path], tmp_path: Path) -> None:
    """As a file it shows who has its key, not when; one byte altered, and it shows nothing."""
    with connect(target.endpoint(snp[0])) as connection:
        der = connection.certificate
    assert der is not None
    for data in (der, x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM)):
        (tmp_path / "certificate").write_bytes(data)
        verdict = _amd(snp[1]).verify_file(tmp_path / "certificate")
        assert VERIFIED == verdict.status, str(verdict)
        assert "fresh it is not" in str(verdict)
    assert NOT_MET == _amd(snp[1]).verify_certificate(der, nonce=bytes(32)).status
    for place in range(0, len(der), 97):
        altered = bytearray(der)
        altered[place] ^= 1
        assert _amd(snp[1]).verify_certificate(bytes(altered)).status in (INVALID, UNCHECKED), place


def test_tdx(tmp_path: Path, tiny_model: Path) -> None:
    """The same on TDX, with Intel's documents from the verifier's own folder."""
    policy = hardware_server.write(tmp_path, "tdx", tiny_model)
    with running("tdx", policy, tiny_model, tmp_path) as url, connect(target.endpoint(url)) as connection:
        raw, spki = connection.evidence(bytes(32)), connection.spki_sha256
    der = (tmp_path / "root.der").read_bytes()
    found = Collateral()
    assert found.add((tmp_path / "collateral.json").read_bytes(), "collateral.json")
    known = fake.measured(mrtd=hardware_server.MRTD, rtmrs=(None, *hardware_server.RTMRS[1:], None))
    roots = Roots(intel=walks.fingerprint(x509.load_der_x509_certificate(der)), intel_der=der)
    verifier = _verifier(tmp_path, known, roots, collateral=found)  # Intel's documents are of a day of their own
    verdict = verifier.verify_evidence(raw, nonce=bytes(32), spki_sha256=spki, at=NOW)
    assert (VERIFIED, "") == (verdict.status, verdict.code), str(verdict)


def test_a_vtpm_is_at_best_host_trusted(tmp_path: Path, tiny_model: Path) -> None:
    """Without a word for it no prompt goes there; with one, the official client chats, and the verdict stays."""
    zero = ("00" * 32,)
    tpm = first.TpmPrediction.model_validate({
        "bank": "sha256", "pcrs": {str(number): zero for number in first.PREDICTED_PCRS}, "events": (),
        "golden": ({"machine": "swtpm", "firmware_sha256": zero[0], "pcrs": {"0": zero[0], "7": zero[0]}},)})
    with swtpm.running() as device, running(
            str(device), hardware_server.write(tmp_path, "tpm", tiny_model), tiny_model, tmp_path) as url:
        known = fake.measured().model_copy(update={"tpm": tpm})
        assert "unchecked-ak-origin" == _verifier(tmp_path, known, Roots()).verify(url).code
        verifier = _verifier(tmp_path, known, Roots(), any_ak=True)
        verdict = verifier.verify(url)
        assert (HOST_TRUSTED, 4) == (verdict.status, verdict.exit_code), str(verdict)
        assert "NOTHING IS PROTECTED FROM THE HOST" in str(verdict)
        with pytest.raises(RejectedEvidenceError):
            Channel(verifier, target.endpoint(url)).take()
        with _chatting(verifier, url, accept=(HOST_TRUSTED,)) as (client, _):
            assert client.chat.completions.create(**CHAT).choices[0].finish_reason
