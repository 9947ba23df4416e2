"""Listeners with TLS: RA-TLS whose key is attested and rotates, an operator's key, vsock; in a process and a loop."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import hashlib
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from appliance.attestation.binding import Build
from appliance.attestation.case import certified
from appliance.attestation.case.reading import parse
from appliance.attestation.collect.attestor import Attestor, BoundFacts, BoundKey
from appliance.attestation.evidence import Provider, ReportWithCollateral
from appliance.attestation.judge import verify
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.boot.planning import budget
from appliance.errors import AttestationError, BootError
from appliance.http import protocol, tls
from appliance.http.listen import Door, listen_tcp, listen_vsock
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from appliance.policy.schema import Listener
from appliance.service.attesting import evidences as attest
from appliance.service.attesting.evidences import Evidences
from tests.support import server, waiting
from tests.support.require import absent

LISTENERS = """
  listen "attested" {
    kind  = "ra-tls"
    port  = 8443
    names = ["a.example"]
  }
  listen "plain" {
    kind = "tcp"
    port = 8080
  }
  listen "owned" {
    kind        = "tls"
    port        = 8444
    certificate = "%s"
    private_key = "%s"
  }
"""


def _own_certificate(folder: Path) -> tuple[Path, Path, bytes]:
    """An operator's key and certificate in files, and SHA-256 of its SubjectPublicKeyInfo."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "operator")])
    now = dt.datetime.now(dt.UTC)
    certificate = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(
        key.public_key()).serial_number(1).not_valid_before(now - dt.timedelta(days=1)).not_valid_after(
        now + dt.timedelta(days=1)).sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    paths = folder / "cert.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(pem))
    paths[1].write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    paths[1].chmod(0o600)
    return *paths, hashlib.sha256(key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)).digest()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[server.Server, bytes]]:
    """A server that listens in three ways, and the digest of its operator's key."""
    folder = tmp_path_factory.mktemp("tls")
    certificate, key, digest = _own_certificate(folder)
    policy = server.write_policy(folder, {"tiny": tiny_model}, listeners=LISTENERS % (certificate, key))
    process = server.Server(policy, [tiny_model]).wait_ready()
    yield process, digest
    process.stop()


def _trusting() -> ssl.SSLContext:
    """A client that takes any certificate, as one that looks at evidence instead does."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _connect(url: str) -> http.client.HTTPConnection:
    host, _, port = url.rpartition("/")[2].partition(":")
    if url.startswith("https"):
        return http.client.HTTPSConnection(host, int(port), context=_trusting(), timeout=20)
    return http.client.HTTPConnection(host, int(port), timeout=20)


def _ask(connection: http.client.HTTPConnection, path: str) -> Any:
    connection.request("GET", path)
    answer = connection.getresponse()
    assert 200 == answer.status
    return json.loads(answer.read())


def _peer(connection: http.client.HTTPConnection) -> bytes:
    der = connection.sock.getpeercert(binary_form=True)
    assert der is not None
    return bytes(der)


def test_ra_tls_shows_evidence_for_its_key(running: tuple[server.Server, bytes]) -> None:
    """The certificate of a connection verifies, and a fresh nonce asked on it is bound to the very same key."""
    urls = dict(zip(("attested", "owned", "plain"), running[0].ready["listening"], strict=True))
    connection = _connect(urls["attested"])
    connection.connect()
    carried = certified.parse(_peer(connection))
    now = dt.datetime.now(dt.UTC)
    assert carried.not_before < now < carried.not_after
    assert (("a.example",), "simulated") == (carried.names, verify.verify(carried.evidence).platform)
    nonce = os.urandom(32)
    fresh = verify.verify(parse(json.dumps(_ask(connection, f"/v1/attestation?nonce={nonce.hex()}")).encode()))
    assert (nonce, carried.spki_sha256.hex()) == (fresh.nonce, getattr(fresh.statement, "tls_spki_sha256", None))
    connection.close()


def test_each_listener_attests_its_own_key(running: tuple[server.Server, bytes]) -> None:
    """The statement names the key of the connection it is asked on: the attested one, the operator's, or none."""
    process, digest = running
    bound = []
    for url in process.ready["listening"]:
        connection = _connect(url)
        bound.append(_ask(connection, f"/v1/attestation?nonce={'ab' * 32}")["statement"]["tls_spki_sha256"])
        connection.close()
    assert (None, digest.hex()) == (bound[2], bound[1])
    assert bound[0] not in (None, digest.hex())
    assert [bound[0]] == [record["tls_spki_sha256"] for record in process.audit("generation.new")]
    assert ["ra-tls", "tls", "tcp"] == [record["kind"] for record in process.audit("service.listening")]


