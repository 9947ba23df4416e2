"""A challenge to a TPM and the answer: the bytes of credential activation. The format:
docs/formats/tpm-activation.md.

`judging/protection` makes a challenge, `chip/activate` has a TPM open it.
"""

from __future__ import annotations

import hmac

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError

FORMAT = "appliance/tpm-activation/v1"
SECRET_BYTES, ANSWER_BYTES = 32, 32
MAX_CHALLENGE_BYTES, MAX_BLOB_BYTES, MAX_SEED_BYTES = 1024, 132, 512  # a blob by SHA-512; a seed by RSA of 4,096 bits


def parse_challenge(data: bytes) -> tuple[bytes, bytes]:
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET without their sizes. Raises
    MalformedEvidenceError."""
    if len(data) > MAX_CHALLENGE_BYTES:
        raise MalformedEvidenceError(f"activation: a challenge of {len(data)} bytes, at most {MAX_CHALLENGE_BYTES}")
    cursor = Cursor(data, "activation", "big")
    blob, encrypted = cursor.sized(2, "credential"), cursor.sized(2, "encrypted secret")
    cursor.end()
    if not 0 < len(blob) <= MAX_BLOB_BYTES or not 0 < len(encrypted) <= MAX_SEED_BYTES:
        raise MalformedEvidenceError(f"activation: a credential of {len(blob)} and a secret of {len(encrypted)} bytes")
    return blob, encrypted


def answer(secret: bytes, question: bytes) -> bytes:
    """The proof that `secret` was found in a challenge, without giving it away: 32 bytes."""
    return hmac.digest(secret, FORMAT.encode() + b"\n" + question, "sha256")
