"""Trustee's SEV-SNP evidence: the report as JSON or in base64, and the certificates that the host
gave.

    {"attestation_report": {...}, "cert_chain": [{"cert_type": "VCEK", "data": [48, 130, ...]}]}

attestation-rs writes the report in base64 and the chain as an object with `vcek`, `ask` and `ark`.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import sev_json, strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members

MAX_CERTIFICATES = 16
_WHAT = "SEV-SNP evidence in JSON"


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    report = found.get("attestation_report")
    return isinstance(report, str) or (isinstance(report, dict) and "reported_tcb" in report)


def read(found: Members) -> EnvelopeParts:
    """The report and its certificates."""
    strict.only(found, ("attestation_report", "cert_chain"), _WHAT)
    report = found["attestation_report"]
    raw = (sev_json.report(report) if isinstance(report, dict)
           else strict.octets_in_base64(report, f"{_WHAT}: attestation_report"))
    return EnvelopeParts(raw, tuple(_certificates(found)))


def _certificates(found: Members) -> list[bytes]:
    chain = found.get("cert_chain")
    if chain is None:
        return []
    if isinstance(chain, dict):
        strict.only(chain, ("vcek", "ask", "ark"), _WHAT)
        return [strict.octets_in_base64(each, f"{_WHAT}: {name}") for name, each in chain.items() if each is not None]
    listed = strict.items(found, "cert_chain", MAX_CERTIFICATES, _WHAT)
    return [strict.octets(each.get("data") if isinstance(each, dict) else None, f"{_WHAT}: a certificate")
            for each in listed]
