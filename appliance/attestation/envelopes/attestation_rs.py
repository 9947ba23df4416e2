"""attestation-rs' evidence: the platform's name and the evidence in that platform's JSON.

    {"platform": "snp", "evidence": {"attestation_report": "AwAA...", "cert_chain": {"vcek": "MIIF..."}}}

The platforms' JSON is that of Trustee, with the SEV-SNP report in base64, and dstack's for
`dstack`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from appliance.attestation.envelopes.dstack import document
from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.attestation.envelopes.trustee import azure, snp, tdx
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

_WHAT = "attestation-rs evidence"
Room = tuple[Callable[[Members], bool], Callable[[Members], EnvelopeParts]]
_SNP, _TDX, _AZURE = ((each.fits, each.read) for each in (snp, tdx, azure))
PLATFORMS: Mapping[str, Room] = {
    "snp": _SNP, "gcp-snp": _SNP, "tdx": _TDX, "gcp-tdx": _TDX, "az-snp": _AZURE, "az-tdx": _AZURE,
    "dstack": (document.fits, document.read)}


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return isinstance(found.get("platform"), str) and isinstance(found.get("evidence"), dict)


def read(found: Members) -> EnvelopeParts:
    """Read the evidence in the platform's JSON."""
    strict.only(found, ("platform", "evidence", "nvidia_gpu"), _WHAT)
    platform = found["platform"]
    if platform not in PLATFORMS:
        raise UnsupportedEvidenceError(f"{_WHAT}: the platform {platform[:40]!r} is not one of this appliance",
                                       code="envelope-platform", hint="known: " + ", ".join(PLATFORMS))
    fitting, reading = PLATFORMS[platform]
    if not fitting(found["evidence"]):
        raise MalformedEvidenceError(f"{_WHAT}: its evidence is not of the platform that it names, {platform}")
    carried = reading(found["evidence"])
    gpu = ("nvidia_gpu",) if found.get("nvidia_gpu") else ()
    return replace(carried, told=(("platform", platform), *carried.told), unjudged=(*carried.unjudged, *gpu))
