"""Numbers of a schema: which are meant to the letter, and bounds that hold after rounding.

A program that reads JSON rounds most numbers to doubles. So a number above a bound may be read as
the bound itself: 0.99999999999999999999 is read as 1. Exclusive bounds of numbers that are not
whole are therefore moved inwards, by a billionth.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

LARGEST = 1 << 53  # whole numbers up to here are read alike everywhere
_STEP = Decimal("1e-9")
_FINEST = -9  # decimal places of a number that is not whole


def exact(value: Any) -> int | float | None:
    """A number of a schema, whole numbers as int; None where readers differ over its value, or for
    another value."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    if abs(value) > LARGEST:
        return None
    if value == int(value):
        return int(value)
    exponent = Decimal(repr(value)).normalize().as_tuple().exponent
    return value if isinstance(exponent, int) and exponent >= _FINEST and abs(value) < 1e6 else None


def is_beyond(bound: Any, *, above: bool) -> bool:
    """Whether a bound lies beyond all whole numbers that are read alike, as that of a float of 32
    bits does: numbers up to these are then within it."""
    if isinstance(bound, bool) or not isinstance(bound, int | float) or not math.isfinite(bound):
        return False
    return bound > LARGEST if above else bound < -LARGEST


def above(bound: float, *, whole: bool) -> int | float:
    """The least number of a schema that is above a bound."""
    return math.floor(bound) + 1 if whole else _moved(bound, _STEP)


def below(bound: float, *, whole: bool) -> int | float:
    """The largest number of a schema that is below a bound."""
    return math.ceil(bound) - 1 if whole else _moved(bound, -_STEP)


def _moved(bound: float, step: Decimal) -> float:
    """A bound, moved by more than the distance of the doubles around it."""
    exact_bound = Decimal(repr(bound)) if isinstance(bound, float) else Decimal(bound)
    while float(exact_bound + step) == float(exact_bound):
        step *= 10
    return float(exact_bound + step)
