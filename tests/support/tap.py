"""A relay that notes which TLS records a server sends: what anyone on the network sees of its answers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import socket
import ssl
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DATA = 23  # the type of a record with data of the application, RFC 8446, section 5.1
SEALING = 17  # bytes of a record besides its text: the type within it, and the tag


@dataclass(frozen=True)
class Seen:
    """One answer: read by its client, and as records on the wire, each without what TLS adds."""

    status: int
    body: bytes
    headers: http.client.HTTPMessage
    records: tuple[int, ...]
    times: tuple[int, ...] = ()  # of each record's last byte, in nanoseconds of the monotonic clock


def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _lengths(sent: bytes) -> list[tuple[int, int]]:
    """The type and length of each record."""
    found, place = list[tuple[int, int]](), 0
    while place + 5 <= len(sent):
        length = int.from_bytes(sent[place + 3:place + 5], "big")
        found.append((sent[place], length))
        place += 5 + length
    assert place == len(sent)
    return found


def _pump(source: socket.socket, target: socket.socket, note: bytearray, places: list[tuple[int, int]]) -> None:
    with contextlib.suppress(OSError):  # a side is gone
        while data := source.recv(1 << 16):
            note += data
            places.append((len(note), time.monotonic_ns()))
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def post(url: str, path: str, body: bytes | Mapping[str, Any], **headers: str) -> Seen:
    """Ask by a connection of its own, through a relay."""
    host, _, port = url.rpartition("/")[2].partition(":")
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    with socket.create_server(("127.0.0.1", 0)) as door:
        client = http.client.HTTPSConnection("127.0.0.1", door.getsockname()[1], context=_unverified(), timeout=60)
        ends, sent, places = list[socket.socket](), bytearray(), list[tuple[int, int]]()

        def relay() -> None:
            ends.extend((door.accept()[0], socket.create_connection((host, int(port)))))
            back = threading.Thread(target=_pump, args=(ends[1], ends[0], sent, places))
            back.start()
            _pump(ends[0], ends[1], bytearray(), [])
            back.join()

        relaying = threading.Thread(target=relay)
        relaying.start()
        client.request("GET", "/")
        client.getresponse().read()
        before = len(_lengths(bytes(sent)))  # of the handshake, and tickets of OpenSSL after it
        client.request("POST", path, data, {"content-type": "application/json", **headers})
        answer = client.getresponse()
        came = answer.read()
        after = _lengths(bytes(sent))[before:]
        client.close()
        relaying.join()
        for end in ends:
            end.close()
    assert {DATA} == {kind for kind, _ in after}
    stops = list(itertools.accumulate(5 + length for _, length in _lengths(bytes(sent))))[before:]
    times = tuple(next(at for place, at in places if place >= stop) for stop in stops)
    return Seen(answer.status, came, answer.headers, tuple(length - SEALING for _, length in after), times[:len(after)])
