"""Encrypting to a release key: JWE in flattened JSON, ECDH-ES+A256KW on P-256 and A256GCM (RFC
7516, RFC 7518).

The appliance decrypts with code of its own (boot/keyrelease_jwe.py); vectors made by a third
implementation (docs/formats/key-release-vectors.json) keep the two together.
"""

from __future__ import annotations

import base64
import json
import secrets
import struct
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import aes_key_wrap

ALGORITHM = b"ECDH-ES+A256KW"


def encode(data: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def public_key(jwk: Any) -> ec.EllipticCurvePublicKey:
    """The key in a JWK of exactly the form that the protocol has. ValueError for anything else."""
    if not isinstance(jwk, Mapping) or set(jwk) != {"kty", "crv", "alg", "x", "y"} or (
            jwk["kty"], jwk["crv"], jwk["alg"]) != ("EC", "P-256", ALGORITHM.decode()):
        raise ValueError("tee-pubkey: not a key on P-256 for ECDH-ES+A256KW")
    parts = [base64.b64decode(str(jwk[name]) + "=", b"-_", validate=True) for name in ("x", "y")]
    if any(len(part) != 32 or encode(part) != jwk[name] for part, name in zip(parts, ("x", "y"), strict=True)):
        raise ValueError("tee-pubkey: coordinates are not 32 bytes in base64url")
    x, y = (int.from_bytes(part, "big") for part in parts)
    return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()


def encrypt(plaintext: bytes | bytearray, key: ec.EllipticCurvePublicKey) -> bytes:
    """The JWE as JSON, under a fresh ephemeral key and a fresh content key."""
    ephemeral = ec.generate_private_key(ec.SECP256R1())
    numbers = ephemeral.public_key().public_numbers()
    header = {"alg": ALGORITHM.decode(), "enc": "A256GCM", "epk": {
        "crv": "P-256", "kty": "EC", "x": encode(numbers.x.to_bytes(32, "big")),
        "y": encode(numbers.y.to_bytes(32, "big"))}}
    protected = encode(json.dumps(header, separators=(",", ":")).encode())
    info = struct.pack(">I", len(ALGORITHM)) + ALGORITHM + struct.pack(">III", 0, 0, 256)
    wrapping = ConcatKDFHash(hashes.SHA256(), 32, info).derive(ephemeral.exchange(ec.ECDH(), key))
    content, iv = secrets.token_bytes(32), secrets.token_bytes(12)
    sealed = AESGCM(content).encrypt(iv, bytes(plaintext), protected.encode())
    return json.dumps({"protected": protected, "encrypted_key": encode(aes_key_wrap(wrapping, content)),
                       "iv": encode(iv), "ciphertext": encode(sealed[:-16]), "tag": encode(sealed[-16:])}).encode()
