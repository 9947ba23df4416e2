"""Endorsement key certificates: whether a TPM's maker, one of those that the verifier names,
certified this key.

Source: TCG "EK Credential Profile for TPM Family 2.0", version 2.5, section 3 (fields of the
certificate). There is no root in here: makers of TPMs are many, and a virtual TPM's maker is
whoever runs it. The verifier names roots, or the certificates of its own machines' endorsement
keys.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from appliance.attestation.case.terms import EkRoots
from appliance.attestation.tpm.judging import protection, verify
from appliance.attestation.tpm.judging.protection import EndorsementPublic
from appliance.attestation.x509 import walks
from appliance.errors import (
    ForgedEvidenceError,
    MalformedEvidenceError,
    UncheckedEvidenceError,
    UnsupportedEvidenceError,
)

EK_USE = x509.ObjectIdentifier("2.23.133.8.1")  # tcg-kp-EKCertificate
HINT = "--ek-roots is a folder with the TPM maker's root and intermediate certificates, or the machine's own EK " \
       "certificate"


@dataclass(frozen=True)
class EndorsementKey:
    """A key whose certificate holds: `root` is the name of the authority, or of the certificate
    that was named."""

    key: EndorsementPublic
    root: str

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the SubjectPublicKeyInfo, hex: which TPM it is."""
        return hashlib.sha256(verify.spki(self.key)).hexdigest()


def name_of(data: bytes) -> bytes:
    """Return the name of the endorsement key of a certificate (DER or PEM), or of the key itself
    (PEM, DER or TPM2B_PUBLIC): SHA-256 of its SubjectPublicKeyInfo.

    Raises MalformedEvidenceError, UnsupportedEvidenceError for a key of no default template, and
    ForgedEvidenceError for a key that its certificate or its TPM has for another use.
    """
    try:
        found = verify.load_key(data)
    except MalformedEvidenceError:
        raise MalformedEvidenceError("endorsement key: neither certificate nor public key can be read") from None
    if found.area is not None and found.area.attests:
        raise ForgedEvidenceError("endorsement key: this is an attestation key, which signs and opens no challenge",
                                  code="tpm-ek-certificate")
    protection.scheme_of(found.key)
    with contextlib.suppress(MalformedEvidenceError):  # a key has no certificate around it
        _check_use(walks.load(data, "EK certificate")[0])
    return hashlib.sha256(found.spki()).digest()


def roots_of(found: Sequence[x509.Certificate], folder: Path) -> EkRoots:
    """The roots among the certificates of a folder. Raises UncheckedEvidenceError if there is none.
    """
    pins = {walks.fingerprint(each): walks.name_of(each) for each in found
            if _is_self_signed(each) or not _is_authority(each)}
    if not pins:
        raise UncheckedEvidenceError(f"{folder}: no self-signed authority and no EK certificate is in it",
                                     code="tpm-ek-roots", hint=HINT)
    return EkRoots(pins, tuple(found))


def _is_authority(certificate: x509.Certificate) -> bool:
    return any(isinstance(each.value, x509.BasicConstraints) and each.value.ca for each in certificate.extensions)


def _is_self_signed(certificate: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(certificate)
    except (InvalidSignature, TypeError, ValueError):
        return False
    return _is_authority(certificate)


def check(data: bytes, roots: EkRoots, others: Iterable[x509.Certificate], *, at: datetime) -> EndorsementKey:
    """The endorsement key of a certificate in DER that holds under `roots`; `others` help to build
    the chain.

    Raises MalformedEvidenceError, and UnsupportedEvidenceError for a key of no default template.
    Raises ForgedEvidenceError if it is not a certificate of an endorsement key, or its chain does
    not hold. Raises UncheckedEvidenceError `certificate-expired`, or `tpm-ek-root` if an issuer is
    absent or the root is none of `roots`.
    """
    certificate = walks.load(data, "EK certificate")[0]
    key = certificate.public_key()
    if not isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey):
        raise UnsupportedEvidenceError(f"EK certificate: a key of type {type(key).__name__}", code="tpm-algorithm")
    protection.scheme_of(key)
    _check_use(certificate)
    walks.check_critical(certificate, walks.READ)
    walks.check_valid(certificate, at)
    own = roots.pins.get(walks.fingerprint(certificate))
    if own is not None:
        return EndorsementKey(key, f"its own certificate ({own})")
    try:
        root = walks.root_of(certificate, (*roots.certificates, *others), at=at, roots=roots.pins)
    except UncheckedEvidenceError as error:
        if error.code == "certificate-expired":
            raise
        raise UncheckedEvidenceError(f"EK certificate: {error.summary}", code="tpm-ek-root", hint=HINT) from None
    return EndorsementKey(key, root)


def _check_use(certificate: x509.Certificate) -> None:
    """Issued for an endorsement key: no authority, its key encrypts or agrees, and any use named
    includes this one."""
    wrong = "an authority's" if _is_authority(certificate) else None
    for extension in certificate.extensions:
        value = extension.value
        if isinstance(value, x509.KeyUsage) and not (value.key_encipherment or value.key_agreement):
            wrong = "a key's that neither encrypts nor agrees on keys"
        if isinstance(value, x509.ExtendedKeyUsage) and EK_USE not in list(value):
            wrong = f"issued for another use than {EK_USE.dotted_string}"
    if wrong:
        raise ForgedEvidenceError(f"EK certificate {walks.name_of(certificate)}: it is {wrong}",
                                  code="tpm-ek-certificate")
