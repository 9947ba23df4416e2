"""The ID block of an SEV-SNP launch: with it, a guest starts only if its launch digest was signed.

Source: AMD 56860 (SEV-SNP ABI), "Structure of the ID Block" and "Structure of the ID Authentication
Information Page"; little endian, P-384 with SHA-384. Signatures are deterministic (RFC 6979), so
that the same keys give the same bytes.
"""

from __future__ import annotations

import base64
import hashlib
import struct

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from appliance.attestation.measured.fields import IdBlock
from appliance.errors import ImageError

VERSION, ECDSA_P384_SHA384, CURVE_P384 = 1, 1, 2
COMPONENT_BYTES, SIGNATURE_BYTES, PUBLIC_KEY_BYTES = 72, 512, 1028
# Reserved bit 17 of the guest policy must be one. SMT, migration agent and debugging stay
# forbidden.
STRICT_POLICY = 0x20000


def block(launch_digest: bytes, *, guest_policy: int = STRICT_POLICY, guest_svn: int = 0,
          family_id: bytes = bytes(16), image_id: bytes = bytes(16)) -> bytes:
    """Return the 96 bytes that the ID key signs."""
    return struct.pack("<48s16s16sIIQ", launch_digest, family_id, image_id, VERSION, guest_svn, guest_policy)


def public_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a public key in AMD's form, 1,028 bytes. Raises ImageError unless it is on P-384."""
    if key.curve.name != "secp384r1":
        raise ImageError(f"ID key on {key.curve.name}: an ID block is signed with P-384",
                         hint="openssl ecparam -name secp384r1 -genkey -noout -out id.pem")
    numbers = key.public_key().public_numbers()
    return b"".join((CURVE_P384.to_bytes(4, "little"), numbers.x.to_bytes(COMPONENT_BYTES, "little"),
                     numbers.y.to_bytes(COMPONENT_BYTES, "little"))).ljust(PUBLIC_KEY_BYTES, b"\x00")


def _signed(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    r, s = decode_dss_signature(key.sign(data, ec.ECDSA(hashes.SHA384(), deterministic_signing=True)))
    both = r.to_bytes(COMPONENT_BYTES, "little") + s.to_bytes(COMPONENT_BYTES, "little")
    return both.ljust(SIGNATURE_BYTES, b"\x00")


def make(launch_digest: bytes, id_key: ec.EllipticCurvePrivateKey, author_key: ec.EllipticCurvePrivateKey | None = None,
         *, guest_policy: int = STRICT_POLICY) -> IdBlock:
    """Make the block and its authentication page. Without an author key nobody vouches for the ID
    key."""
    content, mine = block(launch_digest, guest_policy=guest_policy), public_key(id_key)
    author = b"" if author_key is None else public_key(author_key)
    vouched = b"" if author_key is None else _signed(author_key, mine)
    auth = struct.pack(
        f"<II56s{SIGNATURE_BYTES}s{PUBLIC_KEY_BYTES}s60s{SIGNATURE_BYTES}s{PUBLIC_KEY_BYTES}s892s",
        ECDSA_P384_SHA384, ECDSA_P384_SHA384 if author else 0, b"", _signed(id_key, content), mine, b"", vouched,
        author, b"")
    return IdBlock(
        block=base64.b64encode(content).decode("ascii"), auth=base64.b64encode(auth).decode("ascii"),
        id_key_sha384=hashlib.sha384(mine).hexdigest(),
        author_key_sha384=hashlib.sha384(author).hexdigest() if author else None)
