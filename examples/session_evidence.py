"""Check a live service's session evidence by its specification, with `cryptography` and pyOpenSSL.

    python examples/session_evidence.py HOST PORT

It opens a connection, asks for evidence with a nonce of its own, and follows the specification in
docs/formats/session-binding.md. It does not ask whether the report is genuine; `appliance verify`
does. Exits 0 if the evidence is of this very connection, 1 if not, 2 if it could not ask.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import socket
import sys
from typing import Any

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from OpenSSL import SSL

LABEL = b"EXPORTER-appliance-session-v1"


def sha256(data: bytes) -> bytes:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).digest()


def ask(host: str, port: int) -> tuple[bytes, bytes, bytes, dict[str, Any]]:
    """A nonce, this connection's exporter for it, the digest of its key, and the evidence."""
    context = SSL.Context(SSL.TLS_CLIENT_METHOD)
    context.set_min_proto_version(SSL.TLS1_3_VERSION)
    connection = SSL.Connection(context, socket.create_connection((host, port), 30))
    connection.setblocking(True)
    connection.set_connect_state()
    connection.do_handshake()
    nonce = secrets.token_bytes(32)
    shown = connection.get_peer_certificate(as_cryptography=True)
    if shown is None:
        raise ValueError("no certificate in the handshake")
    spki = shown.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    connection.sendall(f"GET /v1/attestation?nonce={nonce.hex()} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n"
                       .encode())
    answer = b""
    while True:
        try:
            answer += connection.recv(65536)
        except (SSL.ZeroReturnError, SSL.SysCallError):
            break
    body = answer.partition(b"\r\n\r\n")[2]
    return nonce, connection.export_keying_material(LABEL, 32, nonce), sha256(spki), json.loads(body)


def root(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The root that a path leads to (RFC 9162, section 2.1.3.2)."""
    found, last = sha256(b"\0" + leaf), size - 1
    for sibling in path:
        if index & 1 or index == last:
            found = sha256(b"\1" + sibling + found)
            while not index & 1 and index:
                index, last = index >> 1, last >> 1
        else:
            found = sha256(b"\1" + found + sibling)
        index, last = index >> 1, last >> 1
    return found


def main() -> int:
    """Ask and check."""
    try:
        nonce, exporter, key, evidence = ask(sys.argv[1], int(sys.argv[2]))
    except (IndexError, OSError, ValueError, SSL.Error) as error:
        print(f"could not ask: {error or type(error).__name__}; usage: session_evidence.py HOST PORT", file=sys.stderr)
        return 2
    statement, proof = evidence["statement"], evidence["proof"]
    leaf = b"appliance/session/v1\n" + key + exporter + nonce
    led = root(leaf, proof["index"], statement["nonces"]["size"], [bytes.fromhex(each) for each in proof["path"]])
    canonical = json.dumps(statement, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    data = hashlib.sha512(statement["type"].encode() + b"\n" + canonical).digest()
    checks = {
        "it is evidence of a session": evidence["format"] == "appliance/evidence/v2",
        "its exporter is this connection's": evidence.get("session") == exporter.hex(),
        "its key is this connection's": statement["tls_spki_sha256"] == key.hex(),
        "its nonce is ours": proof["nonce"] == nonce.hex(),
        "the leaf leads to the statement's root": led.hex() == statement["nonces"]["root"],
        "the report has the statement's digest": data in base64.b64decode(evidence["report"]),
    }
    for what, holds in checks.items():
        print(f"{'holds' if holds else 'FAILS'}  {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
