"""Certificate revocation lists (RFC 5280, section 5), including entries for certificates of another
issuer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.x509.walks import lenient, name_of
from appliance.codec import der
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError

_PEM = b"-----BEGIN X509 CRL-----"


SOON = timedelta(days=14)


def ends_soon(issued: datetime, ends: datetime, at: datetime) -> bool:
    """Whether a list or document has ended at a time, or does in the last `SOON` of its life, or
    the last third where it lives for less than 42 days."""
    return ends - at <= min(SOON, (ends - issued) / 3)


@dataclass(frozen=True)
class Revocation:
    """The newest list that was consulted: in force, or, where none was, one whose time has ended.
    """

    this_update: datetime
    next_update: datetime

    def in_force(self, at: datetime) -> bool:
        """Whether the list is the newest word at a time (RFC 5280, 5.1.2.5)."""
        return self.this_update <= at < self.next_update

    def ends_soon(self, at: datetime) -> bool:
        """Whether it is time for the next one."""
        return ends_soon(self.this_update, self.next_update, at)


@lenient()
def load(data: bytes, what: str) -> x509.CertificateRevocationList:
    """A list in PEM or DER. Raises MalformedEvidenceError naming `what`."""
    try:
        crl = x509.load_pem_x509_crl(data) if _PEM in data else x509.load_der_x509_crl(der.unpadded(data))
        der.check_signature_whole(crl.public_bytes(Encoding.DER))
        _ = (crl.issuer, crl.extensions, crl.last_update_utc, crl.next_update_utc, crl.signature_hash_algorithm,
             list(_entries(crl)))
    except Exception as error:  # noqa: BLE001 - the parser's errors are of many kinds, all of them: malformed
        raise MalformedEvidenceError(f"{what}: a revocation list cannot be read ({type(error).__name__})") from None
    return crl


def _entries(crl: x509.CertificateRevocationList) -> Iterable[tuple[x509.Name, int]]:
    """(issuer, serial number) of each revoked certificate; an entry's issuer holds until the next
    that names one."""
    issuer = crl.issuer
    for entry in crl:
        for extension in entry.extensions:
            if isinstance(extension.value, x509.CertificateIssuer):
                names = extension.value.get_values_for_type(x509.DirectoryName)
                issuer = names[0] if names else issuer
        yield issuer, entry.serial_number


def _partial(crl: x509.CertificateRevocationList) -> bool:
    """Whether a list may leave certificates out: a delta, one of a part (RFC 5280, sections 5.2.4
    and 5.2.5), or one with a critical extension that is not known here."""
    for extension in crl.extensions:
        part = extension.value
        if isinstance(part, x509.IssuingDistributionPoint):
            if (part.only_contains_user_certs or part.only_contains_ca_certs or part.only_contains_attribute_certs
                    or part.only_some_reasons):
                return True
        elif extension.critical or isinstance(part, x509.DeltaCRLIndicator):
            return True
    return False


@lenient()  # a list's names are read anew each time
def check(chain: Sequence[x509.Certificate], crls: Iterable[x509.CertificateRevocationList], *,
          signed: Callable[[x509.CertificateRevocationList, x509.Certificate], bool],
          at: datetime) -> Revocation | None:
    """No certificate of `chain` (leaf first, root last) is revoked by a list that its authorities
    signed.

    Lists of strangers are passed over. Lists of the future, or about some certificates only, count
    for nothing but what they revoke; None if none is left. Of lists whose time has ended the newest
    is returned where none is in force. A list that bears an authority's name but not its signature
    raises ForgedEvidenceError `crl-signature`, a revoked certificate `certificate-revoked`.
    """
    newest: Revocation | None = None
    for crl in crls:
        authority = next((each for each in chain[1:] if each.subject == crl.issuer), None)
        if authority is None:
            continue
        if not signed(crl, authority):
            raise ForgedEvidenceError(
                f"revocation list of {name_of(authority)}: the signature does not match", code="crl-signature")
        revoked = set(_entries(crl))
        for certificate in chain:
            if (certificate.issuer, certificate.serial_number) in revoked:
                raise ForgedEvidenceError(
                    f"certificate {name_of(certificate)}: revoked by {name_of(authority)}",
                    code="certificate-revoked")
        update = crl.next_update_utc
        if update is None or _partial(crl) or at < crl.last_update_utc:
            continue
        found = Revocation(crl.last_update_utc, update)
        if newest is None or _rank(found, at) > _rank(newest, at):
            newest = found
    return newest


def _rank(found: Revocation, at: datetime) -> tuple[bool, datetime]:
    """Lists in force before those that have ended, and the newest first."""
    return found.in_force(at), found.this_update
