"""dstack's event log: one digest an event, registers (IMR) counted from 0.

Runtime events name what they measure, and writers may leave their digest away: it is SHA-384. In
version 1 of the log it is over type, name and payload, in version 2 over canonical JSON of these.
"""

from __future__ import annotations

import hashlib

from appliance.attestation.case.event_log import Event
from appliance.attestation.envelopes.parts.strict import Members
from appliance.codec.canonical import canonical
from appliance.errors import MalformedEvidenceError, UnsupportedEvidenceError

RUNTIME_EVENT = 0x08000001
MAX_EVENTS = 1 << 14
VERSIONS = (1, 2)
_DIGEST_BYTES = 48


def event(register: int, kind: int, digest: bytes, name: bytes, payload: bytes, version: int = 1) -> Event:
    """One event as a TCG log has it, with registers from 1. Raises MalformedEvidenceError without
    its digest."""
    if kind == RUNTIME_EVENT and not digest:
        digest = hashlib.sha384(_measured(kind, name, payload, version)).digest()
    if len(digest) != _DIGEST_BYTES:
        raise MalformedEvidenceError(f"dstack event log: a digest of {len(digest)} bytes, expected {_DIGEST_BYTES}")
    return Event(register + 1, kind, {"sha384": digest}, payload)


def version(found: Members) -> int:
    """The version of an event in JSON or MessagePack, which is 1 where none stands. Raises
    UnsupportedEvidenceError."""
    stated = found.get("version", 1)
    if type(stated) is not int or stated not in VERSIONS:
        raise UnsupportedEvidenceError("dstack event log: an event of another version than 1 and 2",
                                       code="envelope-version", hint="take the quote out and examine that")
    return stated


def _measured(kind: int, name: bytes, payload: bytes, version: int) -> bytes:
    """The bytes whose digest extends the register. `name` is UTF-8."""
    if version == 1:
        return b":".join((kind.to_bytes(4, "little"), name, payload))
    return canonical({"name": name.decode(), "payload": payload.hex(), "type": kind})
