"""HTTP around a witness: `POST /add-checkpoint`."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from examples.witness.witness import MAX_BODY_BYTES, BrokenError, RefusedError, Witness


class Server(ThreadingHTTPServer):
    """Listens on loopback."""

    def __init__(self, witness: Witness, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.witness = witness

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = 30  # seconds for each read: who sends nothing more holds no thread

    def do_POST(self) -> None:
        """Cosign, or say why not by the status."""
        said = self.headers.get("content-length") or ""
        length = int(said) if said.isascii() and said.isdecimal() and len(said) < 10 else -1
        if self.path != "/add-checkpoint" or not 0 <= length <= MAX_BODY_BYTES:
            self._send(404 if self.path != "/add-checkpoint" else 400, "")
            return
        try:
            self._send(200, self.server.witness.add_checkpoint(self.rfile.read(length)))
        except RefusedError as refused:
            self._send(refused.status, refused.body)
        except (BrokenError, OSError) as error:
            print(f"error: {error}", file=sys.stderr, flush=True)
            self._send(500, "")

    def _send(self, status: int, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("content-type", "text/x.tlog.size" if status == 409 else "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""
