"""The document of a NitroTPM: COSE_Sign1 (RFC 9052) by ES384, around a map in CBOR.

Source: AWS, "Validate a NitroTPM Attestation Document", which has the map's members and their
sizes. This module reads bytes; it checks no signature and judges no claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from appliance.codec import cborreader
from appliance.codec.cborreader import TaggedItem, Value
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

MAX_BYTES = 1 << 14
COSE_SIGN1 = 18
PROTECTED = b"\xa1\x01\x38\x22"  # {1: -35}: ES384
STARTS = tuple(tag + b"\x84\x44" + PROTECTED for tag in (b"", bytes((0xC0 | COSE_SIGN1,))))
BANK = "sha384"
_BANK_NAME = "SHA384"
_SIGNATURE_BYTES, _PCR_BYTES = 96, 48
MAX_CERTIFICATE, MAX_AUTHORITIES, MAX_GUEST_DATA = 1024, 5, 1024
_REQUIRED = ("module_id", "timestamp", "digest", "nitrotpm_pcrs", "certificate", "cabundle")
_OPTIONAL = ("public_key", "user_data", "nonce")
_WHAT = "NitroTPM document"
T = TypeVar("T")


@dataclass(frozen=True)
class NitroDocument:
    """A parsed document. `timestamp` counts milliseconds since 1970. The guest chose the last three
    members; None: it left the member out."""

    payload: bytes
    signature: bytes               # r || s
    module_id: str
    timestamp: int
    pcrs: Mapping[int, bytes]      # of the SHA-384 bank
    certificate: bytes             # DER
    authorities: tuple[bytes, ...]
    public_key: bytes | None = None
    user_data: bytes | None = None
    nonce: bytes | None = None


def parse(data: bytes) -> NitroDocument:
    """Read a document. Raises MalformedEvidenceError; UnsupportedEvidenceError for one of a Nitro
    enclave, or in another bank."""
    if len(data) > MAX_BYTES:
        raise MalformedEvidenceError(f"{_WHAT}: {len(data)} bytes, at most {MAX_BYTES}")
    whole = cborreader.decode(data)
    parts = whole.value if isinstance(whole, TaggedItem) and whole.tag == COSE_SIGN1 else whole
    match parts:
        case [bytes(protected), {}, bytes(payload), bytes(signature)] if not parts[1]:
            pass
        case _:
            raise MalformedEvidenceError(f"{_WHAT}: not COSE_Sign1 with an empty unprotected header")
    if protected != PROTECTED:
        raise UnsupportedEvidenceError(f"{_WHAT}: its protected header is another than ES384", code="chain-algorithm")
    if len(signature) != _SIGNATURE_BYTES:
        raise MalformedEvidenceError(f"{_WHAT}: a signature of {len(signature)} bytes, expected {_SIGNATURE_BYTES}")
    return _document(payload, signature, cborreader.members(payload))


def _document(payload: bytes, signature: bytes, found: Mapping[str | int, Value]) -> NitroDocument:
    if "pcrs" in found and "nitrotpm_pcrs" not in found:
        raise UnsupportedEvidenceError(
            "AWS Nitro Enclaves document: enclaves are not a platform of this appliance, so it is refused",
            code="evidence-enclave", hint="an EC2 instance with a NitroTPM is: its document has nitrotpm_pcrs")
    absent = [name for name in _REQUIRED if name not in found]
    other = sorted(str(name) for name in found if name not in (*_REQUIRED, *_OPTIONAL))
    if absent or other:
        raise MalformedEvidenceError(f"{_WHAT}: {absent[0]} is absent" if absent
                                     else f"{_WHAT}: its member {other[0][:40]!r} is not known")
    if found["digest"] != _BANK_NAME:
        raise UnsupportedEvidenceError(f"{_WHAT}: registers of another bank than {_BANK_NAME}", code="tpm-algorithm")
    return NitroDocument(
        payload, signature, _typed(found, "module_id", str), _typed(found, "timestamp", int),
        _registers(_typed(found, "nitrotpm_pcrs", dict)), _certificate(found["certificate"]),
        tuple(_certificate(each) for each in _authorities(found)),
        *(_guest_data(found, name) for name in _OPTIONAL))


def _typed(found: Mapping[str | int, Value], name: str, kind: type[T]) -> T:
    value = found[name]
    if not isinstance(value, kind) or (isinstance(value, int) and value < 0):
        raise MalformedEvidenceError(f"{_WHAT}: {name} has another type")
    return value


def _registers(found: Mapping[str | int, Value]) -> dict[int, bytes]:
    registers = {}
    for number, value in found.items():
        if not isinstance(number, int) or not 0 <= number < 24 or not isinstance(value, bytes) or (
                len(value) != _PCR_BYTES):
            raise MalformedEvidenceError(f"{_WHAT}: register {str(number)[:20]} is not {_PCR_BYTES} bytes of PCR 0 "
                                         "to 23")
        registers[number] = value
    return dict(sorted(registers.items()))


def _authorities(found: Mapping[str | int, Value]) -> list[Value]:
    listed = _typed(found, "cabundle", list)
    if not 0 < len(listed) <= MAX_AUTHORITIES:
        raise MalformedEvidenceError(f"{_WHAT}: {len(listed)} authorities, 1 to {MAX_AUTHORITIES}")
    return listed


def _certificate(value: Value) -> bytes:
    if not isinstance(value, bytes) or not 0 < len(value) <= MAX_CERTIFICATE:
        raise MalformedEvidenceError(f"{_WHAT}: a certificate is not 1 to {MAX_CERTIFICATE} bytes")
    return value


def _guest_data(found: Mapping[str | int, Value], name: str) -> bytes | None:
    if name not in found:
        return None
    value = _typed(found, name, bytes)
    if len(value) > MAX_GUEST_DATA:
        raise MalformedEvidenceError(f"{_WHAT}: {name} has {len(value)} bytes, at most {MAX_GUEST_DATA}")
    return value
