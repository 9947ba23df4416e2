"""Figures out of a log's records: how many of what, when, and how long it took.

Times are the host's word, and durations are rounded as the policy says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

MOST_BARS = 48
_STEPS = (60, 300, 900, 3600, 4 * 3600, 86400, 7 * 86400, 30 * 86400, 365 * 86400)  # seconds a bar may stand for
_LATENCIES = (  # up to so many milliseconds, in words
    (100, "under 0.1 s"), (250, "to 0.25 s"), (500, "to 0.5 s"), (1000, "to 1 s"), (2000, "to 2 s"), (5000, "to 5 s"),
    (10_000, "to 10 s"), (30_000, "to 30 s"), (60_000, "to 60 s"))
_LONGEST = "over 60 s"
_MOST_ROWS = 12

Bars = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class BootRow:
    """One boot as the log has it."""

    epoch: int
    opened: str
    version: str
    records: int
    ended: str


@dataclass(frozen=True)
class Figures:
    """The figures of one log. A bar is a label and a count."""

    first: str
    last: str
    step: int  # seconds a bar over time stands for
    done: Bars
    refused: Bars
    ended: Bars  # answered or refused: their records do not say which
    codes: Bars
    endpoints: Bars
    latencies: Bars
    finishes: Bars
    boots: tuple[BootRow, ...]

    @property
    def requests(self) -> int:
        """Requests that ended, refused or not."""
        return sum(count for _, count in (*self.done, *self.refused, *self.ended))


def of(records: Sequence[dict[str, Any]]) -> Figures:
    """Return the figures of a log's records, whose form has been checked."""
    done = [each for each in records if each["event"] == "request.done"]
    refused = [each for each in records if each["event"] == "request.refused"]
    ended = [each for each in records if each["event"] == "request.ended"]
    answers, refusals = _counted(records, "answered"), _counted(records, "refused")  # of requests without a key
    times = [when for each in (*done, *refused, *ended, *(each for each, _, _ in (*answers, *refusals)))
             if (when := _seconds(each)) is not None]
    begin, step, count = _scale(times)
    said = [str(each["time"]) for each in records]
    codes = Counter(_word(each, "code") for each in refused)
    endpoints = Counter(_word(each, "endpoint") for each in (*done, *refused, *ended))
    for _, counts, _ in refusals:
        codes.update(counts)
    for _, _, counts in (*answers, *refusals):
        endpoints.update(counts)
    return Figures(
        said[0] if said else "", said[-1] if said else "", step, _over_time(done, answers, begin, step, count),
        _over_time(refused, refusals, begin, step, count), _over_time(ended, [], begin, step, count) if ended else (),
        _most(codes), _most(endpoints), _latencies((*done, *ended)),
        _most(Counter(str(each["finish"]) for each in done if "finish" in each)), _boots(records))


Counted = list[tuple[dict[str, Any], Counter[str], Counter[str]]]


def _counted(records: Sequence[dict[str, Any]], kind: str) -> Counted:
    """Return the counts of `requests.counted`: the record, its counts by code, and by endpoint.
    Answers have no code."""
    found: Counted = []
    for record in records:
        codes, endpoints = Counter[str](), Counter[str]()
        for endpoint, counts in record.get(kind, {}).items() if record["event"] == "requests.counted" else ():
            codes.update(counts if kind == "refused" else {})
            endpoints[endpoint] += sum(counts.values()) if kind == "refused" else counts
        if endpoints:
            found.append((record, codes, endpoints))
    return found


def _seconds(record: dict[str, Any]) -> int | None:
    """Return a record's time in seconds since 1970; None for a day that there is not."""
    try:
        return int(datetime.strptime(record["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return None


def _scale(times: Sequence[int]) -> tuple[int, int, int]:
    """Where bars over time begin, how many seconds each stands for, and how many there are."""
    if not times:
        return 0, _STEPS[0], 0
    span = max(times) - min(times) + 1
    step = next((each for each in _STEPS if span <= each * (MOST_BARS - 1)), -(-span // (MOST_BARS - 1)))
    begin = min(times) // step * step
    return begin, step, (max(times) - begin) // step + 1


def _over_time(records: Iterable[dict[str, Any]], counted: Counted, begin: int, step: int, count: int) -> Bars:
    counts = Counter((when - begin) // step for each in records if (when := _seconds(each)) is not None)
    for each, _, endpoints in counted:
        if (when := _seconds(each)) is not None:
            counts[(when - begin) // step] += endpoints.total()
    form = "%Y-%m-%d" if step >= 86400 else "%Y-%m-%d %H:%M"
    return tuple((datetime.fromtimestamp(begin + number * step, UTC).strftime(form), counts[number])
                 for number in range(count))


def _most(words: Counter[str]) -> Bars:
    """Return the commonest words; the rest is one row."""
    counts = sorted(words.items(), key=lambda each: (-each[1], each[0]))
    rest = sum(count for _, count in counts[_MOST_ROWS:])
    return (*counts[:_MOST_ROWS], *([("others", rest)] if rest else []))


def _word(record: dict[str, Any], name: str) -> str:
    """Return a field in words, also of a record that nobody here can read."""
    return "sealed" if "sealed" in record else str(record.get(name))


def _latencies(records: Iterable[dict[str, Any]]) -> Bars:
    counts: Counter[str] = Counter()
    for each in records:
        if "duration_us" in each:
            taken = each["duration_us"] / 1000
            counts[next((label for most, label in _LATENCIES if taken <= most), _LONGEST)] += 1
    found = [(label, counts[label]) for label in (*(label for _, label in _LATENCIES), _LONGEST)]
    return tuple(found) if counts else ()


def _boots(records: Sequence[dict[str, Any]]) -> tuple[BootRow, ...]:
    rows: list[BootRow] = []
    opened: list[tuple[int, dict[str, Any]]] = [
        (place, each) for place, each in enumerate(records) if each["event"] == "log.opened"]
    for number, (place, each) in enumerate(opened):
        end = opened[number + 1][0] if number + 1 < len(opened) else len(records)
        events = {record["event"] for record in records[place:end]}
        ended = ("in order" if "audit.closed" in events else "failed" if "boot.failed" in events
                 else "runs, or was cut" if end == len(records) else "was cut")
        rows.append(BootRow(each["epoch"], str(each["time"]), str(each.get("version", "")), end - place, ended))
    return tuple(rows)
