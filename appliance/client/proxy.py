"""A local proxy: plain HTTP on the loopback, and behind it nothing but an appliance that was
verified just now.

An SDK that is pointed at it needs no change. A request is read whole; then a connection is
verified, or taken from those that were; only then does the first byte of the request leave. Answers
pass piece by piece as they come. When the client goes away, so does the connection, and the
appliance stops working for nobody.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from appliance.client import exchange
from appliance.client.channel import Channel
from appliance.client.connection import LEFT_SECONDS
from appliance.client.exchange import Answer, Courier, Refusal, Way
from appliance.client.target import is_loopback
from appliance.errors import PolicyError

IDLE_SECONDS = 600
LOOK_SECONDS = 0.5  # how often a waiting client is looked at
_DIGITS = frozenset("0123456789")


def check_address(host: str) -> None:
    """PolicyError for an address that others can reach."""
    if not is_loopback(host):
        raise PolicyError(f"{host}: not a loopback address: prompts would cross the network in the clear",
                          code="listen-address", hint="listen on 127.0.0.1 or ::1")


class Proxy(ThreadingHTTPServer):
    """Listens on a loopback address. Use `serve_forever`, and `shutdown` from another thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, channel: Channel | Courier, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen; port 0 takes a free one. Raises PolicyError for an address that others can reach,
        or one in use."""
        check_address(host)
        self.send = functools.partial(exchange.send, channel) if isinstance(channel, Channel) else channel.send
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            super().__init__((host, port), _Handler)
        except OSError as error:
            raise PolicyError(f"cannot listen on {host} port {port}: {error.strerror}", code="listen-address") from None

    @property
    def url(self) -> str:
        """Where an SDK is to be pointed, without the API's `/v1`."""
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news, and a traceback might hold what it sent."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    disable_nagle_algorithm = True
    server: Proxy

    def _forward(self) -> None:
        done, way = threading.Event(), Way()
        try:
            path, body = self._path(), self._body()
            threading.Thread(target=_watch, args=(self.connection, way, done), daemon=True).start()
            answer = self.server.send(self.command, path, self.headers.items(), body, way=way)
        except Refusal as refusal:
            done.set()
            self._refuse(refusal)
            return
        try:
            self._pass_on(answer)
        except (Refusal, OSError):
            self.close_connection = True  # too late to say so: the client sees that the answer is cut off
        finally:
            done.set()
            answer.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = _forward  # noqa: N815

    def _path(self) -> str:
        """The path to ask for. A page in a browser that thinks this is its own server is refused by
        the Host header."""
        host = self.headers.get("Host", "").rsplit(":", 1)[0].strip("[]")
        if not is_loopback(host):
            raise Refusal(421, "invalid_request_error", "wrong-host", "the Host header is not that of this proxy")
        if not self.path.startswith("/"):
            raise Refusal(400, "invalid_request_error", "malformed-request", "the target is not a path")
        if self.headers.defects or self.headers.get_payload():  # reading ended early: what follows may be anything
            raise Refusal(400, "invalid_request_error", "malformed-request", "a header line is none")
        return self.path

    def _body(self) -> bytes:
        """The whole body. Raises Refusal unless its length is told, once, and bearable."""
        lengths = self.headers.get_all("Content-Length") or ["0"]
        if "Transfer-Encoding" in self.headers or len(set(lengths)) != 1 or not lengths[0] or set(lengths[0]) - _DIGITS:
            raise Refusal(411, "invalid_request_error", "length-required", "send the body with one Content-Length")
        if len(lengths[0]) > 12 or int(lengths[0]) > exchange.MAX_BODY_BYTES:
            raise Refusal(413, "invalid_request_error", "body-too-large",
                          f"the body has more than {exchange.MAX_BODY_BYTES} bytes")
        body = self.rfile.read(int(lengths[0]))
        if len(body) != int(lengths[0]):
            raise Refusal(400, "invalid_request_error", "malformed-request", "the body is cut off")
        return body

    def _refuse(self, refusal: Refusal) -> None:
        if refusal.kind == "invalid_request_error":
            self.close_connection = True  # what is left of the request must not be taken for the next one
        with contextlib.suppress(OSError):
            self._head(refusal.status, refusal.headers())
            if self.command != "HEAD":
                self.wfile.write(refusal.body())

    def _head(self, status: int, headers: exchange.Headers) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _pass_on(self, answer: Answer) -> None:
        """The answer, each piece at once."""
        chunked = answer.length is None and self.request_version != "HTTP/1.0" and self.command != "HEAD"
        more = [] if answer.length is None else [("Content-Length", str(answer.length))]
        if answer.length is None and not chunked:
            self.close_connection = True
        self._head(answer.status, answer.headers + more + ([("Transfer-Encoding", "chunked")] if chunked else []))
        while piece := answer.read():
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
        if chunked:
            self.wfile.write(b"0\r\n\r\n")

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send what the standard library refuses by itself, in the same shape."""
        self.close_connection = True
        self.request_version = "HTTP/1.1"  # a request line that cannot be read counts as HTTP/0.9 there, without a head
        self._refuse(Refusal(int(code), "invalid_request_error", "malformed-request", message or "malformed request"))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged: not who asked, not what."""


def diverted(url: str) -> str | None:
    """The proxy's host that this system's settings (HTTP_PROXY and the like) put before `url`, None
    without one.

    SDKs obey them for loopback addresses too, and would carry prompts there in the clear, past
    every check.
    """
    scheme, _, place = url.partition("://")
    found = urllib.request.getproxies()
    proxy = found.get(scheme) or found.get("all")
    if not proxy or urllib.request.proxy_bypass(place):
        return None
    return proxy.rpartition("//")[2].rpartition("@")[2]  # what may stand before it is a secret


def _watch(client: socket.socket, way: Way, done: threading.Event) -> None:
    """End the request when the client goes away."""
    while not done.is_set():
        try:
            readable, _, _ = select.select([client], [], [], LOOK_SECONDS)
            if readable and not done.is_set():
                if client.recv(1, socket.MSG_PEEK):
                    return  # the next request came already
                if not done.wait(LEFT_SECONDS):  # SDKs leave at `[DONE]`, just before the end
                    way.leave()
                return
        except (OSError, ValueError):
            way.leave()
            return
