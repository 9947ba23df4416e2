"""The release key, and what a broker encrypts to it: JSON Web Encryption in its flattened form (RFC
7516, 7.2.2).

One algorithm and no choice: ECDH-ES+A256KW on P-256 (RFC 7518, 4.6) and A256GCM (5.3). The sender
cannot pick a weaker one, and fields that this does not need are refused. All primitives are of
`cryptography`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from appliance.codec.brokerjson import base64url, parse, refuse, strings
from appliance.codec.strict import to_base64url
from appliance.secure.wipe import wipe

ALGORITHM, ENCRYPTION, CURVE = "ECDH-ES+A256KW", "A256GCM", "P-256"
COORDINATE_BYTES = 32
MAX_PLAINTEXT_BYTES = 4096
_WRAPPED_BYTES, _IV_BYTES, _TAG_BYTES = 40, 12, 16


def new_key() -> ec.EllipticCurvePrivateKey:
    """A release key: made for one handshake, never written anywhere."""
    return ec.generate_private_key(ec.SECP256R1())


def public_jwk(key: ec.EllipticCurvePublicKey) -> dict[str, str]:
    """The public key as a JSON Web Key (RFC 7517), with the algorithm that it is for."""
    numbers = key.public_numbers()
    return {"alg": ALGORITHM, "crv": CURVE, "kty": "EC", "x": _coordinate(numbers.x), "y": _coordinate(numbers.y)}


def spki(key: ec.EllipticCurvePublicKey) -> bytes:
    """DER SubjectPublicKeyInfo of the public key (uncompressed point): what evidence binds the
    SHA-256 of."""
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def read_jwk(jwk: Mapping[str, str], what: str) -> ec.EllipticCurvePublicKey:
    """A P-256 public key from the members crv, kty, x and y. ModelKeyError, also for a point off
    the curve."""
    if (jwk.get("kty"), jwk.get("crv")) != ("EC", CURVE):
        raise refuse(f"{what} is no key on {CURVE}")
    size = range(COORDINATE_BYTES, COORDINATE_BYTES + 1)
    x, y = (int.from_bytes(base64url(jwk[name], f"{what}.{name}", size), "big") for name in ("x", "y"))
    try:
        return ec.EllipticCurvePublicNumbers(x, y, ec.SECP256R1()).public_key()
    except ValueError:
        raise refuse(f"{what} is no point on {CURVE}") from None


def _coordinate(value: int) -> str:
    return to_base64url(value.to_bytes(COORDINATE_BYTES, "big"))


def wrapping_key(shared: bytes) -> bytearray:
    """The key that wraps the content key: Concat KDF with SHA-256 (RFC 7518, 4.6.2), 32 bytes, no
    party info."""
    info = struct.pack(">I", len(ALGORITHM)) + ALGORITHM.encode() + struct.pack(">III", 0, 0, 256)
    out = bytearray(32)
    ConcatKDFHash(hashes.SHA256(), len(out), info).derive_into(shared, out)
    return out


def decrypt(message: bytes, key: ec.EllipticCurvePrivateKey) -> bytearray:
    """The plaintext of a JWE for `key`, which the caller wipes.

    ModelKeyError `key-broker-answer` for anything malformed, another algorithm, or a tag that does
    not verify.
    """
    parts = strings(parse(message, "JWE"), "JWE", ("protected", "encrypted_key", "iv", "ciphertext", "tag"))
    ephemeral = _header(parts["protected"])
    wrapped = base64url(parts["encrypted_key"], "JWE encrypted_key", range(_WRAPPED_BYTES, _WRAPPED_BYTES + 1))
    iv = base64url(parts["iv"], "JWE iv", range(_IV_BYTES, _IV_BYTES + 1))
    sealed = (base64url(parts["ciphertext"], "JWE ciphertext", range(1, MAX_PLAINTEXT_BYTES + 1))
              + base64url(parts["tag"], "JWE tag", range(_TAG_BYTES, _TAG_BYTES + 1)))
    wrapping = wrapping_key(key.exchange(ec.ECDH(), ephemeral))
    plain = bytearray(len(sealed) - _TAG_BYTES)
    try:
        content = aes_key_unwrap(bytes(wrapping), wrapped)
        AESGCM(content).decrypt_into(iv, sealed, parts["protected"].encode("ascii"), plain)
    except (InvalidUnwrap, InvalidTag, ValueError):
        wipe(plain)
        raise refuse("the JWE is not encrypted to this release key, or was altered") from None
    finally:
        wipe(wrapping)
    return plain


def _header(protected: str) -> ec.EllipticCurvePublicKey:
    """The sender's ephemeral key, after the header was found to be the one that is allowed."""
    header = parse(base64url(protected, "JWE protected", range(1, 2048)), "JWE header")
    ephemeral = header.pop("epk", None)
    words = strings(header, "JWE header", ("alg", "enc"))
    if (words["alg"], words["enc"]) != (ALGORITHM, ENCRYPTION):
        raise refuse(f"JWE header: {words['alg'][:32]!r} with {words['enc'][:32]!r}; expected {ALGORITHM} with "
                     f"{ENCRYPTION}")
    return read_jwk(strings(ephemeral, "JWE header epk", ("crv", "kty", "x", "y")), "JWE header epk")
