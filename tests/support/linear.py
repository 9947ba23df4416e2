"""Whether processor time grows with a text alone."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any

RATIO = 2.2  # of processor time, for a text twice as long
DOUBLINGS = 3  # whose median or mean counts: where memory comes from another place, one of them takes longer
SECONDS, LONGEST = 0.002, 1 << 17  # from where time is compared; repeats of a unit at most
ROUNDS = 30  # of measuring at most, of which the least counts: others disturb
SLOW = 1.0  # seconds that no text of the shortest kind takes
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


def grows_linearly(use: Callable[[Any], object], text: Callable[[int], Any]) -> bool:
    """Whether time at most grows as the text does, from where it can be measured."""
    count = SHORTEST
    while (takes := _takes(use, text(count))) < SECONDS and count < LONGEST:
        count *= 2
    if takes < SECONDS:
        return True
    if count == SHORTEST and takes > SLOW:
        return False
    texts = [text(count << doubling) for doubling in range(DOUBLINGS + 1)]
    least = [float("inf")] * len(texts)
    for _ in range(ROUNDS):
        least = [min(before, _takes(use, each)) for before, each in zip(least, texts, strict=True)]
        ratios = [after / before for before, after in itertools.pairwise(least)]
        if min(statistics.median(ratios), statistics.geometric_mean(ratios)) <= RATIO:
            return True
    return False
