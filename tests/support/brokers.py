"""Throw-away certificate authorities and key brokers on the loopback: the reference broker, and
misbehaving ones."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import ipaddress
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.attestation.trust.roots import VENDORS, Roots
from appliance.policy import Loaded, load
from examples.broker.config import read
from examples.broker.server import Server
from tests.support import policies

HOST = "127.0.0.1"


@functools.cache
def _key(which: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@dataclass(frozen=True)
class Authority:
    """A root and a server certificate under it; `name` tells one authority from another."""

    name: str = "one"
    host: str = HOST
    days: tuple[int, int] = (-1, 30)

    @property
    @functools.cache  # noqa: B019 - authorities are few
    def root(self) -> x509.Certificate:
        """The self-signed root."""
        return self._certificate(f"root {self.name}", f"root {self.name}", "root", "root", ca=True)

    @property
    @functools.cache  # noqa: B019
    def leaf(self) -> x509.Certificate:
        """The server's certificate."""
        return self._certificate(f"server {self.name}", f"root {self.name}", "leaf", "root", ca=False)

    @property
    def pin(self) -> str:
        """SHA-256 of the root in DER."""
        return hashlib.sha256(self.root.public_bytes(Encoding.DER)).hexdigest()

    def chain(self, *, with_root: bool = True) -> bytes:
        """The certificates that the server sends, in PEM."""
        return b"".join(each.public_bytes(Encoding.PEM) for each in [self.leaf, *([self.root] if with_root else [])])

    def private_key(self) -> bytes:
        """The server's key in PEM."""
        return _key(f"leaf {self.name}").private_bytes(
            Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())

    def write(self, folder: Path, *, with_root: bool = True) -> None:
        """`server.pem` and `server.key` in a folder."""
        (folder / "server.pem").write_bytes(self.chain(with_root=with_root))
        (folder / "server.key").write_bytes(self.private_key())

    def _certificate(self, subject: str, issuer: str, which: str, signer: str, *, ca: bool) -> x509.Certificate:
        now = datetime.now(UTC)
        public, authority = _key(f"{which} {self.name}").public_key(), _key(f"{signer} {self.name}")
        builder = x509.CertificateBuilder().subject_name(_name(subject)).issuer_name(_name(issuer)).public_key(
            public).serial_number(x509.random_serial_number()).not_valid_before(
            now + timedelta(days=self.days[0])).not_valid_after(now + timedelta(days=self.days[1]))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True).add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False).add_extension(
            x509.SubjectKeyIdentifier.from_public_key(public), critical=False).add_extension(x509.KeyUsage(
                digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
                key_agreement=False, key_cert_sign=ca, crl_sign=ca, encipher_only=False, decipher_only=False), True)
        if not ca:
            builder = builder.add_extension(x509.SubjectAlternativeName([self._host()]), critical=False).add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return builder.sign(authority, hashes.SHA256())

    def _host(self) -> x509.GeneralName:
        with contextlib.suppress(ValueError):
            return x509.IPAddress(ipaddress.ip_address(self.host))
        return x509.DNSName(self.host)


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def policy_of(folder: Path, binding: str, schema: int = 2) -> Loaded:
    """A policy in a folder whose model's key is at a broker, with evidence bound in a way; "" says nothing of it."""
    said = f'session_binding = "{binding}"' if binding else ""
    text = policies.with_lines("model", f"""sealed_header_sha256 = "{"ab" * 32}"
  key {{
    provider = "broker"
    broker {{
      url         = "https://{HOST}:1"
      root_sha256 = "{Authority().pin}"
      resource    = "default/key/demo"
      {said}
    }}
  }}""", policies.in_schema(schema))
    (folder / "deployment.hcl").write_text(text)
    return load(folder / "deployment.hcl")


@contextlib.contextmanager
def reference(config: Path, roots: Roots = VENDORS) -> Iterator[Server]:
    """The reference broker, serving by a configuration with `port = 0`."""
    server = Server(read(config, roots))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextlib.contextmanager
def scripted(folder: Path, script: Callable[[socket.socket], None], authority: Authority | None = None, *,
             tls: bool = True, with_root: bool = True) -> Iterator[str]:
    """A server that runs `script` on each connection after the TLS handshake; gives its URL."""
    listener = socket.create_server((HOST, 0))
    if tls:
        (authority or Authority()).write(folder, with_root=with_root)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with contextlib.suppress(OSError), contextlib.closing(connection):
                connection.settimeout(10)
                if tls:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        script(secured)
                else:
                    script(connection)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"https://{HOST}:{listener.getsockname()[1]}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(timeout=15)


def answer(status: int, body: bytes, *, cookie: str | None = "kbs-session-id=abc", extra: str = "") -> bytes:
    """One HTTP answer."""
    cookies = "" if cookie is None else f"set-cookie: {cookie}\r\n"
    return (f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{cookies}{extra}"
            "\r\n").encode() + body


def read_request(connection: socket.socket) -> bytes:
    """One HTTP request with its body; empty when the peer hung up."""
    data = b""
    while b"\r\n\r\n" not in data:
        part = connection.recv(65536)
        if not part:
            return b""
        data += part
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line.split(b":")[1]) for line in head.split(b"\r\n")
                   if line.lower().startswith(b"content-length:")), 0)
    while len(body) < length:
        part = connection.recv(65536)
        if not part:
            return b""
        body += part
    return head + b"\r\n\r\n" + body
