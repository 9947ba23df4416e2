"""TLS for listeners: RA-TLS with keys that are made here and attested, and, for simulated policies,
an operator's key.

TLS 1.3 only, no resumption: each connection shows the certificate of its day. An RA-TLS key exists
in this process and nowhere else. Python's ssl takes keys from files alone, so key and certificate
are handed to it through pipes. A pipe has no name, is read once, and is empty after that. A memory
file would have to be wiped. It needs a system call (memfd_create) that the sandbox refuses, because
code could be run from it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from appliance import hostclock
from appliance.attestation.collect import ratls
from appliance.attestation.collect.attestor import Attestor, BoundKey
from appliance.errors import BootError
from appliance.policy import inputfile
from appliance.policy.schema import Listener

HANDSHAKE_SECONDS, SHUTDOWN_SECONDS = 10.0, 5.0
ROTATION_MS = 24 * 3_600_000  # where the policy says nothing
SKEW = timedelta(hours=1)     # clocks differ: the certificate is valid a little before and after its time
CERTIFIABLE = datetime(1950, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # RFC 5280, 4.1.2.5
RETRY_SECONDS = 60.0          # after a rotation that failed


class Context(ssl.SSLContext):
    """A server's context for one key; `channel` is what evidence on its connections binds."""

    channel: BoundKey


def _context() -> Context:
    context = Context(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.set_alpn_protocols(["http/1.1"])
    return context


@contextlib.contextmanager
def _piped(data: bytes) -> Iterator[str]:
    """A path under which `data` can be read once."""
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        written = os.write(writer, data)
        os.close(writer)
        if written != len(data):
            raise BootError("TLS: key and certificate do not fit into a pipe", code="tls-pipe")
        yield f"/proc/self/fd/{reader}"
    finally:
        os.close(reader)


def load(context: ssl.SSLContext, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    """Give `context` a key and its certificate without a file."""
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(pem, form, serialization.NoEncryption())
    with _piped(certificate.public_bytes(pem)) as chain, _piped(secret) as private:
        context.load_cert_chain(chain, private)


class RaTls:
    """The TLS identity of one RA-TLS listener: a fresh key, attested, replaced by `renew`.

    Connections keep the key that they began with; new ones get the latest. `context` is for the
    listener's life.
    """

    def __init__(self, listener: Listener, attestor: Attestor, *,
                 now: Callable[[], datetime] = hostclock.now) -> None:
        self._attestor, self._names, self._now = attestor, listener.names, now
        self.rotation = timedelta(milliseconds=listener.rotation_ms or ROTATION_MS)
        self.generation = 0
        self.context = _context()
        self.context.sni_callback = self._choose
        self.renew()

    @property
    def spki_sha256(self) -> bytes:
        """SHA-256 of the latest key's SubjectPublicKeyInfo."""
        return self._latest.channel.tls_spki_sha256 or b""

    def renew(self) -> None:
        """Make a key, have it attested in a generation of its own, and use it for new connections.

        Raises AttestationError when no evidence can be had, or BootError for a time that no
        certificate can have; the key in use then stays.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        public = ratls.spki(key.public_key())
        channel = BoundKey(_sha256(public))
        self.generation = self._attestor.bind_tls_key(channel.tls_spki_sha256)
        evidence, = self._attestor.attest_all([ratls.nonce_for(public)], channel)
        now = self._now().replace(microsecond=0)
        if not CERTIFIABLE[0] + SKEW <= now <= CERTIFIABLE[1] - self.rotation - SKEW:
            raise BootError(f"the clock says {now:%d %B} {now.year}: a certificate is valid at some time between "
                            f"{CERTIFIABLE[0].year} and {CERTIFIABLE[1].year}", code="clock-range",
                            hint="set the clock of the machine, or of its host")
        certificate = ratls.issue(key, evidence, self._names, not_before=now - SKEW,
                                  not_after=now + self.rotation + SKEW)
        latest = _context()
        load(latest, key, certificate)
        latest.channel = channel
        self._latest = latest
        self.certificate = certificate

    def _choose(self, connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:
        """Called in each handshake, with or without a server name: take the latest key."""
        connection.context = self._latest


async def rotate(identity: RaTls, notify: Callable[[RaTls, Exception | None], None]) -> None:
    """Renew in time, for ever; `told` hears of each renewal, or of what it failed by. A failure is
    tried again soon."""
    wait = identity.rotation.total_seconds()
    while True:
        await asyncio.sleep(wait)
        wait = identity.rotation.total_seconds()
        try:
            await asyncio.to_thread(identity.renew)
        except Exception as error:  # noqa: BLE001 - whatever it was, the listener goes on with the key it has
            notify(identity, error)
            wait = min(wait, RETRY_SECONDS)
        else:
            notify(identity, None)


def _sha256(data: bytes) -> bytes:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(data)
    return digest.finalize()


def operators(listener: Listener, attestor: Attestor) -> Context:
    """A context with the key that the operator gave, for simulated policies. BootError if it cannot
    be used."""
    context = _context()
    try:
        certificate, private = str(listener.certificate), str(listener.private_key)
        for path in (certificate, private):
            inputfile.require_regular(Path(path))  # OpenSSL would wait for a FIFO's writer
        context.load_cert_chain(certificate, private, password=_no_password)
        key = x509.load_pem_x509_certificates(Path(certificate).read_bytes())[0].public_key()
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        detail = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise BootError(f'listener "{listener.name}": its certificate and key cannot be used: {detail}',
                        hint="certificate: a PEM chain, leaf first; private_key: its key in PEM, not encrypted",
                        code="tls-key") from None
    context.channel = BoundKey(_sha256(key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)))
    attestor.bind_tls_key(context.channel.tls_spki_sha256)
    return context


def _no_password() -> str:
    raise ValueError("the private key is encrypted")


def channel_of(transport: Any) -> BoundKey:
    """The key that evidence on a connection binds: its TLS key, or none."""
    context = getattr(transport.get_extra_info("ssl_object"), "context", None)
    return context.channel if isinstance(context, Context) else BoundKey(None)
