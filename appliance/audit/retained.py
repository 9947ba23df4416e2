"""Records that are sealed until their time is over, for who reads a log: by a period's key alone.

Nothing here keeps a secret, so that an auditor's machine needs no locked memory. `periods` writes
them. Format: docs/formats/audit-log-2.md, "Retention".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import NoteError

DOMAIN: Final = b"appliance/audit-period/v1\n"
KEYS_FORMAT: Final = "appliance/audit-period-keys/v1"


def info(number: int) -> bytes:
    """HKDF's info of the records' keys of a period."""
    return DOMAIN + number.to_bytes(8, "big")


def nonce(seq: int) -> bytes:
    """The nonce of a record: its number in the log, in 12 bytes, big-endian."""
    return seq.to_bytes(12, "big")


def bound(event: str, seq: int) -> bytes:
    """The associated data of a record."""
    return DOMAIN + event.encode() + b"\n" + seq.to_bytes(8, "big")


def opened(key: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a sealed record, by its period's key (32 bytes). NoteError where they do not
    open."""
    try:
        cipher = AESGCM(HKDF(SHA256(), 32, bytes.fromhex(record["boot"]), info(record["period"])).derive(key))
        plain = cipher.decrypt(nonce(record["seq"]), bytes.fromhex(record["sealed"]), bound(
            record["event"], record["seq"])).rstrip(b" ")
        found = strict.json_value(plain, integers=True)
        if not isinstance(found, dict) or canonical(found) != plain:
            raise ValueError("another spelling")
    except (InvalidTag, ValueError, OverflowError):
        raise NoteError(f"record {record['seq']}: its sealed fields do not open",
                        hint=f"is it the key of period {record['period']} of this log?") from None
    return found
