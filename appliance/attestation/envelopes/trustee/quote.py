"""A TPM quote of an Azure confidential VM in pieces, as the crate `az-cvm-vtpm` and Trustee write
it, without its key.

    {"message": "ff54...", "signature": "2afd...", "pcrs": ["f3a7...", ...]}

The Azure report that names the key lies beside the file.
"""

from __future__ import annotations

from appliance.attestation.envelopes.parts import tpm_pieces
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return {"message", "signature", "pcrs"} <= set(found)


def read(found: Members) -> EnvelopeParts:
    """The quote."""
    pieces = tpm_pieces.quote(found, "TPM quote in JSON")
    return EnvelopeParts(pieces.message, tpm=pieces)
