"""The form of a record. The log asks before it writes one, and whoever reads a log asks the same.

A record that is written in another form makes the log bad for ever: nobody can take it back.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from appliance.audit.events import ENVELOPE_2, RETAINED, Schema
from appliance.audit.fields import Field, StringForm

_HEAD: Final = StringForm("[0-9a-f]{64}", 64, "32 bytes in hex")
_BOOT: Final = StringForm("[0-9a-f]{32}", 32, "16 bytes in hex")
_TIME: Final = StringForm("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z", 20, "UTC, whole seconds")
_SEALED: Final = frozenset({"sealed", "period"})


def kind_of(name: str, kinds: Mapping[str, Field]) -> Field | None:
    """The type of an event's field, by the name that it has in records. None for another field."""
    return None if name.endswith("?") else kinds.get(name) or kinds.get(f"{name}?")


def lacking(kinds: Mapping[str, Field], given: Mapping[str, Any]) -> str | None:
    """The first field that an event must have and these lack; None where they are whole."""
    return next((name for name in kinds if not name.endswith("?") and name not in given), None)


def fault(fields: Mapping[str, Any], schemas: Mapping[int, Schema]) -> str | None:
    """Say what of a record of a chained log is not in its version's schema. Returns None where all
    of it is.

    A record of version 2 that lacks a field passes: appliances before 0.2.0 could write such.
    """
    version = fields.get("v")
    if type(version) is not int or version not in schemas:
        return "its version is not one of a chained log"
    kinds = schemas[version].get(fields["event"]) if isinstance(fields.get("event"), str) else None
    if kinds is None:
        return "its event is not in the schema"
    own = set(fields) - set(ENVELOPE_2)
    if not set(ENVELOPE_2) <= set(fields) or not _envelope(fields):
        return "its envelope is not in form"
    for name in own:
        kind = kind_of(name, kinds)
        if kind is None or not kind.accepts(fields[name]):
            return f"a field of {fields['event']} is not in the schema"
    if fields["event"] in RETAINED and _SEALED & own:
        return None if own == _SEALED else f"a {fields['event']} is sealed in part"
    absent = None if version == 2 else lacking(kinds, fields)
    return None if absent is None else f"a {fields['event']} lacks {absent}"


def _envelope(fields: Mapping[str, Any]) -> bool:
    whole = all(type(fields[name]) is int and 0 <= fields[name] < 1 << 53 for name in ("seq", "epoch", "mono_ms"))
    prev = fields["prev"] is None if fields["seq"] == 0 else _HEAD.accepts(fields["prev"])
    return (whole and prev and fields["time_source"] == "host" and _BOOT.accepts(fields["boot"])
            and _TIME.accepts(fields["time"]) and _is_time(fields["time"]))


def _is_time(text: str) -> bool:
    """Whether there is such a day and such a second."""
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
