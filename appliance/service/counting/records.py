"""Which requests of a key have records of their own in the audit log.

An answer of a model always has one; quotas bound how many there are. Refusals and requests that ask
no model cost a key nothing, and would let one tenant fill the log's disk for all. So each key has
some in a minute, and the others are counted.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

MOST, SECONDS = 60, 60.0


class OwnRecords:
    """Counts records by key. Memory is bounded by the number of valid keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._minute = clock, 0
        self._written: Counter[bytes] = Counter()

    def take(self, key: bytes) -> bool:
        """Whether one more request of a key, by its SHA-256, has a record."""
        minute = int(self._clock() // SECONDS)
        if minute != self._minute:
            self._minute, self._written = minute, Counter()
        self._written[key] += 1
        return self._written[key] <= MOST
