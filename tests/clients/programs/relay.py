"""A relay on loopback between a program and a service: it notes what was asked and answered, and lets a script alter
requests."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

SECONDS = 1800
HOP = {"host", "connection", "content-length", "transfer-encoding", "accept-encoding", "expect", "keep-alive"}
Script = Callable[[str, dict[str, Any]], bool]
"""Alters the body of a request with a path. Returns whether it did."""


@dataclass(frozen=True)
class Seen:
    """One request: what it asked for, and how it was answered. `cached`: tokens that were found in a cache."""

    method: str
    path: str
    status: int
    ignored: tuple[str, ...]
    cached: int
    altered: bool
    said: str  # the body of a refusal


class Relay(ThreadingHTTPServer):
    """Passes requests on to a service. `bodies`: a folder for what is asked, as the service gets it."""

    daemon_threads = True

    def __init__(self, url: str, script: Script | None, bodies: Path | None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.target, self.script, self.bodies = url, script, bodies
        self.seen: list[Seen] = []
        self.http = httpx.Client(timeout=SECONDS)

    def handle_error(self, _request: Any, _address: Any) -> None:
        """Say nothing of a program that leaves."""

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"

    def script_for(self, path: str, headers: dict[str, str], body: bytes) -> tuple[bytes, bool]:
        """The body to pass on, and whether a script altered it."""
        if self.script is None or not body or "content-encoding" in headers:
            return body, False
        try:
            asked = json.loads(body)
        except ValueError:
            return body, False
        if not isinstance(asked, dict) or not self.script(path, asked):
            return body, False
        return json.dumps(asked).encode(), True


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Relay

    def log_message(self, *_words: Any) -> None:
        """Say nothing."""

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("transfer-encoding") or ""):
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _relay(self) -> None:
        body, path = self._body(), self.path.partition("?")[0]
        headers = {name.lower(): value for name, value in self.headers.items() if name.lower() not in HOP}
        body, altered = self.server.script_for(path, headers, body)
        headers["accept-encoding"] = "identity"
        if body and self.server.bodies is not None:
            name = f"{len(self.server.seen):03}{path.replace('/', '-')}.json"
            (self.server.bodies / name).write_bytes(body)
        with self.server.http.stream(self.command, self.server.target + self.path, content=body,
                                     headers=headers) as answer:
            text = self._passed(answer)
        found = re.findall(r'"(?:cached_tokens|cache_read_input_tokens)":\s*(\d+)', text)
        ignored = answer.headers.get("appliance-ignored", "")
        self.server.seen.append(Seen(
            self.command, path, answer.status_code, tuple(ignored.split(", ")) if ignored else (),
            int(found[-1]) if found else 0, altered, text[:600] if answer.status_code >= 400 else ""))

    def _passed(self, answer: httpx.Response) -> str:
        """Pass an answer on as it comes. Returns its text."""
        self.send_response(answer.status_code)
        for name, value in answer.headers.items():
            if name not in ("connection", "content-length", "transfer-encoding", "date", "server"):
                self.send_header(name, value)
        if self.command == "HEAD":
            self.send_header("content-length", "0")
            self.end_headers()
            return ""
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        parts, there = [], True
        for part in answer.iter_raw():
            parts.append(part)
            try:
                if there and part:
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
            except OSError:
                there = False  # the program left; what the service said is noted all the same
        if there:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.close_connection or not there
        return b"".join(parts).decode("utf-8", "replace")

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self._relay
        raise AttributeError(name)


@contextmanager
def relay(url: str, script: Script | None = None, bodies: Path | None = None) -> Iterator[Relay]:
    """A relay that serves."""
    running = Relay(url, script, bodies)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
        running.http.close()
