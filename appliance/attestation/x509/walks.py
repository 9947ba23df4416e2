"""Short, explicit certificate walks for vendors' hierarchies that RFC 5280 path building does not
fit.

`cryptography.x509.verification` refuses AMD's certificates (RSASSA-PSS, no subject alternative
name, serial number 0), so each rule is spelled out here: who issued what, with which signature
parameters, for which use, at which time. Each function that depends on the time takes `at`. Nothing
here knows a vendor's extensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from appliance.attestation.x509 import pem
from appliance.codec import der
from appliance.codec.printable import plain
from appliance.errors import (
    AttestationError,
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

MAX_AUTHORITIES, MAX_TRIED, MAX_NAME = 5, 32, 200
MIN_RSA_BITS = 2048
_PEM = b"-----BEGIN CERTIFICATE-----"


# Beside basic constraints and key usage: extensions that a short walk may meet as critical, and
# that ask nothing of it
READ = (x509.ExtendedKeyUsage.oid, x509.SubjectAlternativeName.oid, x509.CertificatePolicies.oid)


@contextmanager
def lenient() -> Iterator[None]:
    """The parser's doubts are not told: AMD numbers every VCEK 0, which RFC 5280 forbids, and
    others' names are too long. The signature counts here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lenient()
def load(data: bytes, what: str) -> list[x509.Certificate]:
    """The certificates in PEM text or one DER certificate, which zeros may follow. Raises
    MalformedEvidenceError naming `what`."""
    try:
        found = _of_pem(data) if _PEM in data else [x509.load_der_x509_certificate(der.unpadded(data))]
        for certificate in found:
            _read_whole(certificate)
    except Exception as error:  # noqa: BLE001 - the parser's errors are of many kinds, all of them: malformed
        raise MalformedEvidenceError(f"{what}: a certificate cannot be read ({type(error).__name__})") from None
    return found


