"""The table of rotations: cosine and sine of every position and pair, with the scalings of long
contexts.

numpy's and the C library's power, sine and cosine differ in the last bit from CPU to CPU, and the
table must not. So powers come from decimal arithmetic, and sines from additions and multiplications
alone, which IEEE 754 defines.
"""

from __future__ import annotations

import decimal
import functools
import math

import numpy as np
from numpy.typing import NDArray

from appliance.families.architecture import Rope

Doubles = NDArray[np.float64]

_POSITIONS = 1024  # that are computed at a time

# pi/2 in three parts of 33 bits, so that up to 2^20 quarter turns are taken off exactly (Cody and
# Waite).
_QUARTER = (1.5707963267341256, 6.077100506303966e-11, 2.0222662487111665e-21)
_SINE = tuple((-1.0) ** n / math.factorial(2 * n + 1) for n in range(9))  # Taylor; error below 2^-60 for |x| <= pi/4
_COSINE = tuple((-1.0) ** n / math.factorial(2 * n) for n in range(10))


def turns(rope: Rope, head_size: int, context: int, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """(context, width): cosine and sine of each pair. For neighbours they are interleaved, and
    filled up to a multiple of 16 by pairs that stay; for halves all cosines come first. `factors`
    divide the frequencies (Llama 3).

    Computed in float64. YaRN (arXiv 2309.00071): pairs that turn often over the original context
    keep their frequency, pairs that turn less than once are interpolated, the rest blends linearly
    by pair index.
    """
    pairs = (rope.turned or head_size) // 2
    frequencies = _powers(rope.base, pairs)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    scaled = frequencies / rope.factor
    if rope.scaling == "yarn":
        keep = _own_shares(rope, pairs)
        scaled = scaled * (1.0 - keep) + frequencies * keep
    table = np.zeros((context, pairs if rope.halves else -(-pairs // 8) * 8, 2), np.float32)
    table[:, pairs:, 0] = 1.0
    for start in range(0, context, _POSITIONS):  # what each number takes on the way is many times what it takes here
        part = table[start:start + _POSITIONS]
        angles = np.outer(np.arange(start, start + len(part), dtype=np.float64), scaled)
        part[:, :pairs] = np.stack(_cosine_sine(angles), axis=-1) * rope.magnitude
        if rope.halves:
            part[:] = part.transpose(0, 2, 1).reshape(part.shape).copy()
    return table.reshape(context, -1)


def query_scales(scale: float, temperature: float, step: int, context: int) -> NDArray[np.float32]:
    """(context,): the factor of a query at each position p, `scale` times 1 + temperature *
    ln(floor(p / step) + 1)."""
    with decimal.localcontext(decimal.Context(prec=40)):
        logarithms = [float(decimal.Decimal(n + 1).ln()) for n in range(-(-context // step))]
    factors = [scale * (1.0 + temperature * logarithms[position // step]) for position in range(context)]
    return np.array(factors, np.float32)


@functools.lru_cache(16)
def _powers(base: float, pairs: int) -> Doubles:
    """base^(-i / pairs) for each pair i."""
    with decimal.localcontext(decimal.Context(prec=40)):
        found = np.array([float(decimal.Decimal(base) ** (decimal.Decimal(-pair) / pairs)) for pair in range(pairs)])
    found.flags.writeable = False
    return found


def _series(coefficients: tuple[float, ...], x: Doubles) -> Doubles:
    total = np.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x + coefficient
    return total


def _cosine_sine(angles: Doubles) -> tuple[Doubles, Doubles]:
    """Cosine and sine; absolute error about 2^-53."""
    quarters = np.rint(angles * (2.0 / math.pi))
    rest = angles
    for part in _QUARTER:
        rest = rest - quarters * part
    square = rest * rest
    sine, cosine = _series(_SINE, square) * rest, _series(_COSINE, square)
    quadrant = quarters.astype(np.int64) & 3
    swapped = (quadrant & 1).astype(bool)
    return (np.where(swapped, sine, cosine) * np.where((quadrant == 1) | (quadrant == 2), -1.0, 1.0),
            np.where(swapped, cosine, sine) * np.where(quadrant >= 2, -1.0, 1.0))


def _own_shares(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """The share (0..1) of each pair's own frequency that YaRN keeps."""
    def pair_of(rotations: float) -> float:
        return pairs * math.log(rope.original_context / (rotations * 2 * math.pi)) / math.log(rope.base)

    low, high = pair_of(rope.fast), pair_of(rope.slow)
    if rope.whole:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(0.0, low), min(2.0 * pairs - 1, high)
    ramp = (np.arange(pairs) - low) / max(0.001, high - low)
    return np.asarray(1.0 - np.clip(ramp, 0.0, 1.0), np.float64)
