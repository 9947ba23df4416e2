"""The bytes of a TPM's signature: TPMT_SIGNATURE.

Source: Trusted Computing Group, "TPM 2.0 Library, Part 2: Structures", section 11.3.4.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.attestation.tpm import abi
from appliance.codec.cursor import Cursor
from appliance.errors import UnsupportedEvidenceError


@dataclass(frozen=True)
class Signature:
    """A signature and its scheme: RSASSA, RSAPSS (value is the octets) or ECDSA (value is r, s)."""

    scheme: int
    hash_name: str
    value: bytes | tuple[int, int]


def parse_signature(data: bytes) -> Signature:
    """TPMT_SIGNATURE, section 11.3.4. Raises MalformedEvidenceError, UnsupportedEvidenceError for
    other schemes."""
    cursor = Cursor(data, "TPM signature", "big")
    scheme = cursor.number(2, "scheme")
    if scheme not in (abi.RSASSA, abi.RSAPSS, abi.ECDSA):
        raise UnsupportedEvidenceError(f"TPM signature: scheme {scheme:#06x} is not known", code="tpm-algorithm")
    name = abi.hash_name(cursor.number(2, "hash"), "TPM signature")
    if scheme == abi.ECDSA:
        r, s = cursor.sized(2, "r"), cursor.sized(2, "s")
        cursor.end()
        return Signature(scheme, name, (int.from_bytes(r, "big"), int.from_bytes(s, "big")))
    value = cursor.sized(2, "signature")
    cursor.end()
    return Signature(scheme, name, value)
