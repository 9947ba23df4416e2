"""Bounds for what a peer sends: one moment until which a whole answer must be there, and one count
of bytes.

A socket's timeout begins anew with every byte, and `http.client` reads heads, "100 Continue" and a
proxy's answer for as long as they go on. So a peer that sends a byte now and then would hold its
client for ever. Here every read and write has what is left of the whole time.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any

from appliance.tls import TlsStream

HEAD_BYTES = 1 << 16  # of an answer's head, with all heads of "100 Continue" before it
_BUFFER_BYTES = 1 << 13
_SEND_BYTES = 1 << 16


class Bounded:
    """A connected socket, or a stream of TLS, as `http.client` uses one. Nothing comes or goes
    before `allow` was called."""

    def __init__(self, sock: socket.socket | TlsStream) -> None:
        self._socket = sock
        self._seconds = self._until = 0.0
        self._pause: float | None = None
        self._nbytes = self._room = 0

    def allow(self, nbytes: int, seconds: float, pause: float | None = None) -> None:
        """Let at most so many bytes come from now on, within so many seconds. `pause`: seconds
        without a byte; None: no bound of its own."""
        self._seconds, self._until, self._pause = seconds, time.monotonic() + seconds, pause
        self._nbytes = self._room = nbytes

    def makefile(self, _mode: str = "rb") -> io.BufferedReader:
        """Return a reader of what comes."""
        return io.BufferedReader(_Reader(self, self._socket.makefile("rb", buffering=0)), _BUFFER_BYTES)

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        """Send all of it. Raises TimeoutError, OSError."""
        view = memoryview(data)
        while view:
            self.arm()
            view = view[self._socket.send(view[:_SEND_BYTES]):]

    def arm(self) -> None:
        """Give the next read or write the time that is left. Raises TimeoutError."""
        left = self._until - time.monotonic()
        if left <= 0:
            raise self.late()
        self._socket.settimeout(left if self._pause is None else min(left, self._pause))

    def count(self, nbytes: int) -> None:
        """Count bytes that came. Raises OSError for more than may come."""
        self._room -= nbytes
        if self._room < 0:
            raise OSError(f"the answer has more than {self._nbytes} bytes")

    def late(self) -> TimeoutError:
        """Return the error for an answer that is not there in time."""
        if self._pause is not None and time.monotonic() < self._until:
            return TimeoutError(f"nothing came for {self._pause:g} s")
        return TimeoutError(f"no whole answer within {self._seconds:g} s")

    def close(self) -> None:
        """Close the socket, once no reader is open any more."""
        self._socket.close()


class _Reader(io.RawIOBase):
    """Reads from a socket within its bounds."""

    def __init__(self, stream: Bounded, raw: io.RawIOBase) -> None:
        self._stream, self._raw = stream, raw

    def readable(self) -> bool:
        """Say that it reads."""
        return True

    def readinto(self, buffer: Any) -> int | None:
        """Read what has come. Raises TimeoutError, OSError."""
        self._stream.arm()
        try:
            found: int | None = self._raw.readinto(buffer)
        except TimeoutError:
            raise self._stream.late() from None
        self._stream.count(found or 0)
        return found

    def close(self) -> None:
        """Let the socket close."""
        self._raw.close()
        super().close()


def dial(host: str, port: int, seconds: float) -> socket.socket:
    """Connect over TCP to the first address of a host that answers, within so many seconds for all
    of them. Raises OSError."""
    until, met = time.monotonic() + seconds, OSError("the name has no address")
    for family, kind, protocol, _, place in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        left = until - time.monotonic()
        if left <= 0:
            break
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(left)
            sock.connect(place)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock
        except OSError as error:
            sock.close()
            met = error
    raise met
