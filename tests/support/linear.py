"""A check that processor time grows only in proportion to a text."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

RATIO = 2.2  # of processor time, for a text twice as long
WORSE = 3.0  # what no disturbance explains: twice as long a text takes four times as long where time is quadratic
DOUBLINGS = 3  # whose median or mean counts: where memory comes from another place, one of them takes longer
STARTS = 4  # lengths to begin from: a text that leaves the caches takes longer once, a quadratic one from each
SECONDS, LONGEST = 0.002, 1 << 17  # from where time is compared; repeats of a unit at most
ROUNDS, FEW = 20, 4  # of measuring at most, of which the least counts: others disturb; and where no doubt is left
SLOW, LONG = 1.0, 0.12  # seconds that no text of the shortest kind takes; after which no longer text is tried
SHORTEST = 1 << 10


def _takes(use: Callable[[Any], object], text: Any) -> float:
    """Seconds of a processor, without those of the collector, which looks through all that the tests hold."""
    gc.disable()
    try:
        start = time.thread_time()
        use(text)
        return time.thread_time() - start
    finally:
        gc.enable()


def _linear_from(use: Callable[[Any], object], texts: list[Any]) -> tuple[bool, float]:
    """Whether time grows as the texts do, each twice as long as the one before; and the seconds that the last takes."""
    least = [float("inf")] * len(texts)
    for tried in range(ROUNDS):
        least = [min(before, _takes(use, each)) for before, each in zip(least, texts, strict=True)]
        ratios = [after / before for before, after in itertools.pairwise(least)]
        ratio = min(statistics.median(ratios), statistics.geometric_mean(ratios))
        if ratio <= RATIO:
            return True, least[-1]
        if tried >= FEW and ratio >= WORSE:
            break
    return False, least[-1]


def grows_linearly(use: Callable[[Any], object], text: Callable[[int], Any]) -> bool:
    """Whether time at most grows as the text does, from where it can be measured and in the long run."""
    count = SHORTEST
    while (takes := _takes(use, text(count))) < SECONDS and count < LONGEST:
        count *= 2
    if takes < SECONDS:
        return True
    if count == SHORTEST and takes > SLOW:
        return False
    for start in range(STARTS):
        linear, longest = _linear_from(use, [text(count << start + doubling) for doubling in range(DOUBLINGS + 1)])
        if linear or longest > LONG:
            return linear
    return False
