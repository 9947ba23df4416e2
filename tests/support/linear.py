"""Whether processor time grows with a text alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

RATIO = 2.2  # of processor time, for a text twice as long
SECONDS, LONGEST = 0.004, 1 << 18  # from where time is compared; repeats of a unit at most
SLOW = 1.0  # seconds that no text of the shortest kind takes


def _takes(use: Callable[[Any], object], text: Any, times: int = 3) -> float:
    least = float("inf")
    for _ in range(times):
        start = time.thread_time()
        use(text)
        least = min(least, time.thread_time() - start)
        if least > SLOW:
            break
    return least


def grows_linearly(use: Callable[[Any], object], text: Callable[[int], Any]) -> bool:
    """Whether time at most doubles with the text, from where it can be measured."""
    count = 1 << 10
    while (takes := _takes(use, text(count), 1)) < SECONDS and count < LONGEST:
        count *= 2
    if takes < SECONDS:
        return True
    if count == 1 << 10 and takes > SLOW:
        return False
    return any(_takes(use, text(2 * count)) <= RATIO * _takes(use, text(count)) for _ in range(4))
