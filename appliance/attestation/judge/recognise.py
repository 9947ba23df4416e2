"""The kind of a file of evidence, by its bytes alone."""

from __future__ import annotations

from appliance.attestation.case import reading
from appliance.attestation.envelopes import registry
from appliance.attestation.judge.halves import JUDGES
from appliance.attestation.snp.judging import judge
from appliance.attestation.snp.layout import REPORT_BYTES
from appliance.attestation.x509.judging import dice

CERTIFICATE, APPLIANCE = "X.509 certificate", "appliance evidence"


def recognise(data: bytes) -> str | None:
    """One of the names above, a kind of a platform, an envelope's name, or None. A recognised file
    may still be malformed."""
    for half in reversed(tuple(JUDGES.values())):  # a magic of our own comes before a vendor's layout
        kind = half.recognise(data)
        if kind is not None:
            return kind
    if data.lstrip().startswith(b"-----BEGIN CERTIFICATE-----") or (
            data[:1] == b"\x30" and dice.holds_evidence(data)):
        return CERTIFICATE
    envelope = registry.recognise(data)
    if envelope is not None:
        return envelope
    if data.lstrip()[:1] == b"{" and any(form.encode() in data for form in reading.FORMATS):
        return APPLIANCE
    return judge.KIND if len(data) == REPORT_BYTES else None
