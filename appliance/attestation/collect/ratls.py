"""RA-TLS certificates: self-signed by a key that was made where the evidence in it says. See
docs/formats/ra-tls.md.

The evidence's statement names the certificate's key, and its nonce follows from the key: valid
evidence in another key's certificate is forged. Whether the evidence itself holds is `verify`'s
question, and whether it suffices is `validate`'s. This module makes certificates; it opens no
connection.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from appliance.attestation.collect.halves import COLLECTORS
from appliance.attestation.evidence import EVIDENCE_OID, Evidence
from appliance.codec import cbor
from appliance.errors import MalformedEvidenceError

MEDIA_TYPE = "application/vnd.appliance.evidence.v1+json"
CM_EVIDENCE = 1 << 2  # draft-ietf-rats-msg-wrap, cm-type: this message is evidence
NONCE_DOMAIN = b"appliance/ra-tls/v1\n"
MAX_BYTES = 44 << 10  # of the certificate in DER: TLS stacks differ in what they take, 64 KiB as a message being common
MAX_COLLATERAL_TEXT = 12 << 10  # of collateral in base64: the chain of an SEV-SNP chip, and no documents of Intel's
_SUBJECT = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "appliance RA-TLS")])


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
    carrier = x509.UnrecognizedExtension(x509.ObjectIdentifier(EVIDENCE_OID), wrapped)
    builder = builder.add_extension(carrier, critical=False)
    made = builder.sign(key, hashes.SHA256())
    size = len(made.public_bytes(serialization.Encoding.DER))
    if size > MAX_BYTES:
        raise MalformedEvidenceError(f"RA-TLS: a certificate of {size} bytes, at most {MAX_BYTES}", code="ra-tls-size")
    return made


def _fitting(carried: Evidence) -> Evidence:
    """Evidence without what makes it long, where it is; /v1/attestation has the whole. The report's
    own collateral comes first, and goes in first."""
    room, kept = MAX_COLLATERAL_TEXT, list[str]()
    for each in carried.collateral:
        if len(each) <= room:
            room -= len(each)
            kept.append(each)
    carried = carried.model_copy(update={"collateral": tuple(kept)})
    shortened = COLLECTORS[carried.platform].shortened
    if shortened is None or len(carried.report) <= MAX_BYTES // 2:
        return carried
    short = base64.b64encode(shortened(carried.report_bytes())).decode("ascii")
    return carried.model_copy(update={"report": short})
