"""Keys derived from keys, without a copy left behind."""

from __future__ import annotations

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_SALT_OF_NOBODY = bytes(32)


def hkdf_into(out: bytearray, secret: bytes | bytearray | memoryview, salt: bytes, info: bytes) -> None:
    """HKDF-SHA-256 (RFC 5869): fill `out` from `secret`.

    `cryptography` builds the derived key in a bytes object before it copies it, and frees that
    object unwiped. A second derivation, of zeros, takes the same memory and overwrites it.
    """
    HKDF(SHA256(), len(out), salt, info).derive_into(secret, out)
    HKDF(SHA256(), len(out), _SALT_OF_NOBODY, info).derive_into(bytes(len(secret)), bytearray(len(out)))
