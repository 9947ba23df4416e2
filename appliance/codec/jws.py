"""JSON Web Signatures in compact form (RFC 7515) with ES256, ES384 (RFC 7518, section 3.4) and
EdDSA (RFC 8037).

Small on purpose: one signature, no encryption, no header but `alg`, `typ` and `kid`, and the
algorithm follows from the key, never from the token.
"""

from __future__ import annotations

import hashlib
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.codec.strict import to_base64url
from appliance.errors import ForgedEvidenceError, MalformedEvidenceError, PolicyError

PrivateKey = ec.EllipticCurvePrivateKey | Ed25519PrivateKey
PublicKey = ec.EllipticCurvePublicKey | Ed25519PublicKey
# curve -> algorithm, name of the curve in a JWK, bytes of a coordinate, hash
_CURVES: dict[str, tuple[str, str, int, hashes.HashAlgorithm]] = {
    "secp256r1": ("ES256", "P-256", 32, hashes.SHA256()), "secp384r1": ("ES384", "P-384", 48, hashes.SHA384())}


def decode(text: str) -> bytes:
    """Strict base64url without padding. Raises MalformedEvidenceError."""
    try:
        return strict.base64url(text)
    except ValueError:
        raise MalformedEvidenceError("token: not base64url", code="token-malformed") from None


def _curve(key: ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey) -> tuple[str, str, int, hashes.HashAlgorithm]:
    try:
        return _CURVES[key.curve.name]
    except KeyError:
        raise PolicyError(f"key: signing with the curve {key.curve.name} is not known", code="key-malformed",
                          hint="P-256, P-384 and Ed25519 are") from None


def algorithm(key: PrivateKey | PublicKey) -> str:
    """The algorithm that a key signs with. Raises PolicyError for another curve."""
    return "EdDSA" if isinstance(key, Ed25519PrivateKey | Ed25519PublicKey) else _curve(key)[0]


def jwk(key: PublicKey) -> dict[str, str]:
    """A public key as a JSON Web Key (RFC 7517), with its thumbprint (RFC 7638) as `kid`."""
    if isinstance(key, Ed25519PublicKey):
        members = {"crv": "Ed25519", "kty": "OKP", "x": to_base64url(key.public_bytes_raw())}
    else:
        _, name, size, _ = _curve(key)
        numbers = key.public_numbers()
        members = {"crv": name, "kty": "EC", "x": to_base64url(numbers.x.to_bytes(size, "big")),
                   "y": to_base64url(numbers.y.to_bytes(size, "big"))}
    return {**members, "kid": to_base64url(hashlib.sha256(canonical(members)).digest()), "alg": algorithm(key)}


def sign(payload: bytes, key: PrivateKey, *, typ: str = "JWT") -> str:
    """The compact form: header, payload and signature. Raises PolicyError for a key of another
    kind."""
    header = canonical({"alg": algorithm(key), "kid": jwk(key.public_key())["kid"], "typ": typ})
    signed = f"{to_base64url(header)}.{to_base64url(payload)}"
    if isinstance(key, Ed25519PrivateKey):
        return f"{signed}.{to_base64url(key.sign(signed.encode()))}"
    _, _, size, hashing = _curve(key)
    r, s = decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashing)))
    return f"{signed}.{to_base64url(r.to_bytes(size, 'big') + s.to_bytes(size, 'big'))}"


def verify(token: str, key: PublicKey) -> bytes:
    """The payload of a token that `key` signed.

    Raises MalformedEvidenceError `token-malformed`, also for a header that names extensions which
    must be understood (`crit`, RFC 7515, section 4.1.11). Raises ForgedEvidenceError
    `token-signature` if the signature is not this key's, or the header names another algorithm than
    the key's.
    """
    parts = token.split(".")
    if len(parts) != 3:
        raise MalformedEvidenceError("token: not three parts", code="token-malformed")
    try:
        header: Any = strict.json_value(decode(parts[0]))
    except ValueError:
        raise MalformedEvidenceError("token: its header is not JSON", code="token-malformed") from None
    payload, signature = decode(parts[1]), decode(parts[2])
    if isinstance(header, dict) and "crit" in header:
        raise MalformedEvidenceError("token: its header demands extensions, none is known", code="token-malformed")
    named = header.get("alg") if isinstance(header, dict) else None
    if named != algorithm(key) or not _signed(f"{parts[0]}.{parts[1]}".encode(), signature, key):
        raise ForgedEvidenceError("token: the signature is not by this key", code="token-signature")
    return payload


def _signed(data: bytes, signature: bytes, key: PublicKey) -> bool:
    try:
        if isinstance(key, Ed25519PublicKey):
            key.verify(signature, data)
            return True
        _, _, size, hashing = _curve(key)
        if len(signature) != 2 * size:
            return False
        r, s = int.from_bytes(signature[:size], "big"), int.from_bytes(signature[size:], "big")
        key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashing))
    except (InvalidSignature, ValueError):
        return False
    return True
