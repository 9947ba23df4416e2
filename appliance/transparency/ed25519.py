"""Public keys of Ed25519 (RFC 8032), and signatures by them.

A key by which anybody can sign is refused. Under a point of small order a signature can be made
without a private key. An encoding that is not canonical is a second name of one key. OpenSSL
accepts both.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from appliance.errors import NoteError

KEY_BYTES: Final = 32
_PRIME: Final = 2**255 - 19
_ORDER_8: Final = ("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
                   "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a")
_SMALL_ORDER: Final = frozenset(  # y coordinates of all eight points
    {0, 1, _PRIME - 1} | {int.from_bytes(bytes.fromhex(each), "little") for each in _ORDER_8})


def fault(public: bytes) -> str | None:
    """Say why a key is not usable. Returns None for one that is."""
    if len(public) != KEY_BYTES:
        return f"it has {len(public)} bytes, not {KEY_BYTES}"
    y = int.from_bytes(public, "little") & (1 << 255) - 1
    if y >= _PRIME:
        return "its encoding is not canonical"
    return "it is a point of small order, by which anybody can sign" if y in _SMALL_ORDER else None


def require(public: bytes, whose: str) -> bytes:
    """Return a usable key. Raises NoteError, which names it as `whose`."""
    if (wrong := fault(public)) is not None:
        raise NoteError(f"{whose}: {wrong}", code="key-unusable", hint="take the key from whoever made it")
    return public


def verify(public: bytes, signature: bytes, data: bytes) -> None:
    """Check a signature of 64 bytes. Raises InvalidSignature where this key did not make it, or is
    not usable."""
    if fault(public) is not None:
        raise InvalidSignature
    Ed25519PublicKey.from_public_bytes(public).verify(signature, data)
