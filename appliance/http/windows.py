"""The windows in which bytes leave under a cadence: one in each interval, while no pass is at work.

    |------- pass, up to 12/16 -------|--|== window, 13/16 to 15/16 ==|- next pass planned -|
    multiple                                                                       multiple

All are the clock's: when one opens depends on no request. Nanoseconds of the monotonic clock.
"""

from __future__ import annotations

from dataclasses import dataclass

BEFORE, WIDTH, PARTS = 3, 2, 16  # sixteenths of an interval: from an opening to the multiple, and to its close
WIDTH_NS = 2_000_000  # of a window, at most
AHEAD_NS = 1_500_000  # before an opening, at most, for the sender to take the interpreter's lock
_ROUNDING_NS = 1_000  # by which a time in seconds may be off its multiple


@dataclass(frozen=True)
class Windows:
    """The windows of an interval."""

    interval_ns: int

    @classmethod
    def of(cls, cadence: float, first_token: float) -> Windows:
        """The windows of a policy's cadence, in seconds; of `first_token` where that is shorter, as
        each of its multiples needs one."""
        return cls(round(min(cadence, first_token) * 1e9))

    @property
    def width_ns(self) -> int:
        """From the opening to the close."""
        return min(WIDTH_NS, self.interval_ns * WIDTH // PARTS)

    @property
    def ahead_ns(self) -> int:
        """Before an opening: what is to leave in it is complete by then."""
        return min(AHEAD_NS, self.interval_ns * WIDTH // PARTS)

    def number(self, due: float) -> int:
        """The window of a time in seconds: before the multiple that is at it, or the next one
        after."""
        return -((_ROUNDING_NS - round(due * 1e9)) // self.interval_ns)

    def opening(self, number: int) -> int:
        """When a window opens."""
        return number * self.interval_ns - self.interval_ns * BEFORE // PARTS

    def next(self, now: int) -> int:
        """The first window for which something can be made ready by now."""
        return (now + self.ahead_ns + self.interval_ns * BEFORE // PARTS) // self.interval_ns + 1