def _of_pem(data: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError:  # as where the whole of an NV index was written as PEM
        bodies = [der.unpadded(pem.body(block)) for kind, block in pem.blocks(data) if kind == b"CERTIFICATE"]
        if not bodies:
            raise
        return [x509.load_der_x509_certificate(each) for each in bodies]


def _read_whole(certificate: x509.Certificate) -> None:
    """Touch everything that the parser reads lazily, so that later use raises nothing."""
    der.check_signature_whole(certificate.public_bytes(Encoding.DER))
    certificate.public_key()
    _ = (certificate.extensions, certificate.subject, certificate.issuer, certificate.version,
         certificate.not_valid_before_utc, certificate.not_valid_after_utc, certificate.serial_number,
         certificate.signature_hash_algorithm, certificate.signature_algorithm_parameters)


def fingerprint(certificate: x509.Certificate) -> str:
    """SHA-256 of the DER certificate, hex."""
    return certificate.fingerprint(hashes.SHA256()).hex()


def name_of(certificate: x509.Certificate) -> str:
    """The subject for people: see `shown`."""
    return shown(certificate.subject)


def shown(name: x509.Name) -> str:
    """A name for people: the common name, or the whole where there is not exactly one. Anybody can
    write one, so what a terminal would obey is taken out, and long ones are cut."""
    return plain(common_name(name) or name.rfc4514_string() or "(no name)", MAX_NAME)


def common_name(name: x509.Name) -> str | None:
    """The common name if there is exactly one."""
    found = name.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    return str(found[0].value) if len(found) == 1 else None


def check_issued(child: x509.Certificate, issuer: x509.Certificate) -> None:
    """`issuer` names and signed `child`, by whatever algorithm the certificate names consistently.

    Raises ForgedEvidenceError: `chain-name` or `chain-signature`; UnsupportedEvidenceError
    `chain-algorithm` for a hash in which two certificates can be made to collide.
    """
    if isinstance(child.signature_hash_algorithm, hashes.SHA1 | hashes.MD5):
        raise UnsupportedEvidenceError(
            f"certificate {name_of(child)}: signed with {child.signature_hash_algorithm.name}, which is too weak",
            code="chain-algorithm")
    if child.issuer != issuer.subject:
        raise ForgedEvidenceError(
            f"certificate {name_of(child)}: its issuer is not named as {name_of(issuer)} is", code="chain-name")
    try:
        child.verify_directly_issued_by(issuer)
    except (InvalidSignature, TypeError, ValueError):
        raise ForgedEvidenceError(
            f"certificate {name_of(child)}: the signature is not by {name_of(issuer)}",
            code="chain-signature") from None


def check_valid(certificate: x509.Certificate, at: datetime) -> None:
    """`at` is within the certificate's validity. Raises UncheckedEvidenceError
    `certificate-expired`: its time says nothing against what it signed."""
    first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if not in_time(certificate, at):
        raise UncheckedEvidenceError(
            f"certificate {name_of(certificate)}: valid from {first:%Y-%m-%d} to {last:%Y-%m-%d}, not at "
            f"{at:%Y-%m-%dT%H:%M:%SZ}", code="certificate-expired",
            hint="--at gives another time to judge by")


def in_time(certificate: x509.Certificate, at: datetime) -> bool:
    """Whether `at` is within the certificate's validity."""
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def check_authority(certificate: x509.Certificate, below: int, *, stated: bool = True) -> None:
    """A critical CA constraint with room for `below` authorities under it, and the right to sign
    certificates. It must be `stated` by a key usage, or not be denied by one, which is what RFC
    5280 demands (6.1.4 (n)).

    Raises ForgedEvidenceError `chain-authority`.
    """
    found = {extension.oid: extension for extension in certificate.extensions}
    constraints = found.get(x509.BasicConstraints.oid)
    usage = found.get(x509.KeyUsage.oid)
    wrong = None
    if constraints is None or not constraints.critical or not constraints.value.ca:
        wrong = "no certificate authority"
    elif constraints.value.path_length is not None and constraints.value.path_length < below:
        wrong = f"may have {constraints.value.path_length} authorities below it, not {below}"
    elif stated if usage is None else not usage.value.key_cert_sign:
        wrong = "its key may not sign certificates"
    if wrong:
        raise ForgedEvidenceError(f"certificate {name_of(certificate)}: {wrong}", code="chain-authority")


def check_critical(certificate: x509.Certificate, known: Iterable[x509.ObjectIdentifier] = ()) -> None:
    """Every critical extension is one that is checked. Raises ForgedEvidenceError
    `chain-extension`."""
    understood = {x509.BasicConstraints.oid, x509.KeyUsage.oid, *known}
    for extension in certificate.extensions:
        if extension.critical and extension.oid not in understood:
            raise ForgedEvidenceError(
                f"certificate {name_of(certificate)}: critical extension {extension.oid.dotted_string} is not known",
                code="chain-extension")


def named_issuers(child: x509.Certificate, candidates: Sequence[x509.Certificate]) -> list[x509.Certificate]:
    """The candidates that are named as the child's issuer; whether one signed it is still to be
    asked."""
    return [each for each in candidates if each.subject == child.issuer]


def issuer_of(child: x509.Certificate, candidates: Sequence[x509.Certificate]) -> x509.Certificate | None:
    """The first candidate that names and signed the child; None if none has the issuer's name.

    Raises as `check_issued` does where only namesakes of the issuer are at hand.
    """
    refused: ForgedEvidenceError | None = None
    for each in named_issuers(child, candidates):
        try:
            check_issued(child, each)
        except ForgedEvidenceError as error:
            refused = refused or error
        else:
            return each
    if refused is not None:
        raise refused
    return None


def fits(child: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` names and signed `child`."""
    try:
        check_issued(child, issuer)
    except ForgedEvidenceError:
        return False
    return True


def root_of(certificate: x509.Certificate, others: Iterable[x509.Certificate], *, at: datetime,
            roots: Mapping[str, str]) -> str:
    """The name of the pinned root above a certificate; `roots`: SHA-256 of a root certificate to
    its name.

    Raises ForgedEvidenceError if the chain does not hold at that time, UncheckedEvidenceError if an
    issuer is absent or the root is not pinned.
    """
    check_valid(certificate, at)
    return _Climb(list(others), at, roots).root_above(certificate, 0)


@dataclass
class _Climb:
    """A search for a way to a pinned root. A stray namesake of an issuer is never worse than none:
    the others are tried, `MAX_TRIED` in all."""

    pool: Sequence[x509.Certificate]
    at: datetime
    roots: Mapping[str, str]
    tried: int = 0

    def root_above(self, child: x509.Certificate, below: int) -> str:
        """The pinned root above `child`, which has so many authorities below it. Raises the first
        issuer's error where no way leads there."""
        if below == MAX_AUTHORITIES:
            raise ForgedEvidenceError(
                f"certificate {name_of(child)}: more than {MAX_AUTHORITIES} authorities in its chain",
                code="chain-authority")
        if issuer_of(child, self.pool) is None:
            raise UncheckedEvidenceError(
                f"the certificate of {shown(child.issuer)}, who issued {name_of(child)}, is absent")
        first: AttestationError | None = None
        for issuer in named_issuers(child, self.pool):
            if self.tried < MAX_TRIED and fits(child, issuer):
                self.tried += 1
                try:
                    return self._through(issuer, below)
                except AttestationError as error:
                    first = first or error
        raise first or UncheckedEvidenceError(f"certificate {name_of(child)}: more than {MAX_TRIED} issuers at hand")

    def _through(self, issuer: x509.Certificate, below: int) -> str:
        check_authority(issuer, below, stated=False)
        check_critical(issuer, READ)
        check_valid(issuer, self.at)
        print_of = fingerprint(issuer)
        if print_of in self.roots:
            return self.roots[print_of]
        if issuer.subject == issuer.issuer:
            raise UncheckedEvidenceError(f"root {name_of(issuer)} ({print_of}): not pinned")
        return self.root_above(issuer, below + 1)
