"""A server that answers as Trustee's key broker service does, and an agent beside it that collects evidence. Written
from the published protocol (confidential-containers/trustee, kbs/docs/kbs_attestation_protocol.md, version 0.4.0, and
guest-components, api-server-rest/README.md). It shares no code with the appliance: JWE is written from RFC 7516 and
RFC 7518 here."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import secrets
import ssl
import struct
import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

PLATFORMS = {"sample", "snp", "tdx", "az-snp-vtpm", "az-tdx-vtpm", "sgx", "cca", "csv", "se", "tpm"}
QUOTE_REPORT_DATA = slice(568, 632)  # of a TD quote of version 4


def _url64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unurl64(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def runtime_digest(nonce: str, key: dict[str, str], additional: str) -> bytes:
    """SHA-384 of the runtime data in canonical JSON: members by name, no white space."""
    data = {"tee-pubkey": key, "nonce": nonce, "additional-evidence": additional}
    return hashlib.sha384(json.dumps(data, sort_keys=True, separators=(",", ":")).encode()).digest()


def encrypt(plain: bytes, jwk: dict[str, str]) -> dict[str, str]:
    """A JWE in flattened JSON for an EC key: ECDH-ES+A256KW and A256GCM."""
    assert ("EC", "P-256", "ECDH-ES+A256KW") == (jwk["kty"], jwk["crv"], jwk["alg"])
    x, y = (int.from_bytes(_unurl64(jwk[name]), "big") for name in ("x", "y"))
    own = ec.generate_private_key(ec.SECP256R1())
    shared = own.exchange(ec.ECDH(), ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key())
    name = jwk["alg"].encode()
    info = struct.pack(f">I{len(name)}sIII", len(name), name, 0, 0, 256)
    wrapping = ConcatKDFHash(hashes.SHA256(), 32, info).derive(shared)
    content, iv = secrets.token_bytes(32), secrets.token_bytes(12)
    numbers = own.public_key().public_numbers()
    header = {"alg": jwk["alg"], "enc": "A256GCM", "epk": {
        "crv": "P-256", "kty": "EC", "x": _url64(numbers.x.to_bytes(32, "big")),
        "y": _url64(numbers.y.to_bytes(32, "big"))}}
    protected = _url64(json.dumps(header).encode())
    sealed = AESGCM(content).encrypt(iv, plain, protected.encode())
    return {"protected": protected, "encrypted_key": _url64(aes_key_wrap(wrapping, content)), "iv": _url64(iv),
            "ciphertext": _url64(sealed[:-16]), "tag": _url64(sealed[-16:])}


def bound(tee: str, evidence: Any) -> bytes | None:
    """The report data that evidence binds, by the platform's form; None for another form."""
    with contextlib.suppress(KeyError, TypeError, ValueError):
        if tee == "sample" and set(evidence) == {"svn", "report_data"}:
            return base64.b64decode(evidence["report_data"]).ljust(64, b"\0")
        if tee == "tdx" and set(evidence) == {"cc_eventlog", "quote"}:
            return base64.b64decode(evidence["quote"])[QUOTE_REPORT_DATA]
    return None