def test_only_tls_1_3_without_resumption(running: tuple[server.Server, bytes]) -> None:
    """Older versions are refused, and what a client keeps of a session does not let it come back without seeing the
    certificate."""
    host, _, port = running[0].ready["listening"][0].rpartition("/")[2].partition(":")
    old = _trusting()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((host, int(port))) as raw, pytest.raises(ssl.SSLError):
        old.wrap_socket(raw)
    client, kept, seen = _trusting(), None, []
    for _ in range(3):
        with socket.create_connection((host, int(port))) as raw, client.wrap_socket(raw, session=kept) as connection:
            connection.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            while connection.recv(65536):
                pass
            seen.append((connection.version(), connection.session_reused, bool(connection.getpeercert(True))))
            kept = connection.session
    assert [("TLSv1.3", False, True)] * 3 == seen


def test_the_official_client_chats_over_ra_tls(running: tuple[server.Server, bytes]) -> None:
    """OpenAI's SDK streams an answer over the attested listener."""
    import httpx
    import openai

    with httpx.Client(verify=_trusting()) as transport:
        client = openai.OpenAI(base_url=f"{running[0].url}/v1", api_key=server.KEY, max_retries=0,
                               http_client=transport)
        chunks = list(client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hello"}], max_tokens=5, stream=True))
    assert chunks[-1].choices[0].finish_reason in ("length", "stop")


def test_no_key_is_in_any_file(running: tuple[server.Server, bytes]) -> None:
    """The serving process holds no file, deleted or not, and no memory file, beside those it listens and logs with."""
    folder = Path(f"/proc/{running[0].process.pid}/fd")
    names = []
    for entry in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # a connection that ended meanwhile
            names.append(str(entry.readlink()))
    assert [] == [name for name in names if "memfd" in name or name.endswith((".pem", "(deleted)"))]


def test_what_is_no_tls_is_dropped_and_not_reported(running: tuple[server.Server, bytes]) -> None:
    """Plain HTTP, noise, and clients that leave during the handshake end their connection and fill no log."""
    process = running[0]
    host, _, port = process.ready["listening"][0].rpartition("/")[2].partition(":")
    before = len(process.audit("runtime.exception")) + len(process.audit("request.refused"))
    for data in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", os.urandom(2000), b"\x16\x03\x01\x02\x00", b""):
        with socket.create_connection((host, int(port)), timeout=5) as raw:
            raw.sendall(data)
            raw.shutdown(socket.SHUT_WR)
            with contextlib.suppress(OSError):
                while raw.recv(4096):
                    pass
    connection = _connect(process.url)
    assert "ready" == _ask(connection, "/health")["status"]
    connection.close()
    assert before == len(process.audit("runtime.exception")) + len(process.audit("request.refused"))
    assert "" == "".join(line for line in process.text("stderr").splitlines() if "unhandled" in line)


CROWD = """
  listen "attested" {
    kind = "ra-tls"
    port = 8443
  }
  listen "plain" {
    kind = "tcp"
    port = 8080
  }
"""


def _anonymous(process: server.Server) -> int:
    lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


@pytest.fixture(scope="module")
def crowded(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[tuple[server.Server, int]]:
    """A server that holds refusals back for a while, and its memory before anybody came."""
    policy = server.write_policy(tmp_path_factory.mktemp("crowd"), {"tiny": tiny_model}, listeners=CROWD,
                                 limits="concurrent_requests = 4", privacy='timing_padding { total = "10s" }')
    process = server.Server(policy, [tiny_model]).wait_ready()
    yield process, _anonymous(process)
    process.stop()


@pytest.mark.parametrize("sends", [None, b"", b"GET / HTTP/1.1\r\nx: " + b"x" * 15000,
                                   b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                                   b"content-length: 9000000\r\n\r\n" + b"x" * 2000000],
                         ids=["no handshake", "nothing", "a head", "a body"])
@pytest.mark.parametrize("listener", [0, 1], ids=["ra-tls", "tcp"])
def test_a_crowd_takes_what_the_plan_has(listener: int, sends: bytes | None,
                                         crowded: tuple[server.Server, int]) -> None:
    """However many come, in their handshake or after it, without a key, and whatever they send: no more than the plan
    says are let in, and all together take no more memory than it has for them. Then others are served again."""
    process, before = crowded
    policy = load(process.policy).policy
    lines = budget.divide(policy, Catalogue({"tiny": process.folder}), None).lines
    room = next(line.nbytes for line in lines if line.what.startswith("connections"))
    host, _, port = process.ready["listening"][listener].rpartition("/")[2].partition(":")

    async def come() -> asyncio.StreamWriter:
        secure = _trusting() if listener == 0 and sends is not None else None
        async with asyncio.timeout(20):
            _, writer = await asyncio.open_connection(host, int(port), ssl=secure)
            writer.write(sends or b"")
            return writer

    async def scenario() -> int:
        came = await asyncio.gather(*(come() for _ in range(400)), return_exceptions=True)
        await asyncio.sleep(1)
        most = _anonymous(process)
        for writer in came:
            if isinstance(writer, asyncio.StreamWriter):
                writer.transport.abort()
        return most

    assert asyncio.run(scenario()) - before <= room
    # Refusals that are held back keep their connections.
    waiting.until(lambda: _served(process.ready["listening"][listener]), "connection that is served")


def _served(url: str) -> bool:
    with contextlib.closing(_connect(url)) as connection, contextlib.suppress(OSError):
        return bool("ready" == _ask(connection, "/health")["status"])
    return False


# In one event loop -----------------------------------------------------------------------------------------------


def _attestor(provider: Provider | None = None) -> Attestor:
    return Attestor(provider or SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))


def _listener(**more: Any) -> Listener:
    return Listener(name="api", kind="ra-tls", port=1, **more)


def _scope_echo(seen: list[Any]) -> Any:
    """An application that notes which key each request came over."""
    async def app(scope: Any, _receive: Any, send: Any) -> None:
        seen.append(scope["state"]["channel"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})
    return app


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _request(streams: Streams) -> None:
    streams[1].write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    while await streams[0].readline() not in (b"\r\n", b""):
        pass
    assert b"ok" == await streams[0].readexactly(2)


def test_rotation_is_attested_and_keeps_old_connections() -> None:
    """After a rotation new connections show a new key in a new generation; old ones go on, bound to their own."""
    async def scenario() -> None:
        seen: list[tls.Channel] = []
        attestor = _attestor()
        identity = tls.RaTls(_listener(), attestor)
        port, door = _door(identity, seen)
        old = await asyncio.open_connection("127.0.0.1", port, ssl=_trusting())
        await _request(old)
        identity.renew()
        new = await asyncio.open_connection("127.0.0.1", port, ssl=_trusting(), server_hostname="other.example")
        await _request(new)
        await _request(old)
        shown = [certified.parse(each[1].get_extra_info("ssl_object").getpeercert(True)) for each in (old, new)]
        assert [1, 2] == [carried.statement.generation for carried in shown]
        assert shown[0].spki_sha256 != shown[1].spki_sha256
        first, second = (BoundKey(carried.spki_sha256) for carried in shown)
        assert [first, second, first] == [channel.key for channel in seen]
        for bound in (first, second):
            evidence, = attestor.attest_all([bytes(32)], bound)
            assert bound.tls_spki_sha256 == bytes.fromhex(evidence.statement["tls_spki_sha256"])
        await _retired(identity, attestor, first, old, new)
        door.close()

    asyncio.run(asyncio.wait_for(scenario(), 30))


async def _retired(identity: tls.RaTls, attestor: Attestor, first: BoundKey, old: Streams, new: Streams) -> None:
    """After its grace the old key has no evidence and no connection; the new one goes on."""
    identity.rotation = dt.timedelta(seconds=1)
    tls.retire_later(identity)
    assert b"" == await old[0].read()
    with pytest.raises(AttestationError, match="retired"):
        attestor.attest_all([bytes(32)], first)
    await _request(new)
    for each in (old, new):
        each[1].close()


def _door(identity: tls.Identity, seen: list[Any]) -> tuple[int, Door]:
    """An attested listener on a free port, whose application notes each request's connection."""
    config = uvicorn.Config(_scope_echo(seen), http=protocol.Protocol, ws="none", lifespan="off", log_config=None)
    config.load()
    state, place = uvicorn.server.ServerState(), listen_tcp("api", "127.0.0.1", 0, "ra-tls")
    place.tls = identity
    port = place.socket.getsockname()[1]
    return port, Door(place, protocol.Arrivals(config, state, {}, 100), handshake=10, shutdown=5)


class Failing(Provider):
    """A platform that gives so many reports and then none."""

    platform = "sev-snp"

    def __init__(self, reports: int) -> None:
        self.left, self.asked = reports, 0

    def collect(self, report_data: bytes) -> ReportWithCollateral:
        self.asked += 1
        if not self.left:
            raise AttestationError("firmware says no", code="tsm-absent")
        self.left -= 1
        return ReportWithCollateral(report_data)


def test_a_rotation_that_fails_leaves_the_key_in_use() -> None:
    """Firmware that gives no report must not take the listener down; without any report there is no listener."""
    identity = tls.RaTls(_listener(), _attestor(Failing(1)))
    before = identity.spki_sha256
    with pytest.raises(AttestationError, match="firmware says no"):
        identity.renew()
    assert before == identity.spki_sha256
    with pytest.raises(AttestationError):
        tls.RaTls(_listener(), _attestor(Failing(0)))


def test_rotation_goes_on_in_time_and_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys are renewed at the policy's interval; a failure is told, stops nothing, and is tried again sooner."""
    monkeypatch.setattr(tls, "RETRY_SECONDS", 0.01)
    told: list[str] = []
    identity = tls.RaTls(_listener(), _attestor(Failing(3)))
    identity.rotation = dt.timedelta(milliseconds=10)

    async def scenario() -> None:
        task = asyncio.create_task(
            tls.rotate(identity, lambda _, error: told.append(type(error).__name__ if error else "renewed")))
        while len(told) < 4:
            await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(asyncio.wait_for(scenario(), 20))
    assert ["renewed", "renewed", "AttestationError", "AttestationError"] == told[:4]
    assert 2 < identity.generation


def test_validity_covers_the_rotation_and_clocks_that_differ() -> None:
    """A certificate is valid from an hour before until an hour after its rotation."""
    begun = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    identity = tls.RaTls(_listener(rotation="10m"), _attestor(), now=lambda: begun)
    carried = certified.parse(identity.certificate.public_bytes(serialization.Encoding.DER))
    hour = dt.timedelta(hours=1)
    assert (begun - hour, begun + dt.timedelta(minutes=10) + hour) == (carried.not_before, carried.not_after)
    assert dt.timedelta(hours=24) == tls.RaTls(_listener(), _attestor()).rotation


def test_nonces_on_different_keys_have_reports_of_their_own() -> None:
    """One report answers many nonces of one key; another key's callers get another, and hardware is not hurried."""
    keys = [BoundKey(bytes((number,)) * 32) for number in (1, 2)]
    attestor = _attestor(Failing(1000))
    for key in keys:
        attestor.bind_tls_key(key.tls_spki_sha256)
    evidences = Evidences(attestor)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(
            evidences.for_nonce([bytes([number]).hex() * 32], keys[number % 2]) for number in range(40)))

    found = asyncio.run(ask())
    for number, evidence in enumerate(found):
        assert keys[number % 2].tls_spki_sha256 == bytes.fromhex(evidence.statement["tls_spki_sha256"])
        assert bytes([number]).hex() * 32 == evidence.proof.nonce
    assert 2 == len({evidence.report for evidence in found})


