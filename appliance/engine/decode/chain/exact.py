"""Exponentials, logarithms and sums whose bits are the same on every CPU.

Each is a written order of IEEE binary64 operations, in docs/formats/arithmetic.md. An operation of
numpy has an array of its own, so none is fused with the next. The `exp`, `log` and `sum` of numpy
differ between CPUs in the last bit.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.scratch import BLOCK, CHUNK, Scratch

Numbers = NDArray[np.float64]

LEAST, MOST = -708.0, 709.0  # e^x is 0 below the first; above the second it is e^709
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 33 bits, so that its products with exponents are exact
_LN2_LOW = 1.9082149292705877e-10  # ln 2 less the above
_WHOLE = 1.5 * 2.0**52  # adding it rounds to a whole number, which is then in the lowest bits
_SERIES: Final = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))
_LOG_TERMS = 11
_ROOT = 0.7071067811865476


def exponentials(x: Numbers, out: Numbers, scratch: Scratch) -> Numbers:
    """Return e^x of each number (n,), in `out`. `x`, the mask and `spare` are used."""
    out, small = out[:x.size], None
    if x.min() < LEAST or x.max() > MOST:  # rarely
        small = np.less(x, LEAST, out=scratch.mask[:x.size])
        np.clip(x, LEAST, MOST, out=x)
    for start in range(0, x.size, BLOCK):
        _block(x[start:start + BLOCK], out[start:start + BLOCK], scratch)
    if small is not None:
        np.copyto(out, 0.0, where=small)
    return out


def _block(r: Numbers, out: Numbers, scratch: Scratch) -> None:
    """e^r, up to `BLOCK` of them: 2^k times a series of what is left of r."""
    shifted, k = scratch.spare[0, :r.size], scratch.spare[1, :r.size]
    np.multiply(r, _LOG2_E, out=shifted)
    np.add(shifted, _WHOLE, out=shifted)
    np.subtract(shifted, _WHOLE, out=k)
    np.multiply(k, _LN2_HIGH, out=out)
    np.subtract(r, out, out=r)
    np.multiply(k, _LN2_LOW, out=k)
    np.subtract(r, k, out=r)
    np.multiply(r, _SERIES[0], out=out)
    for factor in _SERIES[1:-1]:
        np.add(out, factor, out=out)
        np.multiply(out, r, out=out)
    np.add(out, _SERIES[-1], out=out)
    exponents, bits = shifted.view(np.int64), out.view(np.int64)
    np.left_shift(exponents, 52, out=exponents)
    np.add(bits, exponents, out=bits)


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
    """Return the sums of values (n,) up to the end of each chunk of `CHUNK`, in `wide`; `sums` is
    used. The last is the sum of all.

    A chunk, filled up with zeros, is folded: its upper half is added to its lower half, of that
    again, until one number is left.
    """
    full, rest = divmod(values.size, CHUNK)
    chunks = full + bool(rest)
    flat = scratch.sums[:chunks * CHUNK]  # one after the other, the first numbers of all chunks, the second, …
    numbers = flat.reshape(CHUNK, chunks)
    np.copyto(numbers[:, :full], values[:full * CHUNK].reshape(full, CHUNK).T)
    if rest:
        numbers[rest:, full] = 0.0
        np.copyto(numbers[:rest, full], values[full * CHUNK:])
    half = flat.size // 2
    while half >= chunks:  # halves without gaps: those with gaps numpy would copy to its heap
        np.add(flat[:half], flat[half:2 * half], out=flat[:half])
        half //= 2
    return np.cumsum(flat[:chunks], out=scratch.wide[:chunks])


def total(values: Numbers, scratch: Scratch) -> float:
    """Return the sum of values (n,); `wide` and `sums` are used."""
    return float(running_sums(values, scratch)[-1])
