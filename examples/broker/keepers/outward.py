"""Requests of the broker's own to a service that keeps keys: over TLS by authorities that the
configuration names, or plainly to this machine. Each has one bound of time and size."""

from __future__ import annotations

import http.client
import ssl
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from appliance.bounded import HEAD_BYTES, Bounded

SECONDS, MAX_ANSWER_BYTES = 10.0, 1 << 16
LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class OutwardAnswer:
    """A status, a body of bounded size, and the lines of Set-Cookie."""

    status: int
    body: bytes
    cookies: tuple[str, ...]


@dataclass(frozen=True)
class Service:
    """A service and its address. `ca`: the certificates that its own must lead to; None over plain
    HTTP, which only goes to this machine."""

    url: str
    ca: Path | None

    @property
    def allowed(self) -> bool:
        """Whether the address goes with `ca`."""
        parts = urlsplit(self.url)
        if self.ca is not None:
            return parts.scheme == "https" and bool(parts.hostname)
        return parts.scheme == "http" and parts.hostname in LOOPBACK

    def ask(self, method: str, path: str, headers: dict[str, str], body: bytes | None = None, *,
            most: int = MAX_ANSWER_BYTES) -> OutwardAnswer:
        """Ask once, on a connection of its own. `most`: bytes of the answer's body. Raises OSError,
        HTTPException, and ValueError for an answer that is too long."""
        connection = self._connection()
        try:
            connection.connect()
            bound = Bounded(connection.sock)
            bound.allow(most + HEAD_BYTES, SECONDS)
            connection.sock = bound
            connection.request(method, urlsplit(self.url).path.rstrip("/") + path, body, headers)
            answer = connection.getresponse()
            data = answer.read(most + 1)
            if len(data) > most:
                raise ValueError(f"an answer of more than {most} bytes")
            return OutwardAnswer(answer.status, data, tuple(answer.headers.get_all("set-cookie") or ()))
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        parts = urlsplit(self.url)
        if self.ca is None:
            return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=SECONDS)
        context = ssl.create_default_context(cafile=str(self.ca))
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=SECONDS, context=context)
