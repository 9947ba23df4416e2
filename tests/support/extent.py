"""How far a run goes through what has thousands of cases: a sample in `make test`, all of it in `make soak`.

A sample is the same in every run. It is spread evenly, so that it has cases of every part: flips in
each field of a report, words of each length. A case that found a fault is not left to the sample:
it gets a test of its own.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
WHOLE = os.environ.get("APPLIANCE_TESTS_EXTENT") == "all"  # set by `make soak`


def some(cases: Sequence[T], count: int) -> Sequence[T]:
    """Return `count` of the cases at even distances, the first and the last among them; in the soak, all of them."""
    if WHOLE or len(cases) <= count:
        return cases
    if count == 1:
        return cases[:1]
    return [cases[place * (len(cases) - 1) // (count - 1)] for place in range(count)]


def examples(usual: int, whole: int) -> int:
    """Return how many examples a property is tried with: `usual`, or `whole` in the soak."""
    return whole if WHOLE else usual
