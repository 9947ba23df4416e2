"""HTTPS to one pinned broker: no redirects, no proxy, no trust store of the machine, bounded in
time and size.

The policy pins the SHA-256 of the certificate that the broker's chain must end in, so the broker
sends it in its chain. The chain is verified after the handshake and before the first byte of a
request, by the rules for servers of `cryptography.x509.verification`, with that certificate as the
only anchor. Certificates' dates are compared with the machine's clock, which is the host's.
"""

from __future__ import annotations

import hashlib
import http.client
import ipaddress
import socket
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from appliance.bounded import HEAD_BYTES, Bounded, dial
from appliance.codec.printable import ascii_only
from appliance.errors import ModelKeyError
from appliance.tls import RELEASE_LABEL, TlsError, TlsStream, client_context

CONNECT_SECONDS, PAUSE_SECONDS = 10.0, 0.5
MAX_ANSWER_BYTES = 1 << 16
MAX_CHAIN = 6
MAX_SHOWN = 200  # characters of the other side's words


@dataclass(frozen=True)
class Destination:
    """A broker: where it listens, the path before the protocol's own, and the pin."""

    host: str
    port: int
    prefix: str
    root_sha256: str

    @classmethod
    def of(cls, url: str, root_sha256: str) -> Destination:
        """From the policy's URL and pin, both checked before."""
        parts = urlsplit(url)
        return cls(parts.hostname or "", parts.port or 443, parts.path.rstrip("/"), root_sha256)

    def __str__(self) -> str:
        return f"https://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}{self.prefix}"


@dataclass(frozen=True)
class HttpAnswer:
    """One HTTP answer: status, body of at most MAX_ANSWER_BYTES, and the Set-Cookie lines."""

    status: int
    body: bytes
    cookies: tuple[str, ...]


class _Pinned(http.client.HTTPConnection):
    """A connection that sends nothing before the peer's chain was found to end in the pin."""

    default_port = 443
    auto_open = 0  # a request goes on the connection that was judged, or on none

    def __init__(self, address: Destination, seconds: float) -> None:
        super().__init__(address.host, address.port, timeout=seconds)
        self._address, self._seconds = address, seconds

    def connect(self) -> None:
        """Open, shake hands, verify."""
        plain = dial(self._address.host, self._address.port, self._seconds)
        plain.settimeout(self._seconds)
        try:
            secured = TlsStream(plain, client_context(), name=self._address.host)
        except BaseException:
            plain.close()
            raise
        self.stream = Bounded(secured)
        self.sock = cast("socket.socket", self.stream)
        self.session = secured.session
        check_chain(self.session.certificates(), self._address, datetime.now(UTC))


def check_chain(chain: list[bytes], address: Destination, at: datetime) -> None:
    """The chain (DER, leaf first) is the host's and ends in the pin. ModelKeyError
    `key-broker-untrusted`."""
    def untrusted(what: str, hint: str) -> ModelKeyError:
        return ModelKeyError(f"the key broker at {address}: {what}", code="key-broker-untrusted", hint=hint)

    anchors = [each for each in chain[1:] if hashlib.sha256(each).hexdigest() == address.root_sha256]
    if not 2 <= len(chain) <= MAX_CHAIN or not anchors:
        shown = ", ".join(hashlib.sha256(each).hexdigest() for each in chain[:MAX_CHAIN]) or "none"
        raise untrusted(f"none of its issuers' certificates has the SHA-256 {address.root_sha256}; it sent: {shown}",
                        "have the broker send its whole chain, root included, and pin that root in root_sha256")
    try:
        leaf, anchor, *between = (x509.load_der_x509_certificate(each) for each in (
            chain[0], anchors[0], *(each for each in chain[1:] if each != anchors[0])))
        verifier = PolicyBuilder().store(Store([anchor])).time(at).max_chain_depth(MAX_CHAIN).extension_policies(
            ca_policy=_ISSUER, ee_policy=_LEAF)
        verifier.build_server_verifier(_subject(address.host)).verify(leaf, between)
    except VerificationError as error:
        raise untrusted(f"its certificate does not verify: {printable(str(error))}",
                        "the certificate must be valid now, for this name, and issued under the pinned root") from None
    except Exception as error:  # noqa: BLE001 - the parser's errors are of many kinds
        raise untrusted(f"its certificate cannot be read ({type(error).__name__})",
                        "the broker's certificates must be plain X.509") from None


