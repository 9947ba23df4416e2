"""Exponentials, logarithms and sums whose bits are the same on every CPU.

Each is a written order of IEEE binary64 operations, in docs/formats/arithmetic.md: of many numbers
in `kernels/code/rows/weights.py`, of one number here. The `exp`, `log` and `sum` of numpy differ
between CPUs in the last bit.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.scratch import CHUNK, Scratch
from appliance.kernels.runtime.boundary import check_row

Numbers = NDArray[np.float64]

LEAST, MOST = -708.0, 709.0  # e^x is 0 below the first; above the second it is e^709
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 33 bits, so that its products with exponents are exact
_LN2_LOW = 1.9082149292705877e-10  # ln 2 less the above
_WHOLE = 1.5 * 2.0**52  # adding it rounds to a whole number, which is then in the lowest bits
_SERIES: Final = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_LOG_TERMS = 11
_ROOT = 0.7071067811865476


def weights(logits: NDArray[np.float32], temperature: float, scratch: Scratch) -> Numbers:
    """Return e^((logit - the highest) / temperature) of each of `logits` (n,), in `powers`; 0 where
    that is less than e^-708."""
    place = check_row("logits", logits, np.float32, scratch.powers.size)
    scratch.weigh(place, logits.size, float(logits.max()), temperature, scratch.powers.ctypes.data)
    return scratch.powers[:logits.size]


def exp(x: float) -> float:
    """Return e^x of one number, with the same bits."""
    if x < LEAST:
        return 0.0
    x = min(x, MOST)
    k = (x * _LOG2_E + _WHOLE) - _WHOLE
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = _SERIES[0]
    for factor in _SERIES[1:]:
        power = power * r + factor
    return math.ldexp(power, int(k))


def exps(x: Numbers) -> Numbers:
    """Return e^x of some numbers from `LEAST` to `MOST`, with the same bits."""
    k = (x * _LOG2_E + _WHOLE) - _WHOLE
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = np.full_like(x, _SERIES[0])
    for factor in _SERIES[1:]:
        power = power * r + factor
    return np.ldexp(power, k.astype(np.int32))


def ln(x: float) -> float:
    """Return the natural logarithm of a number above 0."""
    fraction, exponent = math.frexp(x)  # 0.5 <= fraction < 1
    if fraction < _ROOT:
        fraction, exponent = fraction * 2.0, exponent - 1
    f = (fraction - 1.0) / (fraction + 1.0)
    square = f * f
    series = 1.0 / (2 * _LOG_TERMS + 1)
    for term in range(_LOG_TERMS - 1, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponent * _LN2_HIGH + (exponent * _LN2_LOW + 2.0 * f * series)


def running_sums(values: Numbers, scratch: Scratch) -> Numbers:
    """Return the sums of values (n,) up to the end of each chunk of `CHUNK`, in `sums`. The last is
    the sum of all."""
    place = check_row("numbers to be summed up", values, np.float64, scratch.sums.size)
    scratch.running_sums(place, values.size, scratch.spare.ctypes.data, scratch.sums.ctypes.data)
    return scratch.sums[:-(-values.size // CHUNK)]


def total(values: Numbers, scratch: Scratch) -> float:
    """Return the sum of values (n,); `sums` is used."""
    return float(running_sums(values, scratch)[-1])
