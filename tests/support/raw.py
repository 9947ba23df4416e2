"""Clients of raw bytes: over TCP, a Unix socket and TLS, which may end their side and read on."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

_CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


class Client:
    """One connection. Over TLS it speaks through buffers, so that it can send only close_notify."""

    def __init__(self, url: str, timeout: float = 60) -> None:
        """`url`: as a server announces its listeners (`http://`, `https://`, `unix:`)."""
        if url.startswith("unix:"):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.connect(url.removeprefix("unix:"))
        else:
            host, _, port = url.rpartition("/")[2].partition(":")
            self.socket = socket.create_connection((host, int(port)))
        self.socket.settimeout(timeout)
        self.tls: ssl.SSLObject | None = None
        self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
        # Each thread has OpenSSL's queue of errors: what another library left there would be taken for TLS's own.
        self._alone = ThreadPoolExecutor(1)
        if url.startswith("https:"):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            self.tls = context.wrap_bio(self._came, self._goes)
            while not self._done(self.tls.do_handshake):
                self._exchange()
            self._flush()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.socket.close()
        self._alone.shutdown()

    def send(self, data: bytes) -> None:
        """Send all of it; bytes that a closed server no longer takes are dropped."""
        with contextlib.suppress(OSError):
            self.push(data)

    def push(self, data: bytes) -> None:
        """Send all of it; OSError where the server has closed."""
        if self.tls is None:
            self.socket.sendall(data)
            return
        for start in range(0, len(data), 1 << 14):
            self._alone.submit(self.tls.write, data[start:start + (1 << 14)]).result()
            self._flush()

    def end(self) -> None:
        """End this side: FIN, or close_notify alone over TLS."""
        if self.tls is None:
            self.socket.shutdown(socket.SHUT_WR)
        else:
            self._done(self.tls.unwrap)
            self._flush()

    def reset(self) -> None:
        """Leave without a word."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def receive(self) -> bytes:
        """Return the next bytes; none at the end. ConnectionError where the connection was cut."""
        if self.tls is None:
            return self.socket.recv(1 << 16)
        while True:
            try:
                return self._alone.submit(self.tls.read, 1 << 16).result()
            except ssl.SSLWantReadError:
                self._exchange()
            except ssl.SSLZeroReturnError:
                return b""

    def rest(self) -> bytes:
        """All that comes until the server ends the connection."""
        came = bytearray()
        while part := self.receive():
            came += part
        return bytes(came)

    def until(self, end: bytes) -> bytes:
        """Return all bytes until some are there."""
        came = bytearray()
        while end not in came:
            part = self.receive()
            assert part, bytes(came)
            came += part
        return bytes(came)

    def _done(self, step: Callable[[], object]) -> bool:
        try:
            self._alone.submit(step).result()
        except ssl.SSLWantReadError:
            return False
        return True

    def _flush(self) -> None:
        if data := self._goes.read():
            self.socket.sendall(data)

    def _exchange(self) -> None:
        self._flush()
        data = self.socket.recv(1 << 16)
        if not data:
            raise ConnectionError("cut without close_notify")
        self._came.write(data)


def post(body: bytes, *headers: str, path: str = "/v1/completions", key: str | None = None) -> bytes:
    """A POST request of JSON with its length."""
    return head("POST", path, *headers, f"Content-Length: {len(body)}", key=key) + body


def head(method: str, path: str, *headers: str, key: str | None = None) -> bytes:
    """A request's head."""
    known = [] if key is None else [f"Authorization: Bearer {key}"]
    lines = [f"{method} {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *known, *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


def chunked(body: bytes, size: int) -> bytes:
    """A body in chunks of `size` bytes."""
    chunks = [body[start:start + size] for start in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n"


def statuses(answers: bytes) -> list[int]:
    """The status of each answer of a connection."""
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3})", answers)]


def body_of(answer: bytes) -> bytes:
    """The body of an only answer, also one in chunks."""
    top, _, rest = answer.partition(b"\r\n\r\n")
    if b"transfer-encoding: chunked" not in top.lower():
        return rest
    parts, place = [], 0
    while (found := _CHUNK.match(rest, place)) is not None and int(found[1], 16):
        parts.append(rest[found.end():found.end() + int(found[1], 16)])
        place = found.end() + len(parts[-1]) + 2
    return b"".join(parts)
