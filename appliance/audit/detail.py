"""Detail of a request that the auditor alone reads: exact counts and times, and the asking API key.

It is encrypted by HPKE (RFC 9180), base mode, to the policy's `privacy.auditor_key`. Every detail
has one size, so that its ciphertext tells nothing.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

INFO = b"appliance/audit-detail/v1\n"
NBYTES = 32 + 64 + 16  # encapsulated key, detail, tag
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
FORM = struct.Struct("<QQQQ32s")


@dataclass(frozen=True)
class Detail:
    """Tokens exactly, microseconds as they were, and SHA-256 of the API key."""

    prompt_tokens: int
    completion_tokens: int
    duration_us: int
    first_token_us: int
    key_sha256: bytes


def seal(detail: Detail, public: bytes, request_id: str) -> bytes:
    """Encrypt a detail to an X25519 key (32 bytes), bound to its request."""
    key = X25519PublicKey.from_public_bytes(public)
    return SUITE.encrypt(FORM.pack(*astuple(detail)), key, INFO + request_id.encode())
