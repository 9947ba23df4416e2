"""A TPM quote whose message, signature and PCR values are members of a JSON object."""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.strict import Members
from appliance.attestation.tpm.abi import MAX_PCRS
from appliance.attestation.tpm.judging.files import TpmFiles
from appliance.errors import MalformedEvidenceError

_PCR_BYTES = 32  # these formats carry the SHA-256 bank


def quote(found: Members, what: str, *, key: bytes | None = None, azure: bytes | None = None) -> TpmFiles:
    """The pieces with all 24 values of the SHA-256 bank.

    The oldest writers give lists of numbers, the next hex, and the one for bare TPMs base64 for
    what is not a value.
    """
    strict.only(found, ("message", "signature", "pcrs"), what)
    message, signature = (_piece(found.get(name), f"{what}: {name}", based=key is not None)
                          for name in ("message", "signature"))
    values = strict.items(found, "pcrs", MAX_PCRS, what)
    if len(values) != MAX_PCRS:
        raise MalformedEvidenceError(f"{what}: pcrs has {len(values)} values, expected {MAX_PCRS}")
    bank = {number: _value(value, f"{what}: PCR {number}") for number, value in enumerate(values)}
    return TpmFiles(message, signature, key, "the envelope", None, None, None, azure, {"sha256": bank})


def _piece(value: object, what: str, *, based: bool) -> bytes:
    if isinstance(value, list):
        return strict.octets(value, what)
    return strict.octets_in_base64(value, what) if based else strict.hexadecimal(value, what)


def _value(value: object, what: str) -> bytes:
    found = strict.octets(value, what) if isinstance(value, list) else strict.hexadecimal(value, what)
    if len(found) != _PCR_BYTES:
        raise MalformedEvidenceError(f"{what} has {len(found)} bytes, expected {_PCR_BYTES}")
    return found
