"""dstack's event log: one digest an event, registers (IMR) counted from 0.

Runtime events name what they measure: their digest is SHA-384 over type, name and payload, and
writers may leave the digest away.
"""

from __future__ import annotations

import hashlib

from appliance.attestation.case.event_log import Event
from appliance.errors import MalformedEvidenceError

RUNTIME_EVENT = 0x08000001
MAX_EVENTS = 1 << 14
_DIGEST_BYTES = 48


def event(register: int, kind: int, digest: bytes, name: bytes, payload: bytes) -> Event:
    """One event as a TCG log has it, with registers from 1. Raises MalformedEvidenceError without
    its digest."""
    if kind == RUNTIME_EVENT and not digest:
        digest = hashlib.sha384(b":".join((kind.to_bytes(4, "little"), name, payload))).digest()
    if len(digest) != _DIGEST_BYTES:
        raise MalformedEvidenceError(f"dstack event log: a digest of {len(digest)} bytes, expected {_DIGEST_BYTES}")
    return Event(register + 1, kind, {"sha384": digest}, payload)
