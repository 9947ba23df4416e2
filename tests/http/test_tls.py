"""Sessions of TLS: the exporter by its definition, no resumption, hostile bytes, and the age of connections."""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import hmac
import ssl
from collections.abc import Callable
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.http import protocol, tls
from appliance.http.listen import Door, listen_tcp
from appliance.policy.schema import Listener
from appliance.tls import LABEL, RELEASE_LABEL, Session, client_context, server_context
from tests.fuzz import driver, tls_fuzz
from tests.support import fake_appliance

PRE_SHARED_KEY = 41  # an extension, RFC 8446, section 4.2.11


def _shown() -> Any:
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    made = fake_appliance.certificate(key, start=now - dt.timedelta(hours=1), end=now + dt.timedelta(hours=1))
    return server_context(key, [x509.load_der_x509_certificate(made)])


def _expanded(name: str, secret: bytes, label: bytes, context: bytes, length: int) -> bytes:
    """HKDF-Expand-Label of RFC 8446, section 7.1, by its definition; one block is enough here."""
    full = b"tls13 " + label
    info = length.to_bytes(2) + bytes([len(full)]) + full + bytes([len(context)]) + context
    return hmac.digest(secret, info + b"\1", name)[:length]


def test_the_exporter_by_its_definition() -> None:
    """Both ends have the value that RFC 8446, section 7.5, makes of the connection's secret, another for each label and
    nonce; another connection has others."""
    context, lines = client_context(), list[bytes]()
    context.set_keylog_callback(lambda _, line: lines.append(line))
    ends = []
    for _ in range(2):
        server, client = Session(_shown(), server=True), Session(context, server=False)
        while not (client.shake() and server.shake()):
            server.feed(client.outgoing())
            server.shake()
            client.feed(server.outgoing())
        ends.append((server, client))
    secrets = [bytes.fromhex(line.split()[2].decode()) for line in lines if line.startswith(b"EXPORTER_SECRET ")]
    assert 2 == len(secrets)
    found = []
    for (server, client), secret in zip(ends, secrets, strict=True):
        name = {32: "sha256", 48: "sha384"}[len(secret)]
        for label in (LABEL, RELEASE_LABEL):
            for nonce in (bytes(16), bytes(range(64))):
                derived = _expanded(name, secret, label, hashlib.new(name).digest(), len(secret))
                found.append(_expanded(name, derived, b"exporter", hashlib.new(name, nonce).digest(), 32))
                assert found[-1] == server.exporter(nonce, label) == client.exporter(nonce, label)
    assert len(set(found)) == len(found)


def _extensions(record: bytes) -> list[int]:
    """The extensions of a ClientHello or ServerHello in the first record of a flight, by number."""
    assert 22 == record[0]
    at = 5 + 4 + 2 + 32  # record, message, version, random
    at += 1 + record[at]
    if record[5] == 1:
        at += 2 + int.from_bytes(record[at:at + 2])  # cipher suites
        at += 1 + record[at]
    else:
        at += 3  # the suite that was chosen, and no compression
    end, found = at + 2 + int.from_bytes(record[at:at + 2]), []
    at += 2
    while at < end:
        found.append(int.from_bytes(record[at:at + 2]))
        at += 4 + int.from_bytes(record[at + 2:at + 4])
    return found


def test_a_ticket_that_is_offered_resumes_nothing() -> None:
    """A client of Python's `ssl` offers what it got as a ticket: the server takes no pre-shared key, and shows its
    certificate again."""
    context, kept = _shown(), None
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    for offered in (False, True):
        server, incoming, outgoing = Session(context, server=True), ssl.MemoryBIO(), ssl.MemoryBIO()
        client = trusting.wrap_bio(incoming, outgoing, session=kept)
        with pytest.raises(ssl.SSLWantReadError):
            client.do_handshake()
        hello = outgoing.read()
        assert offered == (PRE_SHARED_KEY in _extensions(hello))
        server.feed(hello)
        server.shake()
        flight = server.outgoing()
        assert PRE_SHARED_KEY not in _extensions(flight)
        incoming.write(flight)
        client.do_handshake()
        server.feed(outgoing.read())
        assert server.shake()
        server.write(b"x")
        incoming.write(server.outgoing())
        assert (b"x", False) == (client.read(1), client.session_reused)
        assert client.getpeercert(binary_form=True)
        kept = client.session
        assert kept is not None
        assert kept.has_ticket