def test_reports_of_hardware_are_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast nonces come, firmware is asked no more often than the spacing allows."""
    monkeypatch.setattr(attest, "SPACING_SECONDS", 0.2)
    provider = Failing(1000)
    attestor = _attestor(provider)
    evidences = Evidences(attestor)

    async def ask() -> float:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        for number in range(4):
            await evidences.for_nonce([bytes([number]).hex() * 32])
        return loop.time() - begun

    assert asyncio.run(ask()) >= 0.59
    assert 4 == provider.asked


def test_who_leaves_and_who_is_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller who is gone takes no leaf; beyond the limit callers are told to come back."""
    from appliance.api.problems import RequestError

    monkeypatch.setattr(attest, "MAX_WAITING", 3)
    evidences = Evidences(_attestor(Failing(10)))

    async def scenario() -> int:
        asked = [asyncio.create_task(evidences.for_nonce([bytes([number]).hex() * 32])) for number in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(RequestError) as caught:
            await evidences.for_nonce(["ff" * 32])
        assert ("overloaded", 1) == (caught.value.code, caught.value.retry_after)
        asked[1].cancel()
        found = await asyncio.gather(asked[0], asked[2])
        return int(found[0].statement["nonces"]["size"])

    assert 2 == asyncio.run(scenario())


@pytest.mark.parametrize("spoil", ["encrypted", "other", "absent", "garbage", "unknown curve"])
def test_an_operators_key_that_cannot_be_used_is_told(tmp_path: Path, spoil: str) -> None:
    """A key that is encrypted, of another certificate, not there or not PEM stops the boot, by the listener's name."""
    certificate, key, _ = _own_certificate(tmp_path)
    if spoil == "encrypted":
        made = ec.generate_private_key(ec.SECP256R1())
        key.write_bytes(made.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
                                           serialization.BestAvailableEncryption(b"x")))
    elif spoil == "absent":
        key.unlink()
    elif spoil == "garbage":
        certificate.write_bytes(b"x")
    elif spoil == "unknown curve":  # OpenSSL knows it, the cryptography package does not
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime239v1", "-nodes",
                   "-subj", "/CN=x", "-keyout", str(key), "-out", str(certificate)]
        try:
            subprocess.run(command, check=True, capture_output=True)
        except FileNotFoundError:
            absent("the openssl command (Debian package openssl)")
    else:
        (tmp_path / "b").mkdir()
        key = _own_certificate(tmp_path / "b")[1]
    listener = Listener(name="api", kind="tls", port=1, certificate=str(certificate), private_key=str(key))
    with pytest.raises(BootError, match='listener "api"'):
        tls.OperatorIdentity(listener, _attestor())


