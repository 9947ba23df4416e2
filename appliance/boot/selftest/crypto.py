"""Self-test of the cryptography: known answers, and refusals of what was tampered with."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap, aes_key_wrap

from appliance.boot.selftest import crypto_vectors

Answer = tuple[str, bytes, bytes]  # name, expected, found


def _flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


def _gcm(vector: crypto_vectors.GcmVector) -> Iterator[tuple[str, bytes, bytes]]:
    cipher = AESGCM(vector.key)
    yield "encrypt", vector.sealed, cipher.encrypt(vector.nonce, vector.plain, vector.aad)
    yield "decrypt", vector.plain, cipher.decrypt(vector.nonce, vector.sealed, vector.aad)
    try:
        cipher.decrypt(vector.nonce, _flipped(vector.sealed), vector.aad)
    except InvalidTag:
        yield "refuse", b"refused", b"refused"
    else:
        yield "refuse", b"refused", b"accepted"


def _ed25519(vector: crypto_vectors.SignatureVector) -> Iterator[tuple[str, bytes, bytes]]:
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


def _agreement(vector: crypto_vectors.AgreementVector) -> Iterator[tuple[str, bytes, bytes]]:
    private = ec.derive_private_key(int.from_bytes(vector.private, "big"), ec.SECP256R1())
    x, y = int.from_bytes(vector.x, "big"), int.from_bytes(vector.y, "big")
    shared = private.exchange(ec.ECDH(), ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key())
    yield "ecdh", vector.shared, shared
    yield "concat-kdf", vector.derived, ConcatKDFHash(SHA256(), len(vector.derived), vector.info).derive(shared)


def _wrap(vector: crypto_vectors.WrapVector) -> Iterator[tuple[str, bytes, bytes]]:
    yield "wrap", vector.wrapped, aes_key_wrap(vector.key, vector.plain)
    yield "unwrap", vector.plain, aes_key_unwrap(vector.key, vector.wrapped)
    try:
        aes_key_unwrap(vector.key, _flipped(vector.wrapped))
    except InvalidUnwrap:
        yield "refuse", b"refused", b"refused"
    else:
        yield "refuse", b"refused", b"accepted"


def answers() -> Iterator[Answer]:
    """Each known answer as (name, expected bytes, found bytes)."""
    for number, gcm in enumerate(crypto_vectors.GCM):
        yield from ((f"aes-256-gcm/{number}/{part}", *pair) for part, *pair in _gcm(gcm))  # type: ignore[misc]
    for number, sha in enumerate(crypto_vectors.SHA):
        yield f"{sha.algorithm}/{number}", sha.digest, hashlib.new(sha.algorithm, sha.message).digest()
    for number, hkdf in enumerate(crypto_vectors.HKDF):
        derived = HKDF(SHA256(), len(hkdf.output), hkdf.salt, hkdf.info).derive(hkdf.key)
        yield f"hkdf-sha-256/{number}", hkdf.output, derived
    for number, signature in enumerate(crypto_vectors.ED25519):
        yield from ((f"ed25519/{number}/{part}", *pair) for part, *pair in _ed25519(signature))  # type: ignore[misc]
    for number, agreement in enumerate(crypto_vectors.AGREEMENT):
        yield from ((f"p-256/{number}/{part}", *pair) for part, *pair in _agreement(agreement))  # type: ignore[misc]
    for number, wrap in enumerate(crypto_vectors.WRAP):
        yield from ((f"aes-256-kw/{number}/{part}", *pair) for part, *pair in _wrap(wrap))  # type: ignore[misc]