def test_hostile_bytes() -> None:
    """Hellos, flights, records, heads and answers, altered: nothing but errors of TLS."""
    count, finding = driver.run(tls_fuzz.fuzz, tls_fuzz.seeds(), seconds=2, seed=1, least=200)
    assert (None, True) == (finding, count > len(tls_fuzz.seeds()))


# The greatest age of a connection -----------------------------------------------------------------------------------


class Ahead(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put ahead."""

    ahead = 0.0

    def time(self) -> float:
        """The clock, and what it was put ahead by."""
        return super().time() + self.ahead

    async def go_ahead(self, by: dt.timedelta) -> None:
        """Put the clock ahead, and let what is due then be done."""
        self.ahead += by.total_seconds()
        for _ in range(5):
            await asyncio.sleep(0)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def _head(streams: Streams) -> bytes:
    return (await streams[0].readuntil(b"\r\n\r\n")).lower()


async def _ask(streams: Streams, path: str = "/") -> bytes:
    """Ask, and return the answer's head; the body is taken."""
    streams[1].write(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
    head = await _head(streams)
    assert b"ok" == await streams[0].readexactly(2)
    return head


class Slowly:
    """An application whose answers to /slow wait for an event after their head."""

    def __init__(self) -> None:
        self.go, self.begun = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        if scope["path"] == "/slow":
            await send({"type": "http.response.body", "body": b"o", "more_body": True})
            self.begun.set()
            await self.go.wait()
            await send({"type": "http.response.body", "body": b"k"})
        else:
            await send({"type": "http.response.body", "body": b"ok"})


def _run(identity: tls.RaTls, scenario: Callable[[Ahead, Slowly, Callable[[], Any]], Any]) -> None:
    """Run a scenario against an attested listener that rotates nothing, with a way to open connections."""
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def run() -> None:
        application = Slowly()
        config = uvicorn.Config(application, http=protocol.Protocol, ws="none", lifespan="off", log_config=None,
                                timeout_keep_alive=10**6)
        config.load()
        state, place = uvicorn.server.ServerState(), listen_tcp("api", "127.0.0.1", 0, "ra-tls")
        place.tls = identity
        port = place.socket.getsockname()[1]
        door = Door(place, protocol.Arrivals(config, state, {}, 100), handshake=10, shutdown=5)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Ahead)
        await scenario(loop, application, lambda: asyncio.open_connection("127.0.0.1", port, ssl=trusting))
        door.close()

    with asyncio.Runner(loop_factory=Ahead) as runner:
        runner.run(run())


def _identity() -> tls.RaTls:
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
    return tls.RaTls(Listener(name="api", kind="ra-tls", port=1), attestor)


def test_a_connection_as_old_as_a_rotation_says_close() -> None:
    """Though no new key came, as a host that withholds reports would have it: its next answer is the last one. A
    younger connection goes on."""
    identity = _identity()

    async def scenario(loop: Ahead, _application: Slowly, connect: Callable[[], Any]) -> None:
        old = await connect()
        assert b"connection: close" not in await _ask(old)
        await loop.go_ahead(identity.rotation / 2)
        young = await connect()
        await _ask(young)
        await loop.go_ahead(identity.rotation / 2)
        assert b"connection: close" in await _ask(old)
        assert b"" == await old[0].read()
        assert b"connection: close" not in await _ask(young)
        for each in (old, young):
            each[1].close()

    _run(identity, scenario)


def test_an_idle_connection_ends_with_the_grace() -> None:
    """It is ended without a request."""
    identity = _identity()

    async def scenario(loop: Ahead, _application: Slowly, connect: Callable[[], Any]) -> None:
        idle = await connect()
        await _ask(idle)
        await loop.go_ahead(identity.rotation)
        await loop.go_ahead(identity.grace)
        assert b"" == await idle[0].read()
        idle[1].close()

    _run(identity, scenario)


def test_an_answer_under_way_comes_to_its_end() -> None:
    """However long it takes, it is whole; then the connection ends."""
    identity = _identity()

    async def scenario(loop: Ahead, application: Slowly, connect: Callable[[], Any]) -> None:
        asking = await connect()
        asking[1].write(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n")
        await _head(asking)
        await application.begun.wait()
        await loop.go_ahead(identity.rotation)
        await loop.go_ahead(identity.grace)
        application.go.set()
        assert b"ok" == await asking[0].read()
        asking[1].close()

    _run(identity, scenario)


def test_operators_connections_have_an_age_as_well() -> None:
    """One day, where the key is the operator's and rotates never."""
    shown = tls.Credential(_shown(), tls.BoundKey(None))
    assert (dt.timedelta(hours=24), dt.timedelta(hours=2.4)) == (shown.rotation, shown.grace)
