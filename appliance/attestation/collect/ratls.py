"""RA-TLS certificates: self-signed by a key that was made where the evidence in it says. See
docs/formats/ra-tls.md.

The evidence's statement names the certificate's key, and its nonce follows from the key: valid
evidence in another key's certificate is forged. Whether the evidence itself holds is `verify`'s
question, and whether it suffices is `validate`'s. This module makes and reads certificates; it
opens no connection.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.attestation import evidence
from appliance.attestation.binding import ServeStatement
from appliance.attestation.evidence import Evidence
from appliance.attestation.tpm import evidence as tpm_evidence
from appliance.attestation.x509 import chain, dice
from appliance.codec import cbor, der
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, UnsupportedEvidenceError
from appliance.platforms import TPM

MEDIA_TYPE = "application/vnd.appliance.evidence.v1+json"
CM_EVIDENCE = 1 << 2  # draft-ietf-rats-msg-wrap, cm-type: this message is evidence
NONCE_DOMAIN = b"appliance/ra-tls/v1\n"
MAX_BYTES = 44 << 10  # of the certificate in DER: TLS stacks differ in what they take, 64 KiB as a message being common
_SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "appliance RA-TLS")])
_OID = x509.ObjectIdentifier(dice.EVIDENCE_OID)


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


def spki(key: ec.EllipticCurvePublicKey) -> bytes:
    """DER SubjectPublicKeyInfo."""
    return key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def nonce_for(spki_of_key: bytes) -> bytes:
    """The nonce that a certificate's evidence answers: SHA-256 over domain and
    SubjectPublicKeyInfo, 32 bytes."""
    return hashlib.sha256(NONCE_DOMAIN + spki_of_key).digest()


def issue(key: ec.EllipticCurvePrivateKey, carried: Evidence, names: Sequence[str], *, not_before: datetime,
          not_after: datetime) -> x509.Certificate:
    """A certificate for `key` with this evidence. Raises MalformedEvidenceError if that is too
    large for one."""
    fields = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
                            "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    builder = x509.CertificateBuilder(
        issuer_name=_SUBJECT, subject_name=_SUBJECT, public_key=key.public_key(),
        serial_number=secrets.randbits(127) | 1 << 126, not_valid_before=not_before, not_valid_after=not_after)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(x509.KeyUsage(digital_signature=True, **fields), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
    wrapped = cbor.encode([MEDIA_TYPE, _fitting(carried).to_json(), CM_EVIDENCE])
    builder = builder.add_extension(x509.UnrecognizedExtension(_OID, wrapped), critical=False)
    made = builder.sign(key, hashes.SHA256())
    size = len(made.public_bytes(serialization.Encoding.DER))
    if size > MAX_BYTES:
        raise MalformedEvidenceError(f"RA-TLS: a certificate of {size} bytes, at most {MAX_BYTES}", code="ra-tls-size")
    return made


def _fitting(carried: Evidence) -> Evidence:
    """Evidence of a TPM goes without its event log where that is long; /v1/attestation has it."""
    if carried.platform != TPM.name or len(carried.report) <= MAX_BYTES // 2:
        return carried
    small = tpm_evidence.parse(carried.report_bytes()).without_log().to_bytes()
    return carried.model_copy(update={"report": base64.b64encode(small).decode("ascii")})


def is_ours(data: bytes) -> bool:
    """Whether a certificate (PEM or DER) carries the appliance's evidence; it may still be
    malformed."""
    try:
        extensions = der.certificate(dice.to_der(data)).extensions
        return _unwrap(extensions[dice.EVIDENCE_OID]) is not None
    except (MalformedEvidenceError, KeyError):
        return False


def _unwrap(extension: bytes) -> bytes | None:
    """The evidence in a conceptual message; None if it is of another type."""
    record = cbor.decode(extension)
    if not isinstance(record, list) or not record or record[0] != MEDIA_TYPE:
        return None
    if len(record) != 3 or not isinstance(record[1], bytes) or record[2] != CM_EVIDENCE:
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
        raise MalformedEvidenceError(f"RA-TLS: no evidence extension ({dice.EVIDENCE_OID})") from None
    wrapped = _unwrap(extension.public_bytes())
    if wrapped is None:
        raise UnsupportedEvidenceError(f"RA-TLS: the evidence in the certificate is not {MEDIA_TYPE}")
    found = evidence.parse(wrapped)
    statement, public = found.parsed_statement(), spki(key)
    if not isinstance(statement, ServeStatement):
        raise MalformedEvidenceError(f"RA-TLS: {statement.type} where a serve statement was expected")
    digest, nonce = hashlib.sha256(public).digest(), nonce_for(public)
    if statement.tls_spki_sha256 != digest.hex():
        raise ForgedEvidenceError("RA-TLS: the evidence is about another key than the certificate's", code="ra-tls-key")
    if found.proof.nonce != nonce.hex():
        raise ForgedEvidenceError("RA-TLS: the evidence was not made for a certificate", code="ra-tls-nonce")
    return CertifiedEvidence(found, statement, digest, nonce, _names(certificate), certificate.not_valid_before_utc,
                   certificate.not_valid_after_utc)


def _load(data: bytes) -> x509.Certificate:
    """The one DER certificate that `data` is."""
    if len(data) > MAX_BYTES:
        raise MalformedEvidenceError(f"RA-TLS: a certificate of {len(data)} bytes, at most {MAX_BYTES}")
    certificate = chain.load(data, "RA-TLS certificate")[0]
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
