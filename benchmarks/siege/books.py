"""The two sides of the books: what clients were told, and what the audit log has of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]
Head = tuple[str, str, int]
"""A request's id, its endpoint, and the status that its client was told."""

ENDED = ("request.done", "request.refused")


def unrecorded(heads: Iterable[Head], records: Sequence[Record]) -> list[str]:
    """What clients were told and the log does not have: neither a record of the request, nor a
    place in the counts of its endpoint."""
    named = {each["request"] for each in records if each["event"] in ENDED}
    counted = _counted(records)
    missing = Counter(endpoint for request, endpoint, _ in heads if request not in named)
    return [f"{endpoint}: {count} without a record, {counted[endpoint]} counted"
            for endpoint, count in missing.items() if count > counted[endpoint]]


def faults(records: Sequence[Record]) -> list[str]:
    """What a log says of the service's own faults."""
    found = Counter(f"{each['type']} in {each['where']}" for each in records if each["event"] == "runtime.exception")
    broken = [f"{count} times {what}" for what, count in found.items()]
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
