"""The claims that records of requests could be read until their time was over, and no longer.

The log alone tells: which period each record is sealed in, and when that period's key was
destroyed. docs/formats/audit-log-2.md, "Retention", says how.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate, groupby
from typing import Any

from appliance.audit.events import RETAINED
from appliance.audit.retained import period_seconds
from appliance.auditor.claims.case import Case
from appliance.auditor.claims.claim import Answer, Claim, by_records, fails, holds, open_
from appliance.codec.printable import quantity
from appliance.policy.schema import Policy

LATE_MS = 600_000  # a service that runs looks each minute
_ROUNDING = 2      # seconds: records tell whole ones
_DAY = 86_400


def least_days(policy: Policy) -> float | None:
    """For how many days records of requests can be read at least, by the host's clock; infinity
    where none is destroyed. None where whoever collects the log keeps it."""
    if policy.audit.sink != "state":
        return None
    age = policy.privacy.retention.audit_ms
    return math.inf if age is None else (_seconds_of(age) - period_seconds(_seconds_of(age))) / _DAY


def least_words(days: float) -> str:
    """Return a time that records are kept at least, in words."""
    return "none is destroyed" if math.isinf(days) else f"{math.floor(days * 100) / 100:g} days at least"


def most_words(age_ms: int) -> str:
    """Return the time after which records are destroyed, in words."""
    return f"{math.ceil(_seconds_of(age_ms) / _DAY * 100) / 100:g} days at most"


def _seconds_of(age_ms: int) -> int:
    return max(1, age_ms // 1000)


@dataclass
class Lapse:
    """How periods ended: the number that ended in time, early and wrong ends in words, and the
    periods that are left."""

    in_time: int = 0
    early: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left: set[int] = field(default_factory=set)


class _Boot:
    """The records of one boot, with its clocks."""

    def __init__(self, records: Sequence[dict[str, Any]], floor: int) -> None:
        self.records = records
        self.destroyed = {each["period"]: place for place, each in enumerate(records)
                          if each["event"] == "audit.expired" and "period" in each}
        self.sealed = {each["period"] for each in records if "sealed" in each}
        walls, monos = [_seconds(each) for each in records], [float(each["mono_ms"]) / 1000 for each in records]
        self._ahead: list[float] = list(accumulate((wall - mono for wall, mono in zip(walls, monos, strict=True)), max,
                                      initial=floor - monos[0]))
        ready = next((place for place, each in enumerate(records) if each["event"] == "boot.ready"), len(records))
        self._ready, self._reached = ready, list(accumulate(walls[ready:], max))

    def latest(self, place: int) -> float:
        """Return the latest time that the appliance's own clock, which never goes back, may have
        had at a record."""
        return self._ahead[place + 1] + float(self.records[place]["mono_ms"]) / 1000 + _ROUNDING

    def reached(self, time: float) -> int | None:
        """Return the first record of the running service at this time or later, by the host's
        clock."""
        found = self._ready + bisect_left(self._reached, time)
        return found if found < len(self.records) else None


def lapsed(records: Iterable[dict[str, Any]], policy_sha384: str, seconds: float) -> Lapse:
    """How the periods of a log ended, in boots under the policy of this digest, whose records live
    so many seconds. Boots under others are passed over: they promised something else."""
    found = Lapse()
    for _, group in groupby(records, key=lambda each: each["epoch"]):
        boot = _Boot(list(group), max(found.left, default=0))
        periods = found.left | boot.sealed | boot.destroyed.keys()
        if any(each["event"] == "boot.start" and each.get("policy_sha384") == policy_sha384 for each in boot.records):
            for period in sorted(periods):
                early, late = _early(boot, period, period + seconds), _late(boot, period, period + seconds)
                found.early += early
                found.wrong += late
                found.in_time += not (early or late) and period in boot.destroyed
            found.wrong += _in_the_open(boot.records)
        found.left = periods - boot.destroyed.keys()
    return found


def _early(boot: _Boot, period: int, due: float) -> list[str]:
    """Say that a period's key was destroyed in a boot before its time; empty where it was not."""
    place = boot.destroyed.get(period)
    if place is None or boot.latest(place) >= due:
        return []
    return [f"the key of period {period} was destroyed before its time: {boot.records[place]['time']}"]


def _late(boot: _Boot, period: int, due: float) -> list[str]:
    """Say that a period's key outlived its time in a boot; empty where it did not."""
    place, since = boot.destroyed.get(period), boot.reached(due)
    until = len(boot.records) - 1 if place is None else place
    if since is None or boot.records[until]["mono_ms"] - boot.records[since]["mono_ms"] <= LATE_MS:
        return []
    return [f"the key of period {period} was due at {boot.records[since]['time']}, and "
            f"{'still there' if place is None else 'destroyed'} at {boot.records[until]['time']}"]


def _in_the_open(records: Sequence[dict[str, Any]]) -> list[str]:
    bare = [each["seq"] for each in records if each["event"] in RETAINED and "sealed" not in each]
    return [f"records of requests that are not sealed: {len(bare)}, the first is record {bare[0]}"] if bare else []


def _seconds(record: dict[str, Any]) -> float:
    """Return a record's time in seconds since 1970; the beginning of time for a day that there is
    not."""
    try:
        return datetime.fromisoformat(record["time"]).timestamp()
    except ValueError:
        return 0.0


def _kept(case: Case) -> Answer:
    policy = case.policy.policy
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    if (days := least_days(policy)) is None:
        return open_("the appliance does not keep the log: its lines go to whoever collects them")
    age = policy.privacy.retention.audit_ms
    found = lapsed(case.as_written, case.policy.digest.hex(), math.inf if age is None else _seconds_of(age))
    if found.early:
        return fails("; ".join(found.early[:3]))
    return holds(f"{least_words(days)}; readable: {quantity(len(found.left), 'period')}")


def _expired(case: Case) -> Answer:
    age = case.policy.policy.privacy.retention.audit_ms
    if case.log.bad is not None:
        return fails(f"record {case.log.bad.position}: {case.log.bad.what}")
    if age is None:
        return open_("the policy has no time at which records are destroyed")
    found = lapsed(case.as_written, case.policy.digest.hex(), _seconds_of(age))
    if found.early or found.wrong:
        return fails("; ".join((found.early + found.wrong)[:3]))
    if not found.in_time:
        return open_(f"no key was due; readable: {quantity(len(found.left), 'period')}")
    return holds(f"destroyed in time: {quantity(found.in_time, 'key')}, after {most_words(age)}; readable: "
                 f"{quantity(len(found.left), 'period')}")


CLAIMS = (
    Claim("log-kept", "Records of requests could be read for as long as the policy says.", by_records(_kept)),
    Claim("log-expired", "Records of requests became unreadable when their time was over.", by_records(_expired)),
)
