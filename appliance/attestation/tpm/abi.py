"""The bytes of TPM 2.0 quotes: TPMS_ATTEST, TPMT_SIGNATURE, TPM2B_PUBLIC, and PCR values.

Source: Trusted Computing Group, "TPM 2.0 Library, Part 2: Structures" (sections named at each
function). Integers are big endian, but for the PCR file of tpm2-tools, which is a C structure of
the machine that wrote it. This module reads bytes; it checks no signature and judges no claim.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric import ec, rsa

from appliance.codec.cursor import Cursor
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

HASHES: Mapping[int, str] = {0x0004: "sha1", 0x000B: "sha256", 0x000C: "sha384", 0x000D: "sha512"}  # TPM_ALG_ID
MAGIC = b"\xff\x54\x43\x47"  # TPM_GENERATED_VALUE: the TPM itself made this structure
ATTEST_QUOTE = 0x8018        # TPM_ST_ATTEST_QUOTE
RSA, ECC, NULL = 0x0001, 0x0023, 0x0010
RSASSA, RSAPSS, ECDSA = 0x0014, 0x0016, 0x0018
MAX_PCRS, MAX_BANKS, MAX_SELECT_BYTES = 24, 16, 4
CURVES: Mapping[int, type[ec.EllipticCurve]] = {0x0003: ec.SECP256R1, 0x0004: ec.SECP384R1, 0x0005: ec.SECP521R1}
# TPMA_OBJECT
FIXED_TPM, FIXED_PARENT, SENSITIVE_ORIGIN, RESTRICTED, DECRYPT, SIGN = 1 << 1, 1 << 4, 1 << 5, 1 << 16, 1 << 17, 1 << 18
Pcrs = Mapping[str, Mapping[int, bytes]]  # bank ("sha256") -> PCR number -> value


def hash_name(algorithm: int, what: str) -> str:
    """The name of a TPM_ALG_ID hash. Raises UnsupportedEvidenceError."""
    if algorithm not in HASHES:
        raise UnsupportedEvidenceError(f"{what}: hash algorithm {algorithm:#06x} is not known", code="tpm-algorithm")
    return HASHES[algorithm]


@dataclass(frozen=True)
class Selection:
    """The PCRs of one bank that a quote covers, in ascending order."""

    bank: str
    pcrs: tuple[int, ...]


@dataclass(frozen=True)
class TpmQuote:
    """TPMS_ATTEST of type quote. `signed` is the whole structure, which the signature covers."""

    qualified_signer: bytes
    extra_data: bytes         # the nonce
    clock: int                # milliseconds
    reset_count: int
    restart_count: int
    safe: bool
    firmware_version: int
    selections: tuple[Selection, ...]
    pcr_digest: bytes
    signed: bytes

    @property
    def covers(self) -> bool:
        """Whether any register is quoted; a quote over none says nothing of what booted."""
        return any(selection.pcrs for selection in self.selections)


def _selections(cursor: Cursor) -> tuple[Selection, ...]:
    """TPML_PCR_SELECTION, section 10.9.7."""
    count = cursor.number(4, "number of PCR banks")
    if count > MAX_BANKS:
        raise MalformedEvidenceError(f"TPM quote: {count} PCR banks, at most {MAX_BANKS}")
    found = []
    for _ in range(count):
        bank = hash_name(cursor.number(2, "PCR bank"), "TPM quote")
        bits = int.from_bytes(cursor.sized(1, "PCR selection"), "little")
        if bits >> MAX_PCRS:
            raise MalformedEvidenceError(f"TPM quote: a PCR above {MAX_PCRS - 1} is selected")
        found.append(Selection(bank, tuple(number for number in range(MAX_PCRS) if bits >> number & 1)))
    return tuple(found)


def parse_quote(message: bytes) -> TpmQuote:
    """TPMS_ATTEST, section 10.12.12. Raises MalformedEvidenceError, UnsupportedEvidenceError for
    another type."""
    cursor = Cursor(message, "TPM quote", "big")
    quote = _quote(cursor, message)
    cursor.end()
    return quote


def split_quote(message: bytes) -> tuple[bytes, bytes]:
    """The quote at the front of `message`, and what follows it, which no TPM signed. Raises as
    `parse_quote` does."""
    cursor = Cursor(message, "TPM quote", "big")
    _quote(cursor, message)
    return message[:cursor.at], message[cursor.at:]


def _quote(cursor: Cursor, message: bytes) -> TpmQuote:
    if cursor.take(4, "magic") != MAGIC:
        raise MalformedEvidenceError("TPM quote: the magic is not TPM_GENERATED_VALUE, so no TPM made this")
    kind = cursor.number(2, "type")
    if kind != ATTEST_QUOTE:
        raise UnsupportedEvidenceError(f"TPM quote: attestation type {kind:#06x}, expected a quote", code="tpm-type")
    signer, extra = cursor.sized(2, "qualified signer"), cursor.sized(2, "extra data")
    clock, resets, restarts = cursor.number(8, "clock"), cursor.number(4, "resets"), cursor.number(4, "restarts")
    safe = cursor.number(1, "safe")
    if safe > 1:
        raise MalformedEvidenceError("TPM quote: safe is neither 0 nor 1")
    firmware = cursor.number(8, "firmware version")
    selections, digest = _selections(cursor), cursor.sized(2, "PCR digest")
    return TpmQuote(signer, extra, clock, resets, restarts, bool(safe), firmware, selections, digest, message)


@dataclass(frozen=True)
class PublicArea:
    """TPMT_PUBLIC of a signing key. `name` is what the TPM calls it: algorithm and digest of the
    public area."""

    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    attributes: int
    name: bytes

    @property
    def attests(self) -> bool:
        """Whether the key signs nothing but what its own TPM made, and never leaves it."""
        wanted = FIXED_TPM | FIXED_PARENT | SENSITIVE_ORIGIN | RESTRICTED | SIGN
        return self.attributes & (wanted | DECRYPT) == wanted


def _scheme(cursor: Cursor, details: int) -> None:
    """A scheme or a symmetric definition: an algorithm, and unless it is NULL so many further
    bytes."""
    if cursor.number(2, "scheme") != NULL:
        cursor.take(details, "scheme details")


def parse_public(data: bytes) -> PublicArea:
    """TPM2B_PUBLIC, section 12.2.5. Raises MalformedEvidenceError, UnsupportedEvidenceError for
    other key types."""
    outer = Cursor(data, "TPM public key", "big")
    area = outer.sized(2, "public area")
    outer.end()
    return parse_area(area)


def parse_area(area: bytes) -> PublicArea:
    """TPMT_PUBLIC, section 12.2.4: the same without its length before it. Raises as
    `parse_public` does."""
    cursor = Cursor(area, "TPM public key", "big")
    kind = cursor.number(2, "type")
    name_algorithm = cursor.number(2, "name algorithm")
    attributes = cursor.number(4, "attributes")
    cursor.sized(2, "policy")
    key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey
    if kind == RSA:
        key = _rsa(cursor)
    elif kind == ECC:
        key = _ecc(cursor)
    else:
        raise UnsupportedEvidenceError(f"TPM public key: type {kind:#06x} is not known", code="tpm-algorithm")
    cursor.end()
    digest = hashlib.new(hash_name(name_algorithm, "TPM public key"), area).digest()
    return PublicArea(key, attributes, name_algorithm.to_bytes(2, "big") + digest)


def _rsa(cursor: Cursor) -> rsa.RSAPublicKey:
    _scheme(cursor, 4)
    _scheme(cursor, 2)
    bits, exponent = cursor.number(2, "key bits"), cursor.number(4, "exponent") or 65537
    modulus = int.from_bytes(cursor.sized(2, "modulus"), "big")
    if modulus.bit_length() != bits or not 2048 <= bits <= 4096:
        raise MalformedEvidenceError(f"TPM public key: a modulus of {modulus.bit_length()} bits")
    try:
        return rsa.RSAPublicNumbers(exponent, modulus).public_key()
    except ValueError:
        raise MalformedEvidenceError("TPM public key: no RSA key") from None


def _ecc(cursor: Cursor) -> ec.EllipticCurvePublicKey:
    _scheme(cursor, 4)
    _scheme(cursor, 2)
    curve = cursor.number(2, "curve")
    _scheme(cursor, 2)
    if curve not in CURVES:
        raise UnsupportedEvidenceError(f"TPM public key: curve {curve:#06x} is not known", code="tpm-algorithm")
    x, y = (int.from_bytes(cursor.sized(2, name), "big") for name in ("x", "y"))
    try:
        return ec.EllipticCurvePublicNumbers(x, y, CURVES[curve]()).public_key()
    except ValueError:
        raise MalformedEvidenceError("TPM public key: the point is not on the curve") from None


def sized(data: bytes) -> bytes:
    """TPM2B: a size of two bytes, then the bytes."""
    return struct.pack(">H", len(data)) + data