def test_tls_may_listen_where_plain_text_may_not() -> None:
    """An attested listener may be reached from the network; a plain one may not."""
    place = listen_tcp("api", "0.0.0.0", 0, "ra-tls")  # noqa: S104
    assert place.url.startswith("https://0.0.0.0:")
    place.close()


def test_vsock_listens_where_the_machine_has_it() -> None:
    """Plain for simulated policies, or carrying RA-TLS; the loopback of vsock is used where the kernel has it."""
    if not Path("/dev/vsock").exists():
        pytest.skip("this kernel has no vsock")
    place = listen_vsock("api", socket.VMADDR_PORT_ANY, "ra-tls")
    port = place.socket.getsockname()[1]
    assert ("ra-tls", f"vsock:{port}") == (place.kind, place.url)
    with pytest.raises(BootError, match="vsock port"):
        listen_vsock("again", port)
    identity = tls.RaTls(_listener(transport="vsock"), _attestor())
    place.tls = identity

    async def scenario() -> bytes | None:
        loop = asyncio.get_running_loop()
        door = Door(place, asyncio.Protocol, handshake=10, shutdown=5)
        made = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            await asyncio.wait_for(loop.sock_connect(made, (1, port)), 2)  # VMADDR_CID_LOCAL
        except (OSError, TimeoutError):
            made.close()
            return None
        finally:
            door.close()
        _reader, writer = await asyncio.open_connection(sock=made, ssl=_trusting(), server_hostname="x")
        der = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        return bytes(der)

    der = asyncio.run(scenario())
    if der is not None:
        assert identity.spki_sha256 == certified.parse(der).spki_sha256
    with contextlib.suppress(OSError):
        place.close()


