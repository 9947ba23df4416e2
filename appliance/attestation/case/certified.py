"""The contents of an RA-TLS certificate, once its own signature and its binding to the evidence
hold. See docs/formats/ra-tls.md.

Whether the evidence itself holds is `verify`'s question, and whether it suffices is `validate`'s.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.attestation.binding import ServeStatement
from appliance.attestation.case import reading
from appliance.attestation.collect import ratls
from appliance.attestation.evidence import EVIDENCE_OID, Evidence
from appliance.attestation.x509 import walks
from appliance.attestation.x509.judging import dice
from appliance.codec import cborreader, der
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, UnsupportedEvidenceError

_OID = x509.ObjectIdentifier(EVIDENCE_OID)


@dataclass(frozen=True)
class CertifiedEvidence:
    """The contents of a certificate that holds. `nonce` is the one that its evidence has to answer.
    """

    evidence: Evidence
    statement: ServeStatement
    spki_sha256: bytes
    nonce: bytes
    names: tuple[str, ...]
    not_before: datetime
    not_after: datetime


def is_ours(data: bytes) -> bool:
    """Whether a certificate (PEM or DER) carries the appliance's evidence; it may still be
    malformed."""
    try:
        extensions = der.certificate(dice.to_der(data)).extensions
        return _unwrap(extensions[EVIDENCE_OID]) is not None
    except (MalformedEvidenceError, KeyError):
        return False


def _unwrap(extension: bytes) -> bytes | None:
    """The evidence in a conceptual message; None if it is of another type."""
    record = cborreader.decode(extension)
    if not isinstance(record, list) or not record or record[0] != ratls.MEDIA_TYPE:
        return None
    if len(record) != 3 or not isinstance(record[1], bytes) or record[2] != ratls.CM_EVIDENCE:
        raise MalformedEvidenceError("RA-TLS: the evidence is not wrapped as [type, bytes, 4]")
    return record[1]


def parse(data: bytes) -> CertifiedEvidence:
    """Read the contents of a certificate (DER or PEM), after its own signature and its binding to
    the evidence hold.

    Whether the evidence holds, and the certificate is in force, is still to be asked. Raises
    MalformedEvidenceError, UnsupportedEvidenceError; ForgedEvidenceError `ra-tls-signature`,
    `ra-tls-key`, `ra-tls-nonce`.
    """
    certificate = _load(dice.to_der(data))
    key = _own_key(certificate)
    try:
        extension = certificate.extensions.get_extension_for_oid(_OID).value
    except x509.ExtensionNotFound:
        raise MalformedEvidenceError(f"RA-TLS: no evidence extension ({EVIDENCE_OID})") from None
    wrapped = _unwrap(extension.public_bytes())
    if wrapped is None:
        raise UnsupportedEvidenceError(f"RA-TLS: the evidence in the certificate is not {ratls.MEDIA_TYPE}")
    found = reading.parse(wrapped)
    statement, public = reading.statement_of(found), ratls.spki(key)
    if not isinstance(statement, ServeStatement):
        raise MalformedEvidenceError(f"RA-TLS: {statement.type} where a serve statement was expected")
    digest, nonce = hashlib.sha256(public).digest(), ratls.nonce_for(public)
    if statement.tls_spki_sha256 != digest.hex():
        raise ForgedEvidenceError("RA-TLS: the evidence is about another key than the certificate's", code="ra-tls-key")
    if found.proof.nonce != nonce.hex():
        raise ForgedEvidenceError("RA-TLS: the evidence was not made for a certificate", code="ra-tls-nonce")
    return CertifiedEvidence(found, statement, digest, nonce, _names(certificate), certificate.not_valid_before_utc,
                   certificate.not_valid_after_utc)


def _load(data: bytes) -> x509.Certificate:
    """The one DER certificate that `data` is."""
    if len(data) > ratls.MAX_BYTES:
        raise MalformedEvidenceError(f"RA-TLS: a certificate of {len(data)} bytes, at most {ratls.MAX_BYTES}")
    certificate = walks.load(data, "RA-TLS certificate")[0]
    if certificate.public_bytes(serialization.Encoding.DER) != data:  # PEM inside of DER would be another certificate
        raise MalformedEvidenceError("RA-TLS: not one certificate in DER")
    return certificate


def _own_key(certificate: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The certificate's P-256 key, which signed it with SHA-256."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise MalformedEvidenceError("RA-TLS: the certificate's key is not of P-256")
    if certificate.issuer != certificate.subject or not isinstance(certificate.signature_hash_algorithm, hashes.SHA256):
        raise MalformedEvidenceError("RA-TLS: the certificate is not signed by itself with SHA-256")
    try:
        key.verify(certificate.signature, certificate.tbs_certificate_bytes, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        raise ForgedEvidenceError(
            "RA-TLS: the certificate's own key did not sign it", code="ra-tls-signature") from None
    return key


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    for each in certificate.extensions:
        if isinstance(each.value, x509.SubjectAlternativeName):
            return tuple(each.value.get_values_for_type(x509.DNSName))
    return ()
