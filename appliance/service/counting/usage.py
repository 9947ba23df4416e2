"""The usage of each API key, by day and model: counts alone, rounded for each request as the policy
says.

Days are UTC days of the host's clock, which is the host's word. Counts live in memory and begin
anew at each boot: the audit log is the record that stays. Rows are bounded: the oldest go first.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Literal

from pydantic import BaseModel

from appliance import hostclock
from appliance.api.problems import RequestError

DAYS = 31  # that are told, today among them
MAX_ROWS = 16_384  # of all keys, days and models
_WHOLE = re.compile(r"[0-9]{1,4}")


class UsageRow(BaseModel):
    """The use that one key made of one model on one day. `model` is null for requests that were
    refused before one was known; `cached_tokens` is null for keys of others."""

    object: Literal["usage"] = "usage"
    day: str  # in UTC, as 2026-01-31
    tenant: str
    api_key_sha256: str
    model: str | None
    requests: int  # refused ones included
    refused: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None


class UsageList(BaseModel):
    """The rows, the oldest day first. `since`: when counting began, in seconds since 1970 by
    the host's clock."""

    object: Literal["list"] = "list"
    since: int
    data: list[UsageRow]


@dataclass(slots=True)
class RequestCounts:
    """The sums of a row."""

    requests: int = 0
    refused: int = 0
    prompt: int = 0
    completion: int = 0
    cached: int = 0

    def add(self, other: RequestCounts) -> None:
        """Add the counts of a request."""
        self.requests += other.requests
        self.refused += other.refused
        self.prompt += other.prompt
        self.completion += other.completion
        self.cached += other.cached


def days_of(values: Sequence[str]) -> int:
    """The query's `days`: how many are told. RequestError for what is not one number of them."""
    if not values:
        return DAYS
    found = _WHOLE.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or not 1 <= int(found[0]) <= DAYS:
        raise RequestError("invalid_value", f"days: one whole number from 1 to {DAYS} is allowed", param="days")
    return int(found[0])


Row = tuple[date, bytes, str | None]  # the day, SHA-256 of the key, the model


class Ledger:
    """The counts of all keys. It belongs to the event loop."""

    def __init__(self, now: Callable[[], datetime] = hostclock.now) -> None:
        self._now, self.since = now, int(now().timestamp())
        self._rows = OrderedDict[Row, RequestCounts]()
        self._tenants = dict[bytes, str]()
        self._held: dict[Row, RequestCounts] | None = None  # the rows of others that are shown; None: the present ones

    def hold(self) -> None:
        """Show the present rows of others from now on."""
        self._held = {row: replace(counts) for row, counts in self._rows.items()}

    def add(self, key: bytes, tenant: str, model: str | None, counts: RequestCounts) -> None:
        """Count a request of a key, by its SHA-256, on this day."""
        self._tenants[key] = tenant
        self._rows.setdefault((self._today, key, model), RequestCounts()).add(counts)
        while len(self._rows) > MAX_ROWS:
            self._rows.popitem(last=False)

    def rows(self, *, key: bytes, everybody: bool, days: int = DAYS) -> UsageList:
        """The rows of a key, or of all keys, of the last days, today among them. Tokens that were
        cached are told of `key` alone."""
        return UsageList(since=self.since, data=sorted(
            self._selection(key, everybody=everybody, days=days),
            key=lambda row: (row.day, row.tenant, row.api_key_sha256, row.model or "")))

    def _selection(self, key: bytes, *, everybody: bool, days: int) -> Iterator[UsageRow]:
        today = self._today.toordinal()
        own = {row: counts for row, counts in self._rows.items() if row[1] == key}
        others = self._rows if self._held is None else self._held
        for (day, whose, model), counts in {**others, **own}.items():
            if (everybody or whose == key) and day.toordinal() > today - days:
                yield UsageRow(
                    day=day.isoformat(), tenant=self._tenants[whose], api_key_sha256=whose.hex(), model=model,
                    requests=counts.requests, refused=counts.refused, prompt_tokens=counts.prompt,
                    completion_tokens=counts.completion, cached_tokens=counts.cached if whose == key else None)

    @property
    def _today(self) -> date:
        return self._now().astimezone(UTC).date()
