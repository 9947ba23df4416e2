"""A timestamp authority of its own, only by `openssl ts`."""

from __future__ import annotations

import hashlib
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

CONFIG = """
[tsa]
default_tsa = one
[one]
serial = {folder}/serial
signer_cert = {folder}/tsa.pem
certs = {folder}/chain.pem
signer_key = {folder}/tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256
accuracy = secs:1, millisecs:500
ordering = no
tsa_name = no
ess_cert_id_chain = no
ess_cert_id_alg = {ess}
clock_precision_digits = 3
"""
AUTHORITY = "basicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\n"
STAMPING = "keyUsage=critical,digitalSignature\nextendedKeyUsage=critical,timeStamping\n"


class Authority:
    """A root, an authority below it and a signer, with keys of one kind: `rsa` or `ec`."""

    def __init__(self, folder: Path, kind: str = "ec", ess: str = "sha256") -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        for name, signer, extensions in (("root", None, AUTHORITY), ("middle", "root", AUTHORITY),
                                         ("tsa", "middle", STAMPING)):
            self._certificate(name, signer, extensions, kind)
        (folder / "chain.pem").write_text((folder / "middle.pem").read_text() + (folder / "root.pem").read_text())
        (folder / "ts.cnf").write_text(CONFIG.format(folder=folder, ess=ess))
        (folder / "serial").write_text("01\n")

    @classmethod
    def at(cls, folder: Path) -> Authority:
        """Take an authority that is there."""
        found = cls.__new__(cls)
        found.folder = folder
        return found

    def _certificate(self, name: str, signer: str | None, extensions: str, kind: str) -> None:
        key, request, made = (self.folder / f"{name}.{end}" for end in ("key", "csr", "pem"))
        (self.folder / "ext").write_text(extensions)
        algorithm = ["rsa", "-pkeyopt", "rsa_keygen_bits:2048"] if kind == "rsa" else [
            "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        run("genpkey", "-algorithm", *algorithm, "-out", key)
        run("req", "-new", "-key", key, "-subj", f"/CN=Example {name}", "-out", request)
        by = ["-signkey", key] if signer is None else [
            "-CA", self.folder / f"{signer}.pem", "-CAkey", self.folder / f"{signer}.key", "-CAcreateserial"]
        run("x509", "-req", "-in", request, *by, "-days", "3650", "-sha256", "-extfile", self.folder / "ext",
            "-out", made)

    def fingerprint(self, name: str = "root") -> str:
        """SHA-256 of a certificate's DER bytes."""
        return hashlib.sha256(run("x509", "-in", self.folder / f"{name}.pem", "-outform", "DER")).hexdigest()

    def answer(self, request: bytes) -> bytes:
        """The DER response to a DER request."""
        (self.folder / "request").write_bytes(request)
        return run("ts", "-reply", "-config", self.folder / "ts.cnf", "-queryfile", self.folder / "request")

    def accepted(self, response: bytes, data: bytes) -> bool:
        """Whether openssl verifies a response against data and the root."""
        (self.folder / "response").write_bytes(response)
        (self.folder / "data").write_bytes(data)
        done = subprocess.run(["openssl", "ts", "-verify", "-data", self.folder / "data", "-in",
                               self.folder / "response", "-CAfile", self.folder / "root.pem"], capture_output=True,
                              check=False)
        return done.returncode == 0


@contextmanager
def answering(authority: Authority) -> Iterator[str]:
    """The URL of a server that answers requests by the authority."""
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = authority.answer(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "application/timestamp-reply")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


def run(*words: str | Path) -> bytes:
    """Return the output of one call of openssl."""
    return subprocess.run(["openssl", *words], check=True, capture_output=True).stdout
