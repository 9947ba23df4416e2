"""Counts of requests that have no record of their own, of connections, and of exceptions beyond a
few.

A record of each request would let a stranger, who needs no API key to send many, fill the log's
disk. So requests without a key are counted, and one record a minute has the counts. So are those
that cost a key nothing and come in plenty. Counts are by words of closed sets: the memory is
bounded, however many come.

Passes that ended after their interval are counted here as well, by their models.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

CONNECTIONS = ("handshake", "late", "refused")  # a handshake that failed, a head that did not come, one too many
MOST_TENANTS = 192  # of one record, so that no line is too long
_ANSWERED, _REFUSED, _TENANT, _CONNECTION, _EXCEPTION = "answered", "refused", "tenants", "connections", "exceptions"
_LATE = "late_passes"

Kinds = Counter[tuple[str, ...]]


class CountedRequests:
    """The counts since they were last taken. Safe to call from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Kinds = Counter()
        self._begun = 0.0  # when the first of them came

    def request(self, endpoint: str, code: str | None, tenant: str | None = None) -> None:
        """Count a request that was answered (None), or refused with a code; by its tenant where it
        had a valid key."""
        kinds: list[tuple[str, ...]] = [(_ANSWERED, endpoint) if code is None else (_REFUSED, endpoint, code)]
        self._add(*kinds, *([] if tenant is None else [(_TENANT, tenant)]))

    def connection(self, how: str) -> None:
        """Count a connection that ended without a request, by a word of `CONNECTIONS`."""
        self._add((_CONNECTION, how))

    def exception(self) -> None:
        """Count an exception that gets no record of its own."""
        self._add((_EXCEPTION,))

    def late(self, model: str) -> None:
        """Count a pass that ended after its interval, by its model."""
        self._add((_LATE, model))

    def take(self) -> list[Portion]:
        """Take all counts; none where nothing was counted."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            return [Portion(counts, self._begun, self._clock()) for counts in _parts(counts)]

    def give_back(self, part: Portion) -> None:
        """Count again what was taken and could not be recorded."""
        with self._lock:
            self._begun = min(part.begun, self._begun) if self._counts else part.begun
            self._counts.update(part.counts)

    def _add(self, *kinds: tuple[str, ...]) -> None:
        with self._lock:
            if not self._counts:
                self._begun = self._clock()
            self._counts.update(kinds)


class Portion:
    """The counts of one record, with the times of the monotonic clock between which they came."""

    def __init__(self, counts: Kinds, begun: float, end: float) -> None:
        self.counts, self.begun = counts, begun
        self._seconds = max(0, round(end - begun))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `requests.counted`."""
        found: dict[str, Any] = {"seconds": self._seconds}
        for (*words, last), count in self.counts.items():
            place = found
            for word in words:
                place = place.setdefault(word, {})
            place[last] = count
        return found


def _parts(counts: Kinds) -> Iterator[Kinds]:
    """Counts, of which none has too many tenants."""
    tenants = [kind for kind in counts if kind[0] == _TENANT]
    more = tenants[MOST_TENANTS:]
    if rest := Counter({kind: count for kind, count in counts.items() if kind not in set(more)}):
        yield rest
    for start in range(0, len(more), MOST_TENANTS):
        yield Counter({kind: counts[kind] for kind in more[start:start + MOST_TENANTS]})
