"""Every envelope that is known, one row each: its name, its reader, or why it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from appliance.attestation.envelopes import attestation_rs, tsm
from appliance.attestation.envelopes.dstack import document, maps
from appliance.attestation.envelopes.dstack import form as dstack
from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.attestation.envelopes.provider import chat, maa, tinfoil, token, trust_authority
from appliance.attestation.envelopes.trustee import azure, kbs, quote, snp, tdx, tpm
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError


class Row(NamedTuple):
    """An envelope in JSON. Of several rows the first that fits counts."""

    name: str
    fits: Callable[[Members], bool]
    read: Callable[[Members], EnvelopeParts]


def _having(*names: str) -> Callable[[Members], bool]:
    return lambda found: set(names) <= set(found)


def _refused(name: str) -> Callable[[Members], EnvelopeParts]:
    def read(found: Members) -> EnvelopeParts:
        raise UnsupportedEvidenceError(f"{name}: not a platform or format of this appliance, so it is refused",
                                       code="envelope-platform",
                                       hint="if there is an SEV-SNP report, TDX or TPM quote in it, examine that alone")
    return read


def _dstack_hex(found: Members) -> EnvelopeParts:
    data = strict.hexadecimal(found["attestation"], "dstack attestation in JSON: attestation")
    if not dstack.fits(data):
        raise MalformedEvidenceError("dstack attestation in JSON: attestation is not one of dstack's")
    carried, tail = dstack.read(data)
    if tail:
        raise MalformedEvidenceError(f"dstack attestation in JSON: {len(tail)} bytes follow the attestation")
    return carried


DSTACK = "dstack attestation"
_CSV, _CCA, _SE, _EAT, _GO_TPM = ("Hygon CSV evidence", "Arm CCA evidence", "IBM Secure Execution evidence",
                                   "Entity Attestation Token in JSON", "go-tpm-tools attestation in JSON")
ROWS = (
    Row("attestation-rs evidence", attestation_rs.fits, attestation_rs.read),
    Row("Trustee evidence, SEV-SNP", snp.fits, snp.read),
    Row("Trustee evidence, Azure confidential VM", azure.fits, azure.read),
    Row("Trustee evidence, TPM", tpm.fits, tpm.read),
    Row("Trustee evidence, TPM quote", quote.fits, quote.read),
    Row("MAA request", maa.fits, maa.read),
    Row("Trust Authority request", trust_authority.fits, trust_authority.read),
    Row("Trustee evidence, TDX", tdx.fits, tdx.read),
    Row("Trustee attestation", kbs.fits, kbs.read),
    Row("dstack quote in JSON", document.fits, document.read),
    Row("TSM report in JSON", tsm.fits, tsm.read),
    Row("dstack attestation in JSON", lambda found: isinstance(found.get("attestation"), str)
        and found["attestation"].startswith(("00", maps.HEX_BEGINNING)), _dstack_hex),
    Row("Tinfoil evidence", tinfoil.fits, tinfoil.read),
    Row("chat service's report in JSON", chat.fits, chat.read),
    Row(_GO_TPM, lambda found: {"akPub", "quotes"} <= set(found) or {"ak_pub", "quotes"} <= set(found),
        _refused(_GO_TPM)),
    Row(_CSV, _having("attestation_report", "cert_chain", "serial_number"), _refused(_CSV)),
    Row(_CCA, lambda found: set(found) == {"token"} and isinstance(found["token"], list), _refused(_CCA)),
    Row(_SE, _having("cuid", "encr_measurement_args"), _refused(_SE)),
    Row(_EAT, _having("eat_profile"), _refused(_EAT)),
)
NAMES = (DSTACK, token.NAME, *(row.name for row in ROWS))


def recognise(data: bytes) -> str | None:
    """The name of the envelope that `data` is; it may still be malformed."""
    if dstack.fits(data):
        return DSTACK
    if token.fits(data):
        return token.NAME
    read = strict.members(data)
    return None if read is None else next((row.name for row in ROWS if row.fits(read[0])), None)


def read(data: bytes) -> tuple[EnvelopeParts, bytes]:
    """Read the evidence in an envelope, and the bytes behind it. Raises MalformedEvidenceError or
    UnsupportedEvidenceError."""
    if dstack.fits(data):
        return dstack.read(data)
    if token.fits(data):
        raise token.refuse(data)
    found = strict.members(data)
    row = None if found is None else next((row for row in ROWS if row.fits(found[0])), None)
    if found is None or row is None:
        raise MalformedEvidenceError("envelope: neither JSON of a known form nor dstack's")
    return row.read(found[0]), found[1]
