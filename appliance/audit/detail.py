"""Detail of a request that the auditor alone reads: exact counts and times, and the asking API key.

It is encrypted by HPKE (RFC 9180), base mode, to the policy's `privacy.auditor_key`. Every detail
has one size, so that its ciphertext tells nothing. Where records do not name how a request ended,
an *outcome* does in its place: canonical JSON with spaces after it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from appliance.codec.canonical import canonical

INFO = b"appliance/audit-detail/v1\n"
NBYTES = 32 + 64 + 16  # encapsulated key, detail, tag
SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
FORM = struct.Struct("<QQQQ32s")
OUTCOME_INFO = b"appliance/audit-outcome/v1\n"
OUTCOME_TEXT = 640
OUTCOME_NBYTES = 32 + OUTCOME_TEXT + 16


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


def seal_outcome(facts: Mapping[str, object], public: bytes, request_id: str) -> bytes:
    """Encrypt how a request ended to an X25519 key (32 bytes), bound to its request. Facts that are
    None are left out. ValueError for more than `OUTCOME_TEXT` bytes."""
    text = canonical({name: value for name, value in facts.items() if value is not None})
    if len(text) > OUTCOME_TEXT:
        raise ValueError(f"an outcome of {len(text)} bytes, at most {OUTCOME_TEXT}")
    key = X25519PublicKey.from_public_bytes(public)
    return SUITE.encrypt(text.ljust(OUTCOME_TEXT), key, OUTCOME_INFO + request_id.encode())