def _stepper(connection: socket.socket, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, raw: bytearray) -> Any:
    """What takes a step of TLS, however often bytes have to be exchanged for it; `raw` gets those that came."""
    def until(step: Any) -> Any:
        while True:
            with contextlib.suppress(ssl.SSLWantReadError):
                return step()
            connection.sendall(outgoing.read())
            came = connection.recv(1 << 16)
            raw.extend(came)
            incoming.write(came) if came else incoming.write_eof()
    return until


def _records(url: str, key: str, body: dict[str, Any]) -> tuple[list[int], bytes]:
    """Lengths of the records in which an answer's body comes over TLS, as the network sees them, and the answer."""
    host, _, port = url.rpartition("/")[2].partition(":")
    incoming, outgoing, raw, answer = ssl.MemoryBIO(), ssl.MemoryBIO(), bytearray(), bytearray()
    channel = _trusting().wrap_bio(incoming, outgoing)
    text = json.dumps(body)
    request = (f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n"
               f"content-type: application/json\r\ncontent-length: {len(text)}\r\n\r\n{text}").encode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        until = _stepper(connection, incoming, outgoing, raw)
        until(channel.do_handshake)
        until(lambda: channel.write(request))
        connection.sendall(outgoing.read())
        with contextlib.suppress(ssl.SSLEOFError, ssl.SSLZeroReturnError):
            while part := until(lambda: channel.read(1 << 16)):
                answer += part
    lengths, at = [], 0
    while at + 5 <= len(raw):
        lengths.append((raw[at], int.from_bytes(raw[at + 3:at + 5])))
        at += 5 + lengths[-1][1]
    head, _, content = bytes(answer).partition(b"\r\n\r\n")
    body_records, left = [], len(content)
    for _kind, length in reversed([each for each in lengths if each[0] == 23][:-1]):  # the last says that all is sent
        if left > 0:
            body_records.append(length)
            left -= length - 17  # a byte for the kind, 16 of the tag
    assert 0 == left, (lengths, len(head))
    return body_records[::-1], content


