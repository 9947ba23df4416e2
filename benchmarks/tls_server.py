"""A service whose TLS is measured: `python -m benchmarks.tls_server STACK ROTATION_MS serve …`.

STACK is `product`, the TLS that ships, or `stdlib`: asyncio's own transport over Python's `ssl`, as
the service had it before. Everything else of the service is the same. Connections may be idle for
longer than the service lets them, so that many can be open at once.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import hashlib
import socket
import ssl
import sys
import tempfile
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.attestation.binding import Build
from appliance.attestation.collect import ratls
from appliance.attestation.collect.attestor import Attestor, BoundFacts, BoundKey
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.cli.main import main
from appliance.http import listen, protocol, tls
from appliance.http.leaving import READ_BYTES
from appliance.service import server

CONTEXTS = 64  # that a service can show one after the other
IDLE_SECONDS = 120


def _context(key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> ssl.SSLContext:
    """A server's context of Python's `ssl`, with the settings that the service had."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    pem = serialization.Encoding.PEM
    with tempfile.TemporaryDirectory() as folder:
        shown, private = Path(folder) / "certificate", Path(folder) / "key"
        shown.write_bytes(certificate.public_bytes(pem))
        private.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
        context.load_cert_chain(shown, private)
    return context


def _attested() -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """A key with a certificate of the size that the service shows: simulated evidence is in it."""
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="0.1.0")))
    key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC).replace(microsecond=0)
    public = ratls.spki(key.public_key())
    bound = BoundKey(hashlib.sha256(public).digest())
    attestor.bind_tls_key(bound.tls_spki_sha256)
    evidence, = attestor.attest_all([ratls.nonce_for(public)], bound)
    day = dt.timedelta(days=1)
    return key, ratls.issue(key, evidence, (), not_before=now - day, not_after=now + day)


async def _accepted(door: Any, accepted: socket.socket, made: Any) -> None:
    """Take a connection as the service did: asyncio has TLS between socket and protocol."""
    shown = door._tls.latest
    shown.connections.add(made)
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(
        lambda: made, accepted, ssl=shown.context, ssl_handshake_timeout=door._handshake,
        ssl_shutdown_timeout=door._shutdown)
    transport.set_read_buffer_limits(READ_BYTES)


def use_stdlib() -> None:
    """Have the service's listeners use Python's `ssl`. Contexts are made now: later no file may be
    written."""
    contexts = [_context(*_attested()) for _ in range(CONTEXTS)]
    tls.server_context = lambda _key, _chain: contexts.pop()  # type: ignore[assignment]
    listen.Door._accepted = _accepted  # type: ignore[method-assign]


if __name__ == "__main__":
    stack, rotation, *words = sys.argv[1:]
    tls.ROTATION_MS = int(rotation)
    protocol.HEAD_SECONDS = server.KEEP_ALIVE_SECONDS = IDLE_SECONDS  # type: ignore[assignment]
    if stack == "stdlib":
        use_stdlib()
    sys.exit(main(words))
