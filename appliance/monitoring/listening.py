"""A small listener for pages that are made anew for each request, and hold no secret."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from appliance.errors import PolicyError

SECONDS = 30  # that a client may take for its request
HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
           "Cross-Origin-Resource-Policy": "same-origin"}


@dataclass(frozen=True)
class Page:
    """A body, and how it is to be read."""

    body: bytes
    kind: str
    headers: Mapping[str, str] = field(default_factory=dict)


class Listener(ThreadingHTTPServer):
    """Answers GET of a few paths from a thread of its own, until `close`."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], Page]],
                 names: Callable[[str], bool] = lambda host: True) -> None:
        """`names`: whether a Host header is ours, where pages in a browser must not reach this one.
        Raises PolicyError for an address that cannot be listened on."""
        self.pages, self.names = pages, names
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        try:
            super().__init__(address, _Handler)
        except OSError as error:
            raise PolicyError(f"cannot listen on {address[0]} port {address[1]}: {error.strerror}",
                              code="listen-address", hint="name a free port of this machine") from None
        self._thread = Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """The URL on which it listens."""
        host, port = self.server_address[:2]
        return f"http://[{host!s}]:{port}" if ":" in str(host) else f"http://{host!s}:{port}"

    def close(self) -> None:
        """Listen no more."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server: Listener

    def _answer(self) -> None:
        host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        make = self.server.pages.get(self.path)
        if make is None or not self.server.names(host):
            self.send_error(404 if make is None else 421)
            return
        page = make()
        self.send_response_only(200)
        for name, value in {"Content-Type": page.kind, "Content-Length": str(len(page.body)), **HEADERS,
                            **page.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(page.body)

    do_GET = do_HEAD = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""
