"""The scope of an opinion: whose system, and which period. The judge names both.

Times in a log are its host's, and so a period is also by the host's clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from appliance.errors import AuditError

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")
_HINT = "two days, such as 2026-01-01/2026-06-30, or two times in UTC, such as 2026-01-01T06:00:00Z"


@dataclass(frozen=True)
class Interval:
    """From `begin` to before `end`, both in UTC. `text`: as the judge wrote it."""

    begin: datetime
    end: datetime
    text: str

    def has(self, time: str) -> bool:
        """Whether a record's time is in it. A day that there is not is in none."""
        when = _time(time)
        return when is not None and self.begin <= when < self.end


@dataclass(frozen=True)
class Engagement:
    """The entity and the period of an opinion, each None where the judge does not name it."""

    entity: str | None = None
    period: Interval | None = None


def period(text: str) -> Interval:
    """Return a period as FROM/TO. A day at its end belongs to it. Raises AuditError for any other
    form."""
    first, slash, last = text.partition("/")
    begin, end = _time(first), _time(last)
    if end is not None and _DAY.fullmatch(last):
        end += timedelta(days=1)
    if not slash or begin is None or end is None or begin >= end:
        raise AuditError(f"{text!r} is not a period", code="usage", hint=f"write FROM/TO: {_HINT}")
    return Interval(begin, end, f"{first} to {last}")


def _time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def spanned(records: Sequence[dict[str, Any]], wanted: Interval) -> str:
    """Tell whether a log's records reach over a period, in words."""
    if not records:
        return "The log has no record that can be read."
    first, last = str(records[0]["time"]), str(records[-1]["time"])
    told = f"By the host's clock the log's records are from {first} to {last}"
    begun, ended = _time(first), _time(last)
    if begun is None or ended is None:
        return f"{told}, which are not times."
    parts = [*(["begin after the period does"] if begun > wanted.begin else []),
             *(["end before the period does"] if ended < wanted.end - timedelta(days=1) else [])]
    return f"{told}. They {' and '.join(parts)}." if parts else f"{told}. They reach over the period."
