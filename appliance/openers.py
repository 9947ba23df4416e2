"""Openers of `urllib.request` with one bound of time and size for each answer: for commands that
download."""

from __future__ import annotations

import http.client
import ssl
import time
import urllib.request
from typing import Any

from appliance.bounded import HEAD_BYTES, Bounded, dial


class _Plain(http.client.HTTPConnection):
    """A connection of one request, whose `timeout` is for all of it: a proxy's answer, the
    handshake and the answer itself."""

    def __init__(self, host: str, *, nbytes: int, timeout: float, **more: Any) -> None:
        super().__init__(host, timeout=timeout, **more)
        self._nbytes, self._until = nbytes, time.monotonic() + timeout
        self._create_connection = lambda address, *_: dial(address[0], address[1], timeout)

    def connect(self) -> None:
        """Connect, and bound what comes."""
        super().connect()
        self.sock = self._bounded()

    def _bounded(self) -> Any:
        found = Bounded(self.sock)
        found.allow(self._nbytes + HEAD_BYTES, self._until - time.monotonic())
        return found

    def _tunnel(self) -> None:
        plain, self.sock = self.sock, self._bounded()
        super()._tunnel()  # type: ignore[misc]  # not in typeshed
        self.sock = plain
        self.sock.settimeout(max(self._until - time.monotonic(), 0.001))


class _Secured(_Plain, http.client.HTTPSConnection):
    """The same over TLS."""


class BoundedHttp(urllib.request.HTTPHandler):
    """Opens http:// with bounds."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: of the body of an answer, at most."""
        super().__init__()
        self._nbytes = nbytes

    def http_open(self, req: urllib.request.Request) -> Any:
        """Open."""
        return self.do_open(_Plain, req, nbytes=self._nbytes)  # type: ignore[arg-type]


class BoundedHttps(urllib.request.HTTPSHandler):
    """Opens https:// with bounds and the system's trust store."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes`: of the body of an answer, at most."""
        super().__init__()
        self._nbytes = nbytes

    def https_open(self, req: urllib.request.Request) -> Any:
        """Open."""
        return self.do_open(_Secured, req, nbytes=self._nbytes, context=ssl.create_default_context())  # type: ignore[arg-type]
