"""The message to Trustee's key broker: the CPU's evidence, with that of devices and the request's
own data beside it.

    {"runtime-data": {...}, "tee-evidence": {"primary_evidence": {...}, "additional_evidence": "{}"}}

Source: Trustee, "KBS attestation protocol". The inner object alone is read as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.attestation.envelopes.trustee import azure, snp, tdx, tpm
from appliance.errors import UnsupportedEvidenceError

_WHAT = "Trustee attestation"
_PLATFORMS: tuple[tuple[Callable[[Members], bool], Callable[[Members], EnvelopeParts]], ...] = tuple(
    (each.fits, each.read) for each in (snp, azure, tpm, tdx))
_EMPTY = (None, "", "{}")


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    inner = found.get("tee-evidence", found)
    return isinstance(inner, dict) and isinstance(inner.get("primary_evidence"), dict)


def read(found: Members) -> EnvelopeParts:
    """Read the CPU's evidence."""
    unjudged: list[str] = []
    if "tee-evidence" in found:
        strict.only(found, ("init-data", "runtime-data", "tee-evidence"), _WHAT)
        unjudged += [name for name in ("init-data", "runtime-data") if found.get(name)]
        found = found["tee-evidence"]
    strict.only(found, ("primary_evidence", "additional_evidence"), _WHAT)
    unjudged += ["additional_evidence"] if found.get("additional_evidence") not in _EMPTY else []
    primary = found["primary_evidence"]
    reading = next((reader for fitting, reader in _PLATFORMS if fitting(primary)), None)
    if reading is None:
        raise UnsupportedEvidenceError(f"{_WHAT}: its primary evidence is of no platform that is known",
                                       code="envelope-platform", hint="known: SEV-SNP, TDX, Azure's, TPM")
    carried = reading(primary)
    return replace(carried, unjudged=(*carried.unjudged, *unjudged))
