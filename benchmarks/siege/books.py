"""The two sides of the books: the answers that clients got, and the audit log's records of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
Head = tuple[str, str, int]
"""A request's id, its endpoint, and the status that its client was told."""

BROKEN = ("sessions.failed", "model.failed", "model.abandoned")
ENDED = ("request.done", "request.refused", "request.ended")


def unrecorded(heads: Iterable[Head], records: Sequence[Record]) -> list[str]:
    """The answers that clients have and the log does not, in words: those without a record, and
    without a place in the counts of their endpoint."""
    named = {each["request"] for each in records if each["event"] in ENDED}
    counted = _counted(records)
    missing = Counter(endpoint for request, endpoint, _ in heads if request not in named)
    return [f"{endpoint}: {count} without a record, {counted[endpoint]} counted"
            for endpoint, count in missing.items() if count > counted[endpoint]]


def faults(records: Sequence[Record]) -> list[str]:
    """The service's own faults, as its log tells them."""
    found = Counter(f"{each['type']} in {each['where']}" for each in records if each["event"] == "runtime.exception")
    broken = [f"{count} times {what}" for what, count in found.items()]
    broken += [each["event"] for each in records if each["event"] in BROKEN]
    broken += [f"internal_error at {each['endpoint']}" for each in records if each.get("code") == "internal_error"]
    closed = [each for each in records if each["event"] == "audit.closed"]
    if not closed:
        broken.append("the log does not end")
    return broken + [f"{each['dropped']} records dropped" for each in closed if each["dropped"]]


def _counted(records: Sequence[Record]) -> Counter[str]:
    """Requests that have no record of their own, by endpoint."""
    found: Counter[str] = Counter()
    for each in records:
        if each["event"] == "requests.counted":
            found.update(each.get("answered", {}))
            for endpoint, codes in each.get("refused", {}).items():
                found[endpoint] += sum(codes.values())
    return found
