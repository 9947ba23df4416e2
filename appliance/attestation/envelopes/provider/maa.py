"""A request to Microsoft's attestation service (MAA): an SEV-SNP report with its certificates, or a
TDX quote, and data of the guest beside it.

    {"report": "eyJTbnBSZXBvcnQ...", "runtimeData": {"data": "...", "dataType": "JSON"}}
    {"quote": "BAAC...", "runtimeData": {...}}
    {"SnpReport": "AwAA...", "VcekCertChain": "LS0t...", "Endorsements": "eyJV..."}

The report of the first is the third in base64url. Endorsements of the firmware are not judged.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import MalformedEvidenceError

_WHAT = "MAA request"
_INNER = ("SnpReport", "VcekCertChain", "Endorsements")
_BESIDE = ("runtimeData", "initTimeData", "draftPolicyForAttestation", "nonce")
MAX_CHAIN = 8


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    evidence = found.get("report", found.get("quote"))
    return isinstance(found.get("SnpReport"), str) or (isinstance(evidence, str) and "runtimeData" in found)


def read(found: Members) -> EnvelopeParts:
    """The report with its certificates, or the quote."""
    if "SnpReport" in found:
        return _report(found, ())
    unjudged = tuple(name for name in _BESIDE if found.get(name) is not None)
    if "quote" in found:
        strict.only(found, ("quote", *_BESIDE), _WHAT)
        return EnvelopeParts(strict.octets_in_base64(found["quote"], f"{_WHAT}: quote"), unjudged=unjudged)
    strict.only(found, ("report", *_BESIDE), _WHAT)
    inner = strict.members(strict.octets_in_base64(found["report"], f"{_WHAT}: report"))
    if inner is None or inner[1]:
        raise MalformedEvidenceError(f"{_WHAT}: its report is not JSON in base64url")
    return _report(inner[0], unjudged)


def _report(found: Members, unjudged: tuple[str, ...]) -> EnvelopeParts:
    strict.only(found, _INNER, _WHAT)
    report = strict.octets_in_base64(found.get("SnpReport"), f"{_WHAT}: SnpReport")
    chain = strict.octets_in_base64(found["VcekCertChain"], f"{_WHAT}: VcekCertChain") if found.get(
        "VcekCertChain") else b""
    endorsed = ("Endorsements",) if found.get("Endorsements") else ()
    return EnvelopeParts(report, tuple(_certificates(chain)), unjudged=(*unjudged, *endorsed))


def _certificates(chain: bytes) -> list[bytes]:
    """The certificates of a chain in PEM, one by one; anything else is passed on as it is."""
    end = b"-----END CERTIFICATE-----"
    parts = [part.lstrip() + end for part in chain.split(end)[:-1]]
    if len(parts) > MAX_CHAIN:
        raise MalformedEvidenceError(f"{_WHAT}: VcekCertChain has {len(parts)} certificates, at most {MAX_CHAIN}")
    return parts or ([chain] if chain else [])
