"""Records that are sealed until their time is over, for whoever reads a log: by a period's key, or
each by its own.

Nothing here keeps a secret, so that an auditor's machine needs no locked memory. `periods` writes
them. Formats: docs/formats/audit-log-3.md and audit-log-2.md, "Retention".
"""

from __future__ import annotations

from typing import Final

DOMAIN: Final = b"appliance/audit-record/v1\n"
NONCE: Final = bytes(12)  # a record's key seals this record alone
PARTS: Final = 24  # periods in the retention's time: a record lives between 23 and 24 of them
KEY_BYTES: Final = 32


def period_seconds(retention: int) -> int:
    """How long a period lasts under a retention; both in seconds."""
    return max(1, retention // PARTS)


def info(period: int, seq: int) -> bytes:
    """HKDF's info of the key of the record that has a number in the log."""
    return DOMAIN + period.to_bytes(8, "big") + seq.to_bytes(8, "big")


def bound(event: str, seq: int, domain: bytes = DOMAIN) -> bytes:
    """The associated data of a record."""
    return domain + event.encode() + b"\n" + seq.to_bytes(8, "big")