def _may_sign(_policy: Policy, _issuer: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    """An issuer without a key usage may sign certificates (RFC 5280, 6.1.4 (n)); one whose usage
    says otherwise may not."""
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("an issuer's key usage is not to sign certificates")


# The library's rules for the web, but for extensions that RFC 5280's path validation does not
# demand. OpenSSL's defaults, for one, make roots without a key usage.
_ISSUER = ExtensionPolicy.webpki_defaults_ca().may_be_present(
    x509.KeyUsage, Criticality.AGNOSTIC, _may_sign).may_be_present(
    x509.SubjectKeyIdentifier, Criticality.AGNOSTIC, None)
_LEAF = ExtensionPolicy.webpki_defaults_ee().may_be_present(
    x509.AuthorityKeyIdentifier, Criticality.AGNOSTIC, None)


def _subject(host: str) -> x509.DNSName | x509.IPAddress:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def printable(text: str) -> str:
    """Text of the other side, for a person at any console."""
    return ascii_only(text, MAX_SHOWN)


def _opened(address: Destination, seconds: float) -> _Pinned:
    """A verified connection. ModelKeyError `key-broker-untrusted`, OSError."""
    connection = _Pinned(address, seconds)
    try:
        connection.connect()
    except TlsError as error:
        raise ModelKeyError(f"the key broker at {address}: no TLS 1.3 connection "
                            f"({printable(error.strerror or type(error).__name__)})",
                            code="key-broker-untrusted") from None
    return connection


class Connection:
    """Requests to one broker, all before a deadline on the monotonic clock."""

    def __init__(self, address: Destination, deadline: float, *, patient: bool = True) -> None:
        """`patient`: a broker that does not answer is asked again until the deadline."""
        self.address, self._deadline, self._patient = address, deadline, patient
        self._http: _Pinned | None = None

    def request(self, method: str, path: str, body: bytes | None = None, cookie: str | None = None) -> HttpAnswer:
        """Ask once. ModelKeyError `key-broker-unreachable` or `key-broker-untrusted`."""
        headers = {"accept": "application/json", "connection": "keep-alive"}
        if body is not None:
            headers["content-type"] = "application/json"
        if cookie is not None:
            headers["cookie"] = cookie
        try:
            connection = self._http or self._connected()
            connection.stream.allow(MAX_ANSWER_BYTES + HEAD_BYTES, self._left())
            connection.request(method, self.address.prefix + path, body=body, headers=headers)
            answer = connection.getresponse()
            data = self._body(answer)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._unreachable(error) from None
        if answer.will_close:
            self.close()
        return HttpAnswer(answer.status, data, tuple(answer.headers.get_all("set-cookie") or ()))

    def identity(self, nonce: bytes) -> bytes:
        """Return the identity of the connection that the next request goes on: SHA-256 of the key
        that the broker shows, and the exporter for its nonce, 32 bytes each. ModelKeyError as
        `request`."""
        try:
            session = (self._http or self._connected()).session
        except OSError as error:
            raise self._unreachable(error) from None
        shown = x509.load_der_x509_certificate(session.certificates()[0]).public_key()
        spki = shown.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return hashlib.sha256(spki).digest() + session.exporter(nonce, RELEASE_LABEL)

    def _body(self, answer: http.client.HTTPResponse) -> bytes:
        """The body, which must not be too long."""
        data = answer.read(MAX_ANSWER_BYTES + 1)
        if len(data) > MAX_ANSWER_BYTES:
            raise ModelKeyError(f"the key broker at {self.address}: an answer of more than {MAX_ANSWER_BYTES} "
                                "bytes", code="key-broker-answer")
        if answer.length:
            raise http.client.IncompleteRead(data, answer.length)
        answer.close()  # or the connection takes no further request
        return data

    def close(self) -> None:
        """Hang up."""
        if self._http is not None:
            self._http.close()
            self._http = None

    def _connected(self) -> _Pinned:
        """A verified connection. Where it is patient, a broker that does not answer is asked again
        until the deadline.

        A caller learns what the last try met, even where the pause after it outlasts the deadline.
        """
        met: OSError | None = None
        while True:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise met or TimeoutError("no answer in time")
            try:
                connection = _opened(self.address, min(CONNECT_SECONDS, left))
            except OSError as error:
                met = error
                if not self._patient or time.monotonic() + PAUSE_SECONDS >= self._deadline:
                    raise
                time.sleep(PAUSE_SECONDS)
                continue
            self._http = connection
            return connection

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("no answer in time")
        return left

    def _unreachable(self, error: Exception) -> ModelKeyError:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return ModelKeyError(f"the key broker at {self.address} does not answer: "
                             f"{printable(text) or type(error).__name__}", code="key-broker-unreachable",
                             hint="is it running, and may this machine reach it? Nothing else is asked for the key")
