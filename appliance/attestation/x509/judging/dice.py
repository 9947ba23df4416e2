"""Evidence inside X.509 certificates: the TCG DICE conceptual message wrapper, OID 2.23.133.5.4.9.

Source: TCG "DICE Attestation Architecture", and for Intel quotes "Interoperable RA-TLS" of the
Confidential Computing Consortium: the extension holds a tagged CBOR value, whose tag says what the
evidence is (IANA registry of CBOR tags). This module reads bytes; it verifies nothing.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from appliance.attestation.evidence import EVIDENCE_OID
from appliance.codec import cborreader, der, strict
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, UnsupportedEvidenceError

INTEL_QUOTE, INTEL_REPORT, INTEL_OLD_REPORT = 60000, 60001, 60002  # CBOR tags
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]+)-----END CERTIFICATE-----")
_NAMES = {INTEL_REPORT: "an Intel TEE report (TDREPORT), which only the CPU that made it can check",
          INTEL_OLD_REPORT: "an Intel SGX report, which only the CPU that made it can check"}


@dataclass(frozen=True)
class DiceEvidence:
    """The contents of a certificate: the key it is for, an Intel quote, and the claims that the
    quote is to bind."""

    spki: bytes           # DER SubjectPublicKeyInfo of the certificate
    quote: bytes
    claims_buffer: bytes  # CBOR map with `pubkey-hash`, and `nonce` where there is one


def to_der(data: bytes) -> bytes:
    """The DER of a certificate in PEM or DER. Raises MalformedEvidenceError."""
    found = None if data[:1] == b"\x30" else _PEM.search(data)  # evidence in DER may itself hold PEM
    if found is None:
        return data
    try:
        return strict.base64(str(b"".join(found[1].split()), "ascii"))
    except ValueError:
        raise MalformedEvidenceError("certificate: not base64 between its PEM lines") from None


def holds_evidence(data: bytes) -> bool:
    """Whether a certificate in PEM or DER has the evidence extension."""
    try:
        return EVIDENCE_OID in der.certificate(to_der(data)).extensions
    except MalformedEvidenceError:
        return False


def parse(data: bytes) -> DiceEvidence:
    """The evidence in a certificate (PEM or DER).

    Raises MalformedEvidenceError, or UnsupportedEvidenceError naming a CBOR tag that is not known.
    """
    raw = der.certificate(to_der(data))
    if EVIDENCE_OID not in raw.extensions:
        raise MalformedEvidenceError(f"certificate: no evidence extension ({EVIDENCE_OID})")
    value = cborreader.decode(raw.extensions[EVIDENCE_OID])
    if not isinstance(value, cborreader.TaggedItem):
        raise UnsupportedEvidenceError("certificate: its evidence is CBOR without a tag, so nothing says what it is")
    if value.tag != INTEL_QUOTE:
        raise UnsupportedEvidenceError(
            f"certificate: its evidence has CBOR tag {value.tag}: {_NAMES.get(value.tag, 'not known here')}")
    items = value.value
    if not (isinstance(items, list) and len(items) == 2 and isinstance(items[0], bytes)
            and isinstance(items[1], bytes)):
        raise MalformedEvidenceError("certificate: an Intel quote in it is not an array of quote and claims")
    return DiceEvidence(raw.spki, items[0], items[1])


_HASHES = {1: "sha256", 7: "sha384", 8: "sha512"}  # IANA, "Named Information Hash Algorithm"


def check_binding(evidence: DiceEvidence, report_data: bytes) -> None:
    """Authentic report data bind the claims, and the claims the certificate's key.

    `report_data`: SHA-256 of the claims, then zeros. The claim `pubkey-hash` is a CBOR array of
    algorithm and digest over the SubjectPublicKeyInfo. Raises MalformedEvidenceError,
    ForgedEvidenceError `dice-claims`, `dice-key`.
    """
    if report_data != hashlib.sha256(evidence.claims_buffer).digest() + bytes(len(report_data) - 32):
        raise ForgedEvidenceError("certificate: the quote does not bind the claims", code="dice-claims")
    claims = cborreader.decode(evidence.claims_buffer)
    value = claims.get("pubkey-hash") if isinstance(claims, dict) else None
    entry = cborreader.decode(value) if isinstance(value, bytes) else None
    if not isinstance(entry, list) or len(entry) != 2:
        raise MalformedEvidenceError("certificate: the claims have no pubkey-hash")
    algorithm = _HASHES.get(entry[0]) if isinstance(entry[0], int) else None
    if algorithm is None:
        raise UnsupportedEvidenceError(f"certificate: pubkey-hash by algorithm {entry[0]!r} is not known")
    if hashlib.new(algorithm, evidence.spki).digest() != entry[1]:
        raise ForgedEvidenceError("certificate: the claims are about another key", code="dice-key")
