"""Bound what an onlooker learns from times, sizes and counts, by the policy's grids.

Promised, with `timing_padding` (times from the arrival of the request's head, plus the jitter, on
each):

* the head of a streamed answer leaves on the next multiple of `first_token` after the request was
  admitted;
* until the first token is there, a comment leaves every `AWAKE_SECONDS`, on a multiple, which keeps
  proxies awake;
* the first event leaves on a multiple of `first_token`. From then on exactly one event leaves at
  each multiple, whether or not there is new text, until the answer ends. So the gaps and the number
  of events tell nothing about single tokens;
* the last event of a streamed answer leaves on a multiple of `total`; another answer or refusal
  begins to, and the rest follows as fast as its client takes it.

With a `cadence` besides, streams and their refusals leave as parcels: delivery/parcels.py. Times
count from the next multiple of `first_token` on the clock. Each part of an answer is made a while
before its multiple, and leaves in the window of that: http/windows.py.

Left: the multiple itself (how long, to the grid). With `size_padding`, an event or a whole answer
has a multiple of that many bytes. An answer that is too long to be made before it leaves goes out
in portions, on multiples of `total`. docs/concepts/privacy.md says what that means. The grid needs
a free CPU: on an overloaded machine an event can leave late.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from appliance.http.windows import Windows

_JITTER_STEPS = 1 << 20
_DIGITS = 6  # of a number of multiples that count: the rest is the rounding of a float
AWAKE_SECONDS = 10.0  # of silence in a stream: some proxies end a connection after fifteen


@dataclass(frozen=True)
class Timing:
    """Grids in seconds; 0: not padded."""

    first_token: float = 0.0
    total: float = 0.0
    jitter: float = 0.0
    cadence: float = 0.0

    @property
    def padded(self) -> bool:
        """Whether events of a stream leave on a grid."""
        return self.first_token > 0

    @property
    def windows(self) -> Windows | None:
        """The windows in which answers leave; None without a cadence."""
        return Windows.of(self.cadence, self.first_token) if self.cadence > 0 else None

    @property
    def lead(self) -> float:
        """How long before its multiple a part of an answer is made."""
        return max(self.first_token / 2, min(self.cadence, self.first_token)) if self.cadence > 0 else 0.0

    def origin(self, arrived: float) -> float:
        """When times of a request begin: a multiple that all requests share, so that the work at
        its arrival moves none of its answer's."""
        if not self.cadence:
            return arrived
        return math.ceil(round(arrived / self.first_token, _DIGITS)) * self.first_token


def round_up(count: int, multiple: int) -> int:
    """The next multiple that is not below `count`."""
    return -(-count // multiple) * multiple


def bucket_us(seconds: float, grid: float) -> int:
    """A duration for the log in microseconds, up to the grid that it was padded to."""
    if grid > 0:
        seconds = math.ceil(seconds / grid) * grid
    return max(0, round(seconds * 1e6))


def spaces(size: int, multiple: int | None) -> int | None:
    """Spaces that follow a JSON text of so many bytes, up to a multiple of bytes; None: its size is
    not padded."""
    return None if multiple is None else -size % multiple


def pad_event(data: bytes, multiple: int | None) -> bytes:
    """Server-sent events with a comment before them, up to a multiple of bytes; None: as they are.
    """
    if multiple is None or len(data) % multiple == 0:
        return data
    missing = -len(data) % multiple
    if missing == 1:  # the shortest comment has two bytes
        missing += multiple
    return b":" + b" " * (missing - 2) + b"\n" + data


class Pacer:
    """Holds one answer's bytes back to the grid."""

    def __init__(self, timing: Timing, arrived: float, *, clock: Callable[[], float] = time.monotonic,
                 sleep: Callable[[float], object] = asyncio.sleep) -> None:
        self.timing = timing
        self._arrived = timing.origin(arrived)
        self._clock = clock
        self._sleep = sleep
        self._tick = 0  # the last multiple of the first-token grid that was used
        self._windows = timing.windows
        self.due: float | None = None  # the multiple at which what is made now leaves in a window
        self.held: float | None = None  # the multiple that the end was held to, in seconds from the arrival

    def next_tick(self) -> float:
        """The multiple at which the next event of a stream leaves, by the clock; each call takes
        one."""
        grid = self.timing.first_token
        now = self._clock()
        if grid <= 0:
            return now
        self._tick = max(self._tick + 1, math.ceil((now - self._arrived) / grid))
        return self._arrived + self._tick * grid

    async def beat(self) -> int:
        """Sleep until the next multiple of `first_token`, of which none is left out, or until what
        leaves then is made. Returns how many follow up to the next multiple of `total`, which is
        one of them."""
        grid = self.timing.first_token
        self._tick = self._tick + 1 if self._tick else max(1, self._multiples(grid))
        due = self._tick * grid
        await self.until(self._arrived + due)
        left = -self._tick % self.beats
        self.held = None if left else due
        return left

    @property
    def beats(self) -> int:
        """How many multiples of `first_token` are one of `total`."""
        return round(self.timing.total / self.timing.first_token)

    def awake(self) -> float:
        """When a stream's next comment is due, by the clock, should nothing leave until then."""
        grid = self.timing.first_token
        if grid <= 0:
            return self._clock() + AWAKE_SECONDS
        return self._arrived + (self._tick + math.ceil(AWAKE_SECONDS / grid)) * grid

    def left(self, due: float) -> float:
        """Seconds until a time by the clock, 0 if it is over."""
        return max(0.0, due - self._clock())

    def end(self) -> float:
        """The multiple at which the answer's last byte leaves, by the clock."""
        grid = self.timing.total
        if grid <= 0:
            return self._clock()
        return self._arrived + max(self._windows is not None, self._multiples(grid)) * grid

    def _multiples(self, grid: float) -> int:
        """How many multiples from the request to the first that can be met."""
        count = (self._clock() + self.timing.lead - self._arrived) / grid
        return math.ceil(count if self._windows is None else round(count, _DIGITS))

    async def until(self, due: float) -> None:
        """Sleep until a multiple, and for a random time on top; where answers leave in windows,
        until what leaves then is made."""
        due += self.timing.jitter * secrets.randbelow(_JITTER_STEPS) / _JITTER_STEPS
        if self._windows is not None:
            self.due, windows = due, self._windows
            due = windows.opening(windows.number(due - self.timing.lead)) / 1e9
        await self._until(due)

    def first(self) -> None:
        """Let what is made now leave at the multiple at which a stream would begin, if there are
        windows."""
        if self._windows is not None:
            grid = self.timing.first_token
            self.due = self._arrived + max(1, self._multiples(grid)) * grid

    async def leave(self) -> None:
        """Sleep until what was made leaves, where no window holds it."""
        due, self.due = self.due, None
        if due is not None:
            await self._until(due)

    async def _until(self, due: float) -> None:
        delay = due - self._clock()
        if delay > 0:
            await self._sleep(delay)  # type: ignore[misc]

    async def hold_end(self, due: float | None = None) -> None:
        """Sleep until the answer may end: at `due`, a multiple that `end` gave before, or at the
        next."""
        due = self.end() if due is None else due
        await self.until(due)
        self.held = due - self._arrived if self.timing.total > 0 else None
