"""Fuzz target: the border of TLS. Bytes of a peer into a server's session and a client's, before and after the
handshake; heads of HTTP that come over it; answers of a server to a client's bounded reader.

The first byte of an input says where the rest goes. In a handshake that is altered the rest is a list of edits of what
the two ends send: they may both come to an end only with equal exporters.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import functools
import http.client
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from appliance.api.problems import RequestError
from appliance.attestation.collect.attestor import BoundKey
from appliance.bounded import Bounded
from appliance.client.connection import spki_sha256
from appliance.errors import AttestationError
from appliance.http.framing import Framing
from appliance.http.secured import SecureTransport
from appliance.http.tls import Credential
from appliance.tls import Session, TlsError, TlsStream, client_context, server_context
from tests.support import fake_appliance

HELLO, FLIGHT, EDITS, RECORDS, HEADS, ANSWER = range(6)
NONCE, ROOM = bytes(32), 1 << 16  # of an answer's body
MOST = 1 << 17  # bytes that a session may have to send for one input


@functools.cache
def _contexts() -> tuple[SSL.Context, SSL.Context]:
    """A server's and a client's."""
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
    made = fake_appliance.certificate(key, start=now - dt.timedelta(days=1), end=now + dt.timedelta(days=3650))
    return server_context(key, [x509.load_der_x509_certificate(made)]), client_context()


def _server() -> Session:
    return Session(_contexts()[0], server=True)


def _client() -> Session:
    return Session(_contexts()[1], server=False, name="a.example")


def _hello() -> bytes:
    client = _client()
    client.shake()
    return client.outgoing()


def _flight(hello: bytes) -> bytes:
    server = _server()
    server.feed(hello)
    server.shake()
    return server.outgoing()


def _pair() -> tuple[Session, Session]:
    """Both ends of a connection after its handshake."""
    server, client = _server(), _client()
    while not (client.shake() and server.shake()):
        server.feed(client.outgoing())
        server.shake()
        client.feed(server.outgoing())
    server.feed(client.outgoing())
    return server, client


def fuzz(data: bytes) -> None:
    """Send one input where its first byte says; only errors of TLS may come."""
    if not data:
        return
    place: Callable[[bytes], None] = (_into_server, _into_client, _edited, _after, _heads, _answer)[data[0] % 6]
    with contextlib.suppress(TlsError):
        place(data[1:])


def _into_server(data: bytes) -> None:
    """A client's first bytes, also in small pieces."""
    for pieces in ((data,), tuple(data[at:at + 7] for at in range(0, min(len(data), 700), 7))):
        server = _server()
        for piece in pieces:
            server.feed(piece)
            if server.shake():
                raise AssertionError("a handshake that nobody made is complete")
            _bounded(server)


def _into_client(data: bytes) -> None:
    """A server's first bytes."""
    client = _client()
    client.shake()
    client.outgoing()
    client.feed(data)
    if client.shake():
        raise AssertionError("a handshake that nobody made is complete")
    _bounded(client)


def _edited(data: bytes) -> None:
    """A handshake of both ends, in which somebody in between alters what they send: four bytes say which flight, where
    in it, and what is put over the byte there."""
    server, client = _server(), _client()
    edits: dict[int, list[bytes]] = {}
    for at in range(0, len(data) - 3, 4):
        edits.setdefault(data[at] % 4, []).append(data[at + 1:at + 4])
    done = [False, False]
    for number in range(4):
        own, other = (client, server) if number % 2 == 0 else (server, client)
        done[number % 2] = own.shake()
        sent = bytearray(own.outgoing())
        for edit in edits.get(number, ()):
            if sent:
                sent[int.from_bytes(edit[:2]) % len(sent)] ^= edit[2]
        other.feed(bytes(sent))
    if all(done) and server.exporter(NONCE) != client.exporter(NONCE):
        raise AssertionError("two ends of one connection have different exporters")
    for each in client.certificates():
        with contextlib.suppress(AttestationError):
            spki_sha256(each)


def _after(data: bytes) -> None:
    """Bytes in the place of records, into either end, and into the protocol of the service."""
    for session in _pair():
        with contextlib.suppress(TlsError):
            session.feed(data)
            while session.read():
                pass
        session.peek()
        session.close()
        _bounded(session)
    asyncio.run(_secured(data))


class _Recorder(asyncio.Protocol):
    """An application that takes all that comes."""

    def __init__(self) -> None:
        self.framing = Framing()

    def data_received(self, data: bytes) -> None:
        """Take, as the protocol of HTTP does."""
        self.framing.feed(data)
        with contextlib.suppress(RequestError):
            while self.framing.error is None and self.framing.take():
                pass

    def leave(self) -> None:
        """Nothing."""

    def shutdown(self) -> None:
        """Nothing."""


