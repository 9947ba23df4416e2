"""The answer of Linux's configfs-tsm as JSON: its files by name, in base64.

    {"provider": "sev_guest", "outblob": "AwAA...", "auxblob": "...", "manifestblob": "..."}

Source: Linux, Documentation/ABI/testing/configfs-tsm-report. Go programs that marshal the answer of
go-configfs-tsm as it is write `Provider`, `OutBlob` and `AuxBlob`.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import UnsupportedEvidenceError

PROVIDERS = {"sev_guest": "AMD SEV-SNP", "tdx_guest": "Intel TDX"}
_WHAT = "TSM report in JSON"
_NAMES = {"provider": "provider", "outblob": "outblob", "auxblob": "auxblob", "manifestblob": "manifestblob",
          "service": "service", "Provider": "provider", "OutBlob": "outblob", "AuxBlob": "auxblob",
          "ManifestBlob": "manifestblob"}


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return {"outblob", "provider"} <= set(found) or {"OutBlob", "Provider"} <= set(found)


def read(found: Members) -> EnvelopeParts:
    """The report with the certificate table of its auxiliary blob, or the quote."""
    strict.only(found, _NAMES, _WHAT)
    named = {_NAMES[name]: value for name, value in found.items()}
    if len(named) != len(found):
        raise UnsupportedEvidenceError(f"{_WHAT}: a member stands in both spellings", code="envelope-member",
                                       hint="names are all in lower case, or all as Go spells them")
    provider = strict.text(named, "provider", _WHAT).rstrip("\n")
    if provider not in PROVIDERS:
        raise UnsupportedEvidenceError(
            f"{_WHAT}: the provider {provider[:40]!r} is not a platform of this appliance", code="envelope-platform",
            hint="known: " + ", ".join(PROVIDERS))
    report = strict.octets_in_base64(named["outblob"], f"{_WHAT}: outblob")
    beside = strict.octets_in_base64(named["auxblob"], f"{_WHAT}: auxblob") if named.get("auxblob") else b""
    unjudged = [name for name in ("manifestblob", "service") if named.get(name)]
    if provider == "sev_guest":
        return EnvelopeParts(report + beside, told=(("provider", provider),), unjudged=tuple(unjudged))
    return EnvelopeParts(report, told=(("provider", provider),),
                   unjudged=(*unjudged, *(["auxblob"] if beside else [])))
