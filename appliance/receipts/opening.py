"""The opening of a receipt that its client may not see: encrypted to the policy's auditor by HPKE
(RFC 9180), base mode.

Its size follows from the counts as the policy rounds them, so that it tells no more than `usage`.
docs/formats/receipt.md specifies it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from appliance.codec import strict
from appliance.codec.canonical import canonical

INFO: Final = b"appliance/receipt-opening/v1\n"
STEP: Final = 1024       # bytes: what is not of tokens is padded to multiples of it
TOKEN_BYTES: Final = 11  # for each token as the policy counts them: ten digits and a comma
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_OF_TOKENS = ("prompt_tokens", "tokens", "ending")


def seal(opening: Mapping[str, Any], public: bytes, request_id: str, rounding: int) -> str:
    """Encrypt a whole opening to an X25519 key (32 bytes), bound to its request; in base64url."""
    plain = canonical(dict(opening))
    counts = (len(opening["prompt_tokens"]), len(opening["tokens"]) + (opening["ending"] is not None))
    rest = canonical({name: value for name, value in opening.items() if name not in _OF_TOKENS})
    size = math.ceil((len(rest) + 128) / STEP) * STEP
    size += TOKEN_BYTES * sum(math.ceil(count / rounding) * rounding for count in counts)
    key = X25519PublicKey.from_public_bytes(public)
    return strict.to_base64url(SUITE.encrypt(plain.ljust(size), key, INFO + request_id.encode()))