def test_a_drain_waits_for_no_connection_that_ends(tmp_path: Path, tiny_model: Path) -> None:
    """Told to end while a client that has its answer has not closed its side, the service does not wait for the whole
    of `drain_timeout` when the client then goes, and reports no defect."""
    certificate, key, _digest = _own_certificate(tmp_path)
    policy = server.write_policy(tmp_path, {"tiny": tiny_model}, listeners=LISTENERS % (certificate, key))
    process = server.Server(policy, [tiny_model]).wait_ready()
    url = next(place for place in process.ready["listening"] if place.startswith("https"))
    host, _, port = url.rpartition("/")[2].partition(":")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    channel = _trusting().wrap_bio(incoming, outgoing)
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        until = _stepper(connection, incoming, outgoing, bytearray())
        until(channel.do_handshake)
        channel.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        connection.sendall(outgoing.read())
        assert until(lambda: channel.read(1 << 16)).startswith(b"HTTP/1.1 200")
        time.sleep(0.3)  # the service has closed its side
        process.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
    assert 0 == process.stop(seconds=10)
    assert [] == process.audit("runtime.exception")


def test_records_show_no_sizes_below_the_padding(tmp_path: Path, tiny_model: Path) -> None:
    """Whole answers and refusals of any size up to that of the padding come in records of the same lengths, and those
    that are longer in records that are full."""
    certificate, key, _digest = _own_certificate(tmp_path)
    policy = server.write_policy(
        tmp_path, {"tiny": tiny_model}, listeners=LISTENERS % (certificate, key), privacy='size_padding = "40KiB"',
        model="sampling { max_logprobs = 5 }")
    process = server.Server(policy, [tiny_model]).wait_ready()
    url = next(place for place in process.ready["listening"] if place.startswith("https"))
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "seed": 1,
            "logit_bias": {str(token): -100 for token in range(3)}}  # no token that ends an answer
    asked = [(server.KEY, {**chat, "max_tokens": 1}), (server.KEY, {**chat, "max_tokens": 40}),
             (server.KEY, {**chat, "max_tokens": 50, "logprobs": True, "top_logprobs": 5}),
             (server.KEY, {**chat, "model": "none"}), ("sk-none", chat)]
    found = [_records(url, *each) for each in asked]
    longer, content = _records(url, server.KEY, {**chat, "max_tokens": 150, "logprobs": True, "top_logprobs": 5})
    assert 0 == process.stop()
    assert (80 << 10, [(16 << 10) + 17] * 5) == (len(content), longer)
    assert 150 == len(json.loads(content)["choices"][0]["logprobs"]["content"])
    sizes = [len(content.rstrip()) for _, content in found]
    assert min(sizes) < 200 < 16 << 10 < max(sizes)
    assert [40 << 10] * len(asked) == [len(content) for _, content in found]
    assert [[(16 << 10) + 17, (16 << 10) + 17, (8 << 10) + 17]] * len(asked) == [records for records, _ in found]