class RefusalError(Exception):
    """A status, with ErrorInformation."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class _Serving(ThreadingHTTPServer, ABC):
    daemon_threads = True

    def __init__(self, handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.asked = list[str]()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @abstractmethod
    def answer(self, method: str, path: str, cookie: str, body: bytes) -> tuple[Any, str | None]:
        """A body to send as JSON, and a session to set."""


class Kbs(_Serving):
    """The service, and what a test may change of it."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.resources: dict[str, bytes] = {}
        self.allowed = {"sample", "tdx"}  # the resource policy: platforms that get resources
        self.change: Callable[[dict[str, str]], dict[str, str]] = lambda jwe: jwe
        self.version, self.nonce_bytes = "0.4.0", 32
        self.sessions: dict[str, dict[str, Any]] = {}

    def answer(self, method: str, path: str, cookie: str, body: bytes) -> tuple[Any, str | None]:
        if (method, path) == ("POST", "/kbs/v0/auth"):
            return self._auth(json.loads(body))
        session = self.sessions.get(cookie.removeprefix("kbs-session-id="))
        if session is None:
            raise RefusalError(401, "Attestation Token not found")
        if (method, path) == ("POST", "/kbs/v0/attest"):
            return self._attest(session, json.loads(body)), session["id"]
        if method == "GET" and path.startswith("/kbs/v0/resource/"):
            return self._resource(session, path.removeprefix("/kbs/v0/resource/")), None
        raise RefusalError(404, "Invalid request path")

    def _auth(self, request: dict[str, Any]) -> tuple[Any, str]:
        if {"version", "tee", "extra-params"} != set(request) or request["tee"] not in PLATFORMS:
            raise RefusalError(401, "deserialize Request")
        if request["version"] != self.version:
            raise RefusalError(401, f"KBS Client Protocol Version Mismatch: expect ={self.version}")
        nonce = base64.b64encode(secrets.token_bytes(self.nonce_bytes)).decode()
        name = uuid.uuid4().hex
        self.sessions[name] = {"id": name, "nonce": nonce, "tee": request["tee"], "key": None}
        return {"nonce": nonce, "extra-params": ""}, name

    def _attest(self, session: dict[str, Any], message: dict[str, Any]) -> Any:
        runtime, evidence = message["runtime-data"], message["tee-evidence"]
        if {"nonce", "tee-pubkey"} != set(runtime) or runtime["nonce"] != session["nonce"]:
            raise RefusalError(401, "the nonce in the handshake session is different")
        wanted = runtime_digest(runtime["nonce"], runtime["tee-pubkey"], evidence["additional_evidence"])
        if bound(session["tee"], evidence["primary_evidence"]) != wanted.ljust(64, b"\0"):
            raise RefusalError(401, "verify TEE evidence failed")
        session["key"] = runtime["tee-pubkey"]
        return {"token": ".".join(_url64(part) for part in (b'{"alg":"ES256","typ":"JWT"}', b"{}", b"signature"))}

    def _resource(self, session: dict[str, Any], name: str) -> Any:
        if session["key"] is None:
            raise RefusalError(401, "The session is not authorized")
        if session["tee"] not in self.allowed:
            raise RefusalError(403, "Access denied by policy")
        if name not in self.resources:
            raise RefusalError(404, f"resource {name} not found")
        return self.change(encrypt(self.resources[name], session["key"]))


def sample(data: bytes) -> dict[str, Any]:
    """Evidence of the platform `sample`, which proves nothing."""
    return {"svn": "1", "report_data": base64.b64encode(data).decode()}


class Agent(_Serving):
    """api-server-rest of the guest components, on the loopback of a confidential VM."""

    def __init__(self) -> None:
        super().__init__(_Handler)
        self.tee: Any = "sample"
        self.collect: Callable[[bytes], Any] = sample
        self.resources: dict[str, bytes] = {}  # of the data hub

    def answer(self, method: str, path: str, cookie: str, body: bytes) -> tuple[Any, str | None]:
        parts = urlsplit(path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        if parts.path == "/info":
            return {"version": "v1.0.0", "tee": self.tee, "additional_tees": []}, None
        if parts.path == "/aa/evidence" and query.get("encoding") == "base64":
            return self.collect(_unurl64(query["runtime_data"])), None
        if parts.path.startswith("/cdh/resource/"):
            if (name := parts.path.removeprefix("/cdh/resource/")) in self.resources:
                return self.resources[name], None
            raise RefusalError(500, "rpc status: get resource failed")
        raise RefusalError(404, "not found")


class _Handler(BaseHTTPRequestHandler):
    server: _Serving

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.asked.append(self.path.partition("?")[0])
        body = self.rfile.read(int(self.headers.get("content-length", "0")))
        session = None
        try:
            found, session = self.server.answer(self.command, self.path, self.headers.get("cookie", ""), body)
            status = 200
        except RefusalError as error:
            status, found = error.status, {"type": "https://example.org/kbs/errors", "detail": str(error)}
        data = found if isinstance(found, bytes) else json.dumps(found).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        if session is not None:
            self.send_header("set-cookie", f"kbs-session-id={session}; Expires=Thu, 31 Dec 2099 23:59:59 GMT")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextlib.contextmanager
def running(server: _Serving, folder: Path | None = None) -> Iterator[None]:
    """It serves; with `folder`, over TLS by `server.pem` and `server.key` in it."""
    if folder is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.pem", folder / "server.key")
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
