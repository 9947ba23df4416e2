"""Counts of what no API key asked for: requests, connections, and exceptions beyond a few.

Whoever can reach the port can send as much as it likes. A record of each would let a stranger fill
the log's disk. So these are counted, and one record a minute has the counts. The words that they
are counted by belong to closed sets: the memory is bounded, however many come.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

CONNECTIONS = ("handshake", "late", "refused")  # a handshake that failed, a head that did not come, one too many
_ANSWERED, _REFUSED, _CONNECTION, _EXCEPTION = "answered", "refused", "connections", "exceptions"


class Counted:
    """The counts since they were last taken. Safe to call from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._begun = 0.0  # when the first of them came

    def request(self, endpoint: str, code: str | None) -> None:
        """Count a request that was answered (None), or refused with a code."""
        self._add((_ANSWERED, endpoint) if code is None else (_REFUSED, endpoint, code))

    def connection(self, how: str) -> None:
        """Count a connection that ended without a request, by a word of `CONNECTIONS`."""
        self._add((_CONNECTION, how))

    def exception(self) -> None:
        """Count an exception that gets no record of its own."""
        self._add((_EXCEPTION,))

    def take(self) -> Taken | None:
        """Take all counts; None where there are none."""
        with self._lock:
            if not self._counts:
                return None
            taken = Taken(self._counts, self._begun, self._clock())
            self._counts = Counter()
            return taken

    def give_back(self, taken: Taken) -> None:
        """Count again what was taken and could not be recorded."""
        with self._lock:
            self._begun = taken.begun
            self._counts.update(taken.counts)

    def _add(self, what: tuple[str, ...]) -> None:
        with self._lock:
            if not self._counts:
                self._begun = self._clock()
            self._counts[what] += 1


class Taken:
    """Counts that were taken, with the times of the monotonic clock between which they came."""

    def __init__(self, counts: Counter[tuple[str, ...]], begun: float, end: float) -> None:
        self.counts, self.begun = counts, begun
        self._seconds = max(0, round(end - begun))

    @property
    def fields(self) -> dict[str, Any]:
        """The fields of `requests.counted`."""
        found: dict[str, Any] = {"seconds": self._seconds}
        for (kind, *words), count in self.counts.items():
            if kind == _EXCEPTION:
                found[kind] = count
                continue
            place = found.setdefault(kind, {})
            for word in words[:-1]:
                place = place.setdefault(word, {})
            place[words[-1]] = count
        return found
