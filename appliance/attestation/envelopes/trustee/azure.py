"""Trustee's evidence of Azure confidential VMs: the paravisor's report, a quote of the virtual TPM,
and what proves the hardware: a VCEK for SEV-SNP, a TD quote for TDX.

    {"version": 1, "hcl_report": "SENM...", "vcek": "MIIF...", "tpm_quote": {"message": "ff54...", ...}}
    {"version": 1, "hcl_report": "SENM...", "td_quote": "BAAC...", "tpm_quote": {...}}

Bytes are base64url and hex there. Without `version` they are lists of numbers, the VCEK is PEM, and
SEV-SNP says `report` and `quote`.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict, tpm_pieces
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import UnsupportedEvidenceError

VERSIONS = (1, 2)
_WHAT = "Azure evidence in JSON"
_SNP, _TDX = {"version", "hcl_report", "vcek", "tpm_quote"}, {"version", "hcl_report", "td_quote", "tpm_quote"}
_OLD_SNP, _OLD_TDX = {"report", "vcek", "quote"}, _TDX - {"version"}


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return any(wanted - {"version"} <= set(found) for wanted in (_SNP, _TDX, _OLD_SNP))


def read(found: Members) -> EnvelopeParts:
    """The reports, the quote and the VCEK."""
    old = "version" not in found
    if not old and found["version"] not in VERSIONS:
        raise UnsupportedEvidenceError(f"{_WHAT}: version {str(found['version'])[:20]} is not known, 1 and 2 are",
                                       code="envelope-version", hint="take the reports out and examine those")
    if "report" in found:
        strict.only(found, _OLD_SNP, _WHAT)
        return _joined(strict.octets(found["report"], f"{_WHAT}: report"), found, "quote",
                       certificate=strict.text(found, "vcek", _WHAT).encode())
    strict.only(found, _TDX if "td_quote" in found else _SNP, _WHAT)
    azure = _bytes(found, "hcl_report", old=old)
    if "td_quote" in found:
        return _joined(azure, found, "tpm_quote", quote=_bytes(found, "td_quote", old=old))
    return _joined(azure, found, "tpm_quote", certificate=_bytes(found, "vcek", old=old))


def _bytes(found: Members, name: str, *, old: bool) -> bytes:
    return (strict.octets if old else strict.octets_in_base64)(found[name], f"{_WHAT}: {name}")


def _joined(azure: bytes, found: Members, name: str, *, certificate: bytes | None = None,
            quote: bytes | None = None) -> EnvelopeParts:
    pieces = tpm_pieces.quote(strict.mapping(found, name, _WHAT), f"{_WHAT}: {name}", azure=azure)
    told = (("version", str(found.get("version", 0))),)
    return EnvelopeParts(azure if quote is None else quote, () if certificate is None else (certificate,), tpm=pieces,
                   told=told)
