"""A credential that one TPM alone opens, and only beside one key: the verifier's half of credential
activation.

Source: Trusted Computing Group, "TPM 2.0 Library", revision 1.59, Part 1. Section 24 has credential
protection, annexes B.10 and C.6 the seed by RSA and by ECDH. Section 11.4.10 has KDFa (NIST SP
800-108 in counter mode) and KDFe (NIST SP 800-56A's concatenation KDF). The format around it:
docs/formats/tpm-activation.md.

Nothing here says whose the endorsement key is: that is `ek`'s question.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.decrepit.ciphers.modes import CFB  # decrepit, and the TPM's: a MAC covers what it encrypts
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.concatkdf import ConcatKDFHash
from cryptography.hazmat.primitives.kdf.kbkdf import KBKDFHMAC, CounterLocation, Mode

from appliance.attestation.tpm.abi import sized
from appliance.attestation.tpm.credential import SECRET_BYTES, answer
from appliance.errors import UnsupportedEvidenceError

_SHA1 = b"\0\x04"  # TPM_ALG_SHA1
EndorsementPublic = rsa.RSAPublicKey | ec.EllipticCurvePublicKey


@dataclass(frozen=True)
class Scheme:
    """Name algorithm and bits of AES of an endorsement key: fixed by its kind in the TCG's default
    templates."""

    hash: type[hashes.SHA256 | hashes.SHA384 | hashes.SHA512]
    aes: int


# TCG "EK Credential Profile", version 2.5, annex B: templates L-1, L-2 and H-1 to H-7, by key
SCHEMES: Mapping[str, Scheme] = {
    "rsa2048": Scheme(hashes.SHA256, 128), "secp256r1": Scheme(hashes.SHA256, 128),
    "secp384r1": Scheme(hashes.SHA384, 256), "secp521r1": Scheme(hashes.SHA512, 256),
    "rsa3072": Scheme(hashes.SHA384, 256), "rsa4096": Scheme(hashes.SHA384, 256)}


def scheme_of(key: object) -> Scheme:
    """The scheme of an endorsement key. Raises UnsupportedEvidenceError for a key of no default
    template."""
    kind = (f"rsa{key.key_size}" if isinstance(key, rsa.RSAPublicKey)
            else key.curve.name if isinstance(key, ec.EllipticCurvePublicKey) else type(key).__name__)
    if kind not in SCHEMES:
        raise UnsupportedEvidenceError(f"endorsement key: {kind} is the key of no default template",
                                       code="tpm-algorithm", hint=f"known: {', '.join(SCHEMES)}")
    return SCHEMES[kind]


def kdfa(scheme: Scheme, key: bytes, label: bytes, context: bytes, size: int) -> bytes:
    """KDFa: `size` bytes from a key, a label and a context (contextU || contextV)."""
    return KBKDFHMAC(scheme.hash(), Mode.CounterMode, size, 4, 4, CounterLocation.BeforeFixed, label, context,
                     None).derive(key)


def _seed(key: EndorsementPublic, scheme: Scheme) -> tuple[bytes, bytes]:
    """A seed that the key's owner can find again, and TPM2B_ENCRYPTED_SECRET from which."""
    size = scheme.hash.digest_size
    if isinstance(key, rsa.RSAPublicKey):
        seed = secrets.token_bytes(size)
        oaep = padding.OAEP(padding.MGF1(scheme.hash()), scheme.hash(), b"IDENTITY\0")
        return seed, sized(key.encrypt(seed, oaep))
    ephemeral = ec.generate_private_key(key.curve)
    width = (key.curve.key_size + 7) // 8
    ours, theirs = ephemeral.public_key().public_numbers(), key.public_numbers()
    x, y = ours.x.to_bytes(width, "big"), ours.y.to_bytes(width, "big")
    party = b"IDENTITY\0" + x + theirs.x.to_bytes(width, "big")
    seed = ConcatKDFHash(scheme.hash(), size, party).derive(ephemeral.exchange(ec.ECDH(), key))
    return seed, sized(sized(x) + sized(y))


def challenge(key: EndorsementPublic, name: bytes, secret: bytes) -> bytes:
    """TPM2B_ID_OBJECT || TPM2B_ENCRYPTED_SECRET: `secret` (1 to 32 bytes) for the TPM that has the
    endorsement key, which gives it out only while the object of this `name` is loaded. Raises
    UnsupportedEvidenceError."""
    scheme = scheme_of(key)
    if name[:2] == _SHA1:
        raise UnsupportedEvidenceError("activation: the attestation key's name is by SHA-1, which is too weak",
                                       code="tpm-algorithm")
    if not 0 < len(secret) <= SECRET_BYTES:
        raise ValueError("a secret of 1 to 32 bytes")
    seed, encrypted = _seed(key, scheme)
    storage = kdfa(scheme, seed, b"STORAGE", name, scheme.aes // 8)
    encryptor = Cipher(algorithms.AES(storage), CFB(bytes(16))).encryptor()
    identity = encryptor.update(sized(secret)) + encryptor.finalize()
    integrity = kdfa(scheme, seed, b"INTEGRITY", b"", scheme.hash.digest_size)
    outer = hmac.digest(integrity, identity + name, scheme.hash.name)
    return sized(sized(outer) + identity) + encrypted


@dataclass(frozen=True)
class Challenge:
    """A challenge as the verifier keeps it: what is sent, and what has to come back."""

    sent: bytes
    expected: bytes

    def holds(self, found: bytes) -> bool:
        """Whether an answer is the right one, in constant time."""
        return hmac.compare_digest(found, self.expected)


def new(key: EndorsementPublic, name: bytes) -> Challenge:
    """A challenge with a fresh secret."""
    secret = secrets.token_bytes(SECRET_BYTES)
    sent = challenge(key, name, secret)
    return Challenge(sent, answer(secret, sent))
