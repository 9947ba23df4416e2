"""Fuzz target: TPM quotes, signatures, keys, PCR values and event logs from strangers.

The first byte of an input says what the rest is; everything else is genuine.
"""

from __future__ import annotations

import functools

from appliance.attestation.tpm.judging import verify as tpm_verify
from appliance.attestation.tpm.judging.files import parse_pcrs
from appliance.errors import AttestationError
from tests.support import fake_tpm

_PARTS = ("message", "signature", "key", "pcrs", "log")


@functools.cache
def _genuine() -> dict[str, bytes]:
    message = fake_tpm.quote()
    return {"message": message, "signature": fake_tpm.sign(message), "key": fake_tpm.public(),
            "pcrs": fake_tpm.pcr_file(), "log": fake_tpm.event_log([(9, 1, b"kernel"), (8, 13, b"command line")])}


def fuzz(data: bytes) -> None:
    """Verify with one part from the input."""
    which = _PARTS[data[0] % len(_PARTS)] if data else "message"
    parts = {**_genuine(), which: data[1:]}
    try:
        claims = tpm_verify.verify(
            parts["message"], parts["signature"], tpm_verify.load_key(parts["key"]), nonce=fake_tpm.NONCE,
            pcrs=parse_pcrs(parts["pcrs"]), log=parts["log"])
    except AttestationError:
        return
    if claims.quote.signed != _genuine()["message"] or claims.pcrs["sha256"] != fake_tpm.PCRS:
        raise AssertionError("verified what nobody signed")


def seeds() -> list[bytes]:
    """Each genuine part behind its number."""
    return [bytes((number,)) + _genuine()[part] for number, part in enumerate(_PARTS)]
