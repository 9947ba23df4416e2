"""Self-test of the cryptography: known answers, and refusals of what was tampered with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.boot import vectors

Answer = tuple[str, bytes, bytes]  # name, expected, found


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _gcm(vector: vectors.GcmVector) -> Iterator[tuple[str, bytes, bytes]]:
    cipher = AESGCM(vector.key)
    yield "encrypt", vector.sealed, cipher.encrypt(vector.nonce, vector.plain, vector.aad)
    yield "decrypt", vector.plain, cipher.decrypt(vector.nonce, vector.sealed, vector.aad)
    try:
        cipher.decrypt(vector.nonce, _flipped(vector.sealed), vector.aad)
    except InvalidTag:
        yield "refuse", b"refused", b"refused"
    else:
        yield "refuse", b"refused", b"accepted"


def _ed25519(vector: vectors.SignatureVector) -> Iterator[tuple[str, bytes, bytes]]:
    private = Ed25519PrivateKey.from_private_bytes(vector.private)
    public = Ed25519PublicKey.from_public_bytes(vector.public)
    yield "public-key", vector.public, private.public_key().public_bytes_raw()
    yield "sign", vector.signature, private.sign(vector.message)
    for part, signature, expected in (("verify", vector.signature, b"accepted"),
                                      ("refuse", _flipped(vector.signature), b"refused")):
        try:
            public.verify(signature, vector.message)
        except InvalidSignature:
            yield part, expected, b"refused"
        else:
            yield part, expected, b"accepted"


def answers() -> Iterator[Answer]:
    """Each known answer as (name, expected bytes, found bytes)."""
    for number, gcm in enumerate(vectors.GCM):
        yield from ((f"aes-256-gcm/{number}/{part}", *pair) for part, *pair in _gcm(gcm))  # type: ignore[misc]
    for number, sha in enumerate(vectors.SHA):
        yield f"{sha.algorithm}/{number}", sha.digest, hashlib.new(sha.algorithm, sha.message).digest()
    for number, hkdf in enumerate(vectors.HKDF):
        derived = HKDF(SHA256(), len(hkdf.output), hkdf.salt, hkdf.info).derive(hkdf.key)
        yield f"hkdf-sha-256/{number}", hkdf.output, derived
    for number, signature in enumerate(vectors.ED25519):
        yield from ((f"ed25519/{number}/{part}", *pair) for part, *pair in _ed25519(signature))  # type: ignore[misc]
