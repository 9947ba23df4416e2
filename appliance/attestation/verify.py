"""From evidence to authentic claims: signature, binding, nonce. Whether the claims suffice is validate's question.

Nothing here knows a policy. Order matters: bytes are parsed (abi), then the signature is checked, then the report
data is recomputed from the statement; only after that may a field of the statement be believed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from appliance.attestation import merkle, simulated_abi
from appliance.attestation.binding import Statement, report_data
from appliance.attestation.evidence import SIMULATED, Evidence
from appliance.errors import AttestationError, ForgedEvidenceError


@dataclass(frozen=True)
class Claims:
    """What authentic evidence says: by whom (platform), about what (statement), to whom (nonce)."""

    platform: str
    statement: Statement
    nonce: bytes
    host_data: bytes  # what the platform was launched with: 32 bytes


def verify(evidence: Evidence) -> Claims:
    """The claims of authentic evidence.

    Raises MalformedEvidenceError on bad bytes, ForgedEvidenceError when a signature, the report data or the nonce's
    proof does not hold, AttestationError for a platform that this version cannot verify.
    """
    if evidence.platform != SIMULATED:
        raise AttestationError(
            f"platform: {evidence.platform} evidence cannot be verified by this version", code="platform-unsupported")
    statement = evidence.parsed_statement()
    report = simulated_abi.parse(evidence.report_bytes())
    try:
        Ed25519PublicKey.from_public_bytes(report.public_key).verify(report.signature, report.signed)
    except (InvalidSignature, ValueError):
        raise ForgedEvidenceError("report: the signature does not match", code="report-signature") from None
    if not hmac.compare_digest(report.report_data, report_data(statement)):
        raise ForgedEvidenceError(
            "report: report_data is not the digest of the statement", code="report-data-mismatch")
    nonce = bytes.fromhex(evidence.proof.nonce)
    path = [bytes.fromhex(sibling) for sibling in evidence.proof.path]
    nonces = statement.nonces
    if not merkle.included(nonce, evidence.proof.index, nonces.size, path, bytes.fromhex(nonces.root)):
        raise ForgedEvidenceError(
            "proof: the nonce is not in the tree that the statement names", code="nonce-proof")
    return Claims(evidence.platform, statement, nonce, report.host_data)
