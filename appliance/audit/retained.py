"""Records that are sealed until their time is over, for whoever reads a log: by a period's key, or
each by its own.

Nothing here keeps a secret, so that an auditor's machine needs no locked memory. `periods` writes
them. Formats: docs/formats/audit-log-3.md and audit-log-2.md, "Retention".
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

DOMAIN: Final = b"appliance/audit-record/v1\n"
KEYS_FORMAT: Final = "appliance/audit-period-keys/v1"
NONCE: Final = bytes(12)  # a record's key seals this record alone
PARTS: Final = 24  # periods in the retention's time: a record lives between 23 and 24 of them
KEY_BYTES: Final = 32
_DOMAIN_2: Final = b"appliance/audit-period/v1\n"  # of version 2, whose keys are of a boot's records in a period


def period_seconds(retention: int) -> int:
    """How long a period lasts under a retention; both in seconds."""
    return max(1, retention // PARTS)


def info(period: int, seq: int) -> bytes:
    """HKDF's info of the key of the record that has a number in the log."""
    return DOMAIN + period.to_bytes(8, "big") + seq.to_bytes(8, "big")


def bound(event: str, seq: int, domain: bytes = DOMAIN) -> bytes:
    """The associated data of a record."""
    return domain + event.encode() + b"\n" + seq.to_bytes(8, "big")


def own(record: Mapping[str, Any]) -> bool:
    """Whether a sealed record has a key of its own, which opens no other."""
    return bool(record["v"] > 2)


def key_of(key: bytes, record: Mapping[str, Any]) -> bytes:
    """The key of a sealed record, from its period's (32 bytes)."""
    number = record["period"]
    said = info(number, record["seq"]) if own(record) else _DOMAIN_2 + number.to_bytes(8, "big")
    return HKDF(SHA256(), KEY_BYTES, bytes.fromhex(record["boot"]), said).derive(key)


def opened(key: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a sealed record, by the key that `key_of` gives. NoteError where they do not
    open."""
    seq, domain = record["seq"], DOMAIN if own(record) else _DOMAIN_2
    nonce = NONCE if own(record) else seq.to_bytes(12, "big")
    try:
        plain = AESGCM(key).decrypt(nonce, bytes.fromhex(record["sealed"]), bound(record["event"], seq, domain))
        text = plain.rstrip(b" ")
        found = strict.json_value(text, integers=True)
        if not isinstance(found, dict) or canonical(found) != text:
            raise ValueError("another spelling")
    except (InvalidTag, ValueError, OverflowError):
        raise NoteError(f"record {seq}: its sealed fields do not open",
                        hint=f"is it the key of period {record['period']} of this log, or of this record?") from None
    return found
