"""The signature of a simulated report, by the key that it carries itself. SIMULATED: PROVES
NOTHING."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from appliance.attestation.simulated import abi
from appliance.errors import ForgedEvidenceError


def verify(raw: bytes) -> tuple[bytes, bytes]:
    """Report data (64 bytes) and host data (32). Raises MalformedEvidenceError,
    ForgedEvidenceError."""
    report = abi.parse(raw)
    try:
        Ed25519PublicKey.from_public_bytes(report.public_key).verify(report.signature, report.signed)
    except (InvalidSignature, ValueError):
        raise ForgedEvidenceError("report: the signature does not match", code="report-signature") from None
    return report.report_data, report.host_data
