"""Trustee's evidence of a TPM alone: the attestation key and a quote in pieces.

    {"ak_public": "MIIB...", "tpm_quote": {"message": "/1RD...", "signature": "ABQA...", "pcrs": ["0000...", ...]}}

Key, message and signature (TPMT_SIGNATURE) are in base64, PCR values in hex. No certificate of the
key travels along.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import strict, tpm_pieces
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members

_WHAT = "TPM evidence in JSON"


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return {"ak_public", "tpm_quote"} <= set(found)


def read(found: Members) -> EnvelopeParts:
    """The quote with its key."""
    strict.only(found, ("ak_public", "tpm_quote"), _WHAT)
    key = strict.octets_in_base64(found["ak_public"], f"{_WHAT}: ak_public")
    pieces = tpm_pieces.quote(strict.mapping(found, "tpm_quote", _WHAT), f"{_WHAT}: tpm_quote", key=key)
    return EnvelopeParts(pieces.message, tpm=pieces)
