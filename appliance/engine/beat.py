"""The multiples of an interval, on the monotonic clock, at which passes begin.

    left     seconds until the next multiple
    begin    a pass begins at it
    settle   its work is done: it is late where a multiple has come meanwhile. That one is left out, and none is made up

Used by one thread.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable


class Beat:
    """An interval's multiples, and how well they were met."""

    def __init__(self, interval: float, clock: Callable[[], float] = time.monotonic,
                 on_late: Callable[[], None] = lambda: None) -> None:
        """`interval`: seconds; `on_late` is called for each pass that ended after its interval."""
        self.interval, self._clock, self._on_late = interval, clock, on_late
        self._next = math.floor(clock() / interval) + 1  # the multiple that is waited for
        self.late = 0
        """Passes that ended after their interval."""
        self.lateness = 0
        """Intervals by which the latest of them ended after its own, begun ones included."""
        self.deviation = 0.0
        """Seconds by which a pass began after its multiple, at most."""

    @property
    def left(self) -> float:
        """Seconds until the next multiple; negative where it is over."""
        return self._next * self.interval - self._clock()

    def begin(self) -> None:
        """Begin the pass of the multiple that was waited for."""
        self.deviation = max(self.deviation, -self.left)
        self._next += 1
        self.settle()  # where the thread was stopped for longer than an interval

    def settle(self) -> None:
        """End a pass. It is late where its interval is over: the next multiple is waited for."""
        over = -self.left
        if over <= 0:
            return
        intervals = math.ceil(over / self.interval)
        self.late, self.lateness = self.late + 1, max(self.lateness, intervals)
        self._next += intervals
        self._on_late()
