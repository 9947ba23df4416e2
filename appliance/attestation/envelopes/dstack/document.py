"""dstack's quote as its guest agent gives it in JSON: the quote in hex, and the event log as JSON
within a text.

    {"quote": "0400...", "event_log": "[{\\"imr\\": 0, \\"event_type\\": 1, \\"digest\\": \\"...\\", ...}]"}

attestation-rs writes the quote in base64.
"""

from __future__ import annotations

import json
from typing import Any

from appliance.attestation.case.event_log import Event
from appliance.attestation.envelopes.dstack import log as dstack_log
from appliance.attestation.envelopes.parts import strict
from appliance.attestation.envelopes.parts.carried import EnvelopeParts
from appliance.attestation.envelopes.parts.strict import Members
from appliance.errors import MalformedEvidenceError

_WHAT = "dstack quote in JSON"
_KNOWN = ("quote", "event_log", "report_data", "vm_config", "hash_algorithm", "prefix")
_EVENT = ("imr", "event_type", "digest", "event", "event_payload", "version", "preimage")


def fits(found: Members) -> bool:
    """Whether the members are this envelope's."""
    return isinstance(found.get("quote"), str) and ("event_log" in found or "vm_config" in found)


def read(found: Members) -> EnvelopeParts:
    """The quote and its events."""
    strict.only(found, _KNOWN, _WHAT)
    quote, stated = strict.text(found, "quote", _WHAT), found.get("report_data")
    return EnvelopeParts(
        (strict.hexadecimal if quote[:2] in ("04", "05") else strict.octets_in_base64)(quote, f"{_WHAT}: quote"),
        events=events(found.get("event_log")),
        report_data=strict.hexadecimal(stated, f"{_WHAT}: report_data") if stated else None,
        told=tuple((name, strict.text(found, name, _WHAT)) for name in ("vm_config",) if found.get(name)))


def events(log: object) -> tuple[Event, ...] | None:
    """The events in a list, or in a text that holds one; None where there are none. Raises
    MalformedEvidenceError or UnsupportedEvidenceError."""
    if not log:
        return None
    try:
        listed = json.loads(log) if isinstance(log, str) else log
    except (ValueError, RecursionError):
        raise MalformedEvidenceError(f"{_WHAT}: event_log is not JSON") from None
    if not isinstance(listed, list) or len(listed) > dstack_log.MAX_EVENTS:
        raise MalformedEvidenceError(f"{_WHAT}: event_log is not a list of at most {dstack_log.MAX_EVENTS} events")
    return tuple(_event(each) for each in listed) or None


def _event(found: Any) -> Event:
    if not isinstance(found, dict):
        raise MalformedEvidenceError(f"{_WHAT}: an event is not an object")
    strict.only(found, _EVENT, f"{_WHAT}: event")
    try:
        name = strict.text(found, "event", _WHAT).encode()
    except UnicodeEncodeError:
        raise MalformedEvidenceError(f"{_WHAT}: an event's name is not text") from None
    return dstack_log.event(
        strict.number(found, "imr", 32, _WHAT), strict.number(found, "event_type", 32, _WHAT),
        strict.hexadecimal(found.get("digest", ""), f"{_WHAT}: digest"), name,
        strict.hexadecimal(found.get("event_payload", ""), f"{_WHAT}: event_payload"), dstack_log.version(found))