async def _secured(data: bytes, *, whole: bool = False) -> None:
    """Bytes of a client into the service's protocol: after a handshake as records, or `whole` as what is encrypted."""
    sent = bytearray()
    wire = SimpleNamespace(write=sent.extend, abort=lambda: None, close=lambda: None, resume_reading=lambda: None,
                           pause_reading=lambda: None, is_closing=lambda: False, max_size=0)
    shown = Credential(_contexts()[0], BoundKey(None))
    secured, client = SecureTransport(_Recorder(), shown, handshake=10, shutdown=5), _client()
    secured.connection_made(cast(Any, wire))
    while not (client.shake() and secured.ready.done()):
        secured.data_received(client.outgoing())
        client.feed(bytes(sent))
        sent.clear()
    if whole:
        client.write(data)
        data = client.outgoing()
    secured.data_received(data)
    secured.close()
    secured.connection_lost(None)
    if len(sent) > MOST:
        raise AssertionError("the service has more to send than anybody asked for")


def _heads(data: bytes) -> None:
    """Heads and bodies of requests, over TLS into the framing of the service."""
    asyncio.run(_secured(data, whole=True))


class _Wire:
    """A socket, of which the other side is a server's session that answers everything with the same bytes."""

    def __init__(self, answer: bytes) -> None:
        self._answer, self._server, self._left = answer, _server(), bytearray()

    def gettimeout(self) -> float:
        """A minute."""
        return 60.0

    def settimeout(self, seconds: float | None) -> None:
        """Nothing waits here."""

    def sendall(self, data: bytes) -> None:
        """Take what the client sends, and answer a request at once."""
        self._server.feed(data)
        if self._server.shake() and self._server.read():
            self._server.write(self._answer)
            self._server.close()
        self._left += self._server.outgoing()

    def recv(self, most: int) -> bytes:
        """Return what is left of what the server sent."""
        part = bytes(self._left[:most])
        del self._left[:most]
        return part

    def close(self) -> None:
        """Nothing."""


def _answer(data: bytes) -> None:
    """An answer of a server, over TLS into the bounded reader of a client."""
    bounded = Bounded(TlsStream(cast(socket.socket, _Wire(data)), _contexts()[1]))
    bounded.allow(ROOM, 30.0)
    connection = http.client.HTTPConnection("a.example")
    connection.sock = cast(socket.socket, bounded)
    try:
        connection.request("GET", "/v1/attestation")
        answer = connection.getresponse()
        found = answer.read(ROOM + 1)
    except (OSError, http.client.HTTPException, ValueError):
        return
    finally:
        connection.close()
    if len(found) > ROOM:
        raise AssertionError("more came than was allowed")


def _bounded(session: Session) -> None:
    if len(session.outgoing()) > MOST:
        raise AssertionError("a session has more to send than anybody asked for")


def seeds() -> list[bytes]:
    """A client's hello and a server's flight, edits of a handshake, records, requests and answers."""
    hello = _hello()
    flight = _flight(hello)
    alert, change = b"\x15\x03\x03\x00\x02\x02\x28", b"\x14\x03\x03\x00\x01\x01"
    old = b"\x16\x03\x01\x00\x2f\x01\x00\x00\x2b\x03\x03" + bytes(32) + b"\x00\x00\x04\x00\x2f\x00\xff\x01\x00"
    record = b"\x17\x03\x03\x00\x20" + bytes(32)
    request = (b"POST /v1/completions HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n5;x=\"y\"\r\n"
               b"hello\r\n0\r\nt: u\r\n\r\n")
    counted = b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nok"
    answers = [b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", b"HTTP/1.1 100 Continue\r\n\r\n" * 20,
               b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
               b"HTTP/1.0 200\r\n\r\n" + b"x" * 70_000, b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"]
    found = [(HELLO, each) for each in (hello, hello[:-3] + b"abc", old, alert, change + hello, record)]
    found += [(FLIGHT, each) for each in (flight, flight[:127], alert, change + record)]
    found += [(EDITS, each) for each in (b"", b"\0\0\x2c\1", b"\1\0\x2c\1", b"\1\0\x04\x40\2\0\7\1", b"\3\0\0\x80")]
    found += [(RECORDS, each) for each in (record, alert, change, hello, record * 40)]
    found += [(HEADS, each) for each in (request, counted, request + counted)]
    return [bytes([place]) + each for place, each in [*found, *((ANSWER, each) for each in answers)]]
