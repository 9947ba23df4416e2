"""Records read back by a holder of their keys: records that are sealed until their time is over,
and details that only the auditor reads.

Nothing here keeps a secret, so that an auditor's machine needs no locked memory. Formats:
docs/formats/audit-log-3.md and audit-log-2.md, "Retention".
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from appliance.audit.detail import FORM, INFO, OUTCOME_INFO, SUITE, Detail
from appliance.audit.retained import DOMAIN, KEY_BYTES, NONCE, bound, info
from appliance.codec import strict
from appliance.codec.canonical import canonical
from appliance.errors import NoteError

KEYS_FORMAT: Final = "appliance/audit-period-keys/v1"
_DOMAIN_2: Final = b"appliance/audit-period/v1\n"  # of version 2, whose keys are of a boot's records in a period


def own(record: Mapping[str, Any]) -> bool:
    """Whether a sealed record has a key of its own, which opens no other."""
    return bool(record["v"] > 2)


def key_of(key: bytes, record: Mapping[str, Any]) -> bytes:
    """Return the key of a sealed record, from its period's (32 bytes)."""
    number = record["period"]
    said = info(number, record["seq"]) if own(record) else _DOMAIN_2 + number.to_bytes(8, "big")
    return HKDF(SHA256(), KEY_BYTES, bytes.fromhex(record["boot"]), said).derive(key)


def fields(key: bytes, record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a sealed record, by the key that `key_of` gives. Raises NoteError if
    they do not open."""
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


def detail(sealed: bytes, private: X25519PrivateKey, request_id: str) -> Detail:
    """Decrypt a detail of a request. Raises NoteError if it is another's, or for another key."""
    try:
        plain = SUITE.decrypt(sealed, private, INFO + request_id.encode())
        return Detail(*FORM.unpack(plain))
    except (InvalidTag, ValueError, struct.error):
        raise NoteError("audit detail: it does not open", hint="is it the auditor's private key?") from None


def outcome(sealed: bytes, private: X25519PrivateKey, request_id: str) -> dict[str, Any]:
    """Decrypt how a request ended whose record does not name it. Raises NoteError if it is
    another's, or for another key."""
    try:
        text = SUITE.decrypt(sealed, private, OUTCOME_INFO + request_id.encode()).rstrip(b" ")
        found = strict.json_value(text, integers=True)
        if not isinstance(found, dict) or canonical(found) != text:
            raise ValueError("another spelling")
    except (InvalidTag, ValueError, OverflowError):
        raise NoteError("audit outcome: it does not open", hint="is it the auditor's private key?") from None
    return found
