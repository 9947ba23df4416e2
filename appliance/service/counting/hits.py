"""How many requests found a part of their prompt in the prefix cache, as the operator may know it:
with noise, so that no single request shows.

An exact count, however rounded, would tell a hit to whoever brings it to the edge of a step. So a
count is told for whole windows of time alone, and each has noise of its own, drawn once: a
difference of two geometric variables. A request is in one window, and changes its count by one at
most. So the result is differentially private with ε = `EPSILON`. A guess at hit or miss by it is
right in at most e^ε / (1 + e^ε) = 52.5% of cases. Rounding comes after the noise.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Callable

WINDOW_SECONDS = 300.0
EPSILON = 0.1
STEP = 10  # counts are told in multiples of it

Clock = Callable[[], float]


def _geometric() -> int:
    """How often a coin falls on its first side before the other; that side has the chance e^-ε."""
    uniform = (secrets.randbits(53) + 1) * 2.0**-53  # above 0, at most 1
    return math.floor(-math.log(uniform) / EPSILON)


def noise() -> int:
    """A whole number k, drawn with a probability in proportion to e^(-ε |k|)."""
    return _geometric() - _geometric()


class Hits:
    """Requests that found a part of their prompt, of one model."""

    def __init__(self, clock: Clock = time.monotonic, draw: Callable[[], int] = noise) -> None:
        self._clock, self._draw, self._start = clock, draw, clock()
        self._window = self._count = self._noisy = 0

    def add(self) -> None:
        """Count one request."""
        self._roll()
        self._count += 1

    @property
    def noisy(self) -> int:
        """The count of the last whole window, with noise, in steps; 0 in the first window. It is
        the same for all who ask in one window."""
        self._roll()
        return self._noisy

    def _roll(self) -> None:
        """Draw the noise of a window once it is over."""
        window = int((self._clock() - self._start) // WINDOW_SECONDS)
        if window == self._window:
            return
        last = self._count if window == self._window + 1 else 0
        self._noisy = max(0, STEP * round((last + self._draw()) / STEP))
        self._window, self._count = window, 0
