"""The signature of a simulated report, by the key that it carries itself. SIMULATED: PROVES
NOTHING."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature

from appliance.attestation.simulated import abi
from appliance.errors import ForgedEvidenceError
from appliance.transparency import ed25519


def verify(raw: bytes) -> tuple[bytes, bytes]:
    """Report data (64 bytes) and host data (32). Raises MalformedEvidenceError,
    ForgedEvidenceError."""
    report = abi.parse(raw)
    try:
        ed25519.verify(report.public_key, report.signature, report.signed)
    except InvalidSignature:
        raise ForgedEvidenceError("report: the signature does not match", code="report-signature") from None
    return report.report_data, report.host_data
