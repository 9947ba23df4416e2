"""Detail of a request that the auditor alone reads: exact counts and times, and the asking API key.

It is encrypted by HPKE (RFC 9180), base mode, to the policy's `privacy.auditor_key`. Every detail
has one size, so that its ciphertext tells nothing.
"""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from appliance.errors import NoteError

INFO = b"appliance/audit-detail/v1\n"
NBYTES = 32 + 64 + 16  # encapsulated key, detail, tag
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)
_FORM = struct.Struct("<QQQQ32s")


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
    return _SUITE.encrypt(_FORM.pack(*astuple(detail)), key, INFO + request_id.encode())


def opened(sealed: bytes, private: X25519PrivateKey, request_id: str) -> Detail:
    """Decrypt a detail of a request. NoteError where it is another's, or for another key."""
    try:
        plain = _SUITE.decrypt(sealed, private, INFO + request_id.encode())
        return Detail(*_FORM.unpack(plain))
    except (InvalidTag, ValueError, struct.error):
        raise NoteError("audit detail: it does not open", hint="is it the auditor's private key?") from None
