"""Bounds of processor time that a slow machine, or a busy one, does not break."""

from __future__ import annotations

import statistics
import sys
import time

REFERENCE = 0.009  # processor seconds of `_work` on an AMD EPYC (Zen 4)
TRACED = 2.0  # times as long, where the lines that tests reach are counted


def _work() -> float:
    start = time.process_time()
    words: dict[str, int] = {}
    for number in range(40_000):
        word = f"{number % 977}:{number & 3}"
        words[word] = words.get(word, 0) + len(word)
    return time.process_time() - start


def within(taken: float, seconds: float) -> bool:
    """Return whether work that took so many processor seconds takes less than `seconds` on an idle reference machine:
    a slower machine, or a busy one, has more of them."""
    if taken < seconds:
        return True
    slower = max(1.0, statistics.median(_work() for _ in range(9)) / REFERENCE)
    return taken < seconds * slower * (1.0 if sys.gettrace() is None else TRACED)
