"""A server that answers as Vault's transit engine does (HashiCorp, "Transit secrets engine (API)"): one key of
aes256-gcm96, whose ciphertexts are `vault:v1:` and base64 of nonce, ciphertext and tag."""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

TOKEN = "hvs.CAESI" + "x" * 90


class Transit(ThreadingHTTPServer):
    """The engine at /v1/transit, and what a test may change of it."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.cipher, self.name = AESGCM(secrets.token_bytes(32)), "models"
        self.sealed, self.tokens, self.asked = False, {TOKEN}, list[str]()

    def answer(self, path: str, token: str | None, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        self.asked.append(path)
        if self.sealed:
            return 503, {"errors": ["Vault is sealed"]}
        if token not in self.tokens:
            return 403, {"errors": ["permission denied"]}
        aad = base64.b64decode(body.get("associated_data", ""))
        if path == f"/v1/transit/encrypt/{self.name}":
            nonce = secrets.token_bytes(12)
            made = nonce + self.cipher.encrypt(nonce, base64.b64decode(body["plaintext"]), aad)
            return 200, {"data": {"ciphertext": f"vault:v1:{base64.b64encode(made).decode()}", "key_version": 1}}
        if path == f"/v1/transit/decrypt/{self.name}":
            raw = base64.b64decode(body["ciphertext"].removeprefix("vault:v1:"))
            try:
                plain = self.cipher.decrypt(raw[:12], raw[12:], aad)
            except InvalidTag:
                return 400, {"errors": ["cipher: message authentication failed"]}
            return 200, {"data": {"plaintext": base64.b64encode(plain).decode()}}
        return 404, {"errors": []}


class _Handler(BaseHTTPRequestHandler):
    server: Transit

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        status, found = self.server.answer(self.path, self.headers.get("x-vault-token"), body)
        data = json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def running(folder: Path | None = None) -> Iterator[Transit]:
    """It serves; with `folder`, over TLS by `server.pem` and `server.key` in it."""
    server = Transit()
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
