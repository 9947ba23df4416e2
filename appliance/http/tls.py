"""TLS for listeners: RA-TLS with keys that are made here and attested, and, for simulated policies,
an operator's key.

TLS 1.3 only, no resumption: each connection shows the certificate of its day. An RA-TLS key exists
in this process and nowhere else. After a rotation the key before it has a grace of a tenth of the
rotation. Then it is retired: there is no evidence of it any more, and connections on it end with
their answer. So does a connection of that age whose key was not replaced: the host can withhold the
report that a new one needs.
"""

from __future__ import annotations

import asyncio
import hashlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from OpenSSL import SSL

from appliance import hostclock
from appliance.attestation.collect import ratls
from appliance.attestation.collect.attestor import Attestor, BoundKey
from appliance.errors import BootError
from appliance.policy import inputfile
from appliance.policy.schema import Listener, Tls
from appliance.tls import POST_QUANTUM, Session, TlsError, server_context

HANDSHAKE_SECONDS, SHUTDOWN_SECONDS = 10.0, 5.0
ROTATION_MS = 24 * 3_600_000  # where the policy says nothing
SKEW = timedelta(hours=1)     # clocks differ: the certificate is valid a little before and after its time
CERTIFIABLE = datetime(1950, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, tzinfo=UTC)  # RFC 5280, 4.1.2.5
RETRY_SECONDS = 60.0          # after a rotation that failed
GRACE_PARTS = 10              # of a rotation; a key before the latest goes on for one of them


class Closable(Protocol):
    """A connection of the service."""

    def leave(self) -> None:
        """Let the answer under way, or the next one, be the last."""

    def shutdown(self) -> None:
        """End: at once, or with the answer under way."""


@dataclass(eq=False)
class Credential:
    """The certificate that new connections of a listener show, and the key that evidence on them
    binds, with the `connections` that began with it."""

    context: SSL.Context
    key: BoundKey
    rotation: timedelta = timedelta(milliseconds=ROTATION_MS)  # the age at which a connection's next answer is the last
    connections: weakref.WeakSet[Closable] = field(default_factory=weakref.WeakSet)
    end: asyncio.TimerHandle | None = None  # of its grace, once another came

    @property
    def grace(self) -> timedelta:
        """How much older a connection may be, unless an answer is under way."""
        return self.rotation / GRACE_PARTS


class RaTls:
    """The TLS identity of one RA-TLS listener: a fresh key, attested, replaced by `renew`.

    Connections keep the key that they began with until it is retired; new ones get the latest.
    """

    def __init__(self, listener: Listener, attestor: Attestor, *,
                 now: Callable[[], datetime] = hostclock.now) -> None:
        self._attestor, self._names, self._now = attestor, listener.names, now
        self.rotation = timedelta(milliseconds=listener.rotation_ms or ROTATION_MS)
        self.generation = 0
        self.latest: Credential
        self.certificate: x509.Certificate | None = None
        self.before: list[Credential] = []  # keys that are not the latest, and not retired
        self.renew()

    @property
    def grace(self) -> timedelta:
        """How long a key is attested, and its connections go on, after the next one came."""
        return self.rotation / GRACE_PARTS

    @property
    def spki_sha256(self) -> bytes:
        """SHA-256 of the latest key's SubjectPublicKeyInfo."""
        return self.latest.key.tls_spki_sha256 or b""

    def renew(self) -> None:
        """Make a key, have it attested in a generation of its own, and use it for new connections.

        Raises AttestationError when no evidence can be had, or BootError for a time that no
        certificate can have; the key in use then stays.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        public = ratls.spki(key.public_key())
        bound = BoundKey(hashlib.sha256(public).digest())
        self.generation = self._attestor.bind_tls_key(bound.tls_spki_sha256)
        evidence, = self._attestor.attest_all([ratls.nonce_for(public)], bound)
        now = self._now().replace(microsecond=0)
        if not CERTIFIABLE[0] + SKEW <= now <= CERTIFIABLE[1] - self.rotation - SKEW:
            raise BootError(f"the clock says {now:%d %B} {now.year}: a certificate is valid at some time between "
                            f"{CERTIFIABLE[0].year} and {CERTIFIABLE[1].year}", code="clock-range",
                            hint="set the clock of the machine, or of its host")
        certificate = ratls.issue(key, evidence, self._names, not_before=now - SKEW,
                                  not_after=now + self.rotation + SKEW)
        if self.certificate is not None:
            self.before.append(self.latest)
        self.latest = Credential(server_context(key, [certificate]), bound, self.rotation)
        self.certificate = certificate

    def retire(self, shown: Credential) -> None:
        """End what a key was for: no evidence of it, and no connection on it beyond its answer."""
        self._attestor.retire(shown.key.tls_spki_sha256)
        self.before.remove(shown)
        for connection in list(shown.connections):
            connection.shutdown()


async def rotate(identity: RaTls, notify: Callable[[RaTls, Exception | None], None]) -> None:
    """Renew in time, for ever; `notify` hears of each renewal, or of what it failed by. A failure
    is tried again soon. Keys before the latest are retired after their grace."""
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
        retire_later(identity)


def retire_later(identity: RaTls) -> None:
    """Retire the keys before the latest after their grace, and let each of their connections answer
    once more until then."""
    for shown in identity.before:
        if shown.end is None:
            for connection in list(shown.connections):
                connection.leave()
            shown.end = asyncio.get_running_loop().call_later(identity.grace.total_seconds(), identity.retire, shown)


def admission(demanded: Tls | None) -> Callable[[Session], None]:
    """Return the judge of a session after its handshake: TlsError where the policy demands another
    key exchange."""
    hybrid = demanded is not None and demanded.key_exchange == "post-quantum"

    def admit(session: Session) -> None:
        if hybrid and session.key_exchange not in POST_QUANTUM:
            raise TlsError(f"key exchange {session.key_exchange}: the policy demands a post-quantum one")

    return admit


class OperatorIdentity:
    """The identity that the operator gave, for simulated policies."""

    def __init__(self, listener: Listener, attestor: Attestor) -> None:
        """BootError if key and certificate cannot be used."""
        try:
            for path in (listener.certificate, listener.private_key):
                inputfile.require_regular(Path(str(path)))  # reading would wait for a FIFO's writer
            chain = x509.load_pem_x509_certificates(Path(str(listener.certificate)).read_bytes())
            key = serialization.load_pem_private_key(Path(str(listener.private_key)).read_bytes(), None)
            context = server_context(key, chain)
        except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:  # TypeError: the key is encrypted
            detail = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
            raise BootError(f'listener "{listener.name}": its certificate and key cannot be used: {detail}',
                            hint="certificate: a PEM chain, leaf first; private_key: its key in PEM, not encrypted",
                            code="tls-key") from None
        bound = BoundKey(hashlib.sha256(chain[0].public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)).digest())
        attestor.bind_tls_key(bound.tls_spki_sha256)
        self.latest = Credential(context, bound)


Identity = RaTls | OperatorIdentity  # of a listener: `latest` is the credential of a connection that begins now


@dataclass(frozen=True)
class Channel:
    """The connection that a request came on, as evidence knows it: its key, and its TLS session if
    it has one."""

    key: BoundKey
    session: Session | None = None


def channel_of(transport: Any) -> Channel:
    """Return the connection that a transport is of."""
    shown = transport.get_extra_info("shown")
    return Channel(BoundKey(None)) if shown is None else Channel(shown.key, transport.get_extra_info("session"))
