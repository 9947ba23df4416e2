"""The weights of a draw, and their sums: binary64, each operation rounded by itself, in the order
of docs/formats/arithmetic.md.

    weigh_logits(logits, count, highest, temperature, out)
    running_sums(values, count, spare, out)

`weigh_logits` reads `count` float32 logits and writes e^((logit - highest) / temperature) of each,
which is 0 below e^-708. `highest` is the highest of them, and the temperature is above 0.
`running_sums` writes the sums of binary64 values up to the end of each chunk of 256. A chunk, the
last one filled up with zeros in `spare` (256 numbers), is folded: its upper half is added to its
lower half, of that again, until one number is left.
"""

from __future__ import annotations

import math
import operator

from numba.core import types

from appliance.kernels.compiler.emit import F32, F64, I64, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, i64, operation

f64 = types.float64
LANES = 8  # binary64 numbers of a vector
CHUNK = 256

LEAST = -708.0  # e^x is 0 below
LOWEST = -1000.0  # of x: what is less has no weight
_LOG2_E = 1.4426950408889634
_LN2_HIGH = 0.6931471803691238  # 33 bits, so that its products with exponents are exact
_LN2_LOW = 1.9082149292705877e-10  # ln 2 less the above
_WHOLE = 1.5 * 2.0**52  # adding it rounds to a whole number, which is then in the lowest bits
_SERIES = tuple(1.0 / math.factorial(n) for n in range(13, -1, -1))


def _power(code: Code, x: Val) -> Val:
    """Emit e^x of each lane, for x up to 0: 2^k times a series of what is left of x."""
    x = code.larger(x, x.like(LOWEST))
    shifted = x * _LOG2_E + x.like(_WHOLE)
    k = shifted - _WHOLE
    rest = (x - k * _LN2_HIGH) - k * _LN2_LOW
    power = rest * _SERIES[0]
    for factor in _SERIES[1:-1]:
        power = (power + factor) * rest
    bits = (power + _SERIES[-1]).bits(I64) + (shifted.bits(I64) << 52)
    return x.compare("<", LEAST).select(x.like(0.0), bits.bits(F64))


def _weigh(lanes: int, code: Code, logits: Val, highest: Val, temperature: Val, out: Val) -> None:
    x = code.load(logits, F32, lanes).convert("fpext", F64) - code.splat(highest, lanes)
    code.store(out, _power(code, x / code.splat(temperature, lanes)))


@operation(types.void, i64, f64, f64, i64)
def weigh_many(code: Code, logits: Val, highest: Val, temperature: Val, out: Val) -> None:
    """The weights of 8 logits."""
    _weigh(LANES, code, logits, highest, temperature, out)


@operation(types.void, i64, f64, f64, i64)
def weigh_one(code: Code, logits: Val, highest: Val, temperature: Val, out: Val) -> None:
    """The weight of one logit."""
    _weigh(1, code, logits, highest, temperature, out)


@operation(types.void, i64, f64, i64)
def weigh_undivided(code: Code, logits: Val, highest: Val, out: Val) -> None:
    """The weights of 8 logits at temperature 1, by which nothing is divided."""
    x = code.load(logits, F32, LANES).convert("fpext", F64) - code.splat(highest, LANES)
    code.store(out, _power(code, x))


@operation(f64, i64)
def folded(code: Code, chunk: Val) -> Val:
    """The sum of a chunk."""
    parts = [code.load(chunk + at, F64, LANES) for at in range(0, 8 * CHUNK, 8 * LANES)]
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [low + high for low, high in zip(parts[:half], parts[half:], strict=True)]
    return code.fold(parts[0], operator.add)


@operation(f64, i64)
def get_f64(code: Code, address: Val) -> Val:
    """The number at an address."""
    return code.load(address, F64)


@operation(types.void, i64, f64)
def set_f64(code: Code, address: Val, value: Val) -> None:
    """Store a number at an address."""
    code.store(address, value)


@kernel("weigh_logits", "void(i8,i8,f8,f8,i8)")
def weigh_logits(logits: int, count: int, highest: float, temperature: float, out: int) -> None:
    """Weigh all of them."""
    whole = count - count % LANES
    if temperature == 1.0:
        for i in range(0, whole, LANES):
            weigh_undivided(logits + 4 * i, highest, out + 8 * i)
    else:
        for i in range(0, whole, LANES):
            weigh_many(logits + 4 * i, highest, temperature, out + 8 * i)
    for i in range(whole, count):
        weigh_one(logits + 4 * i, highest, temperature, out + 8 * i)
    clear_vectors()


@device
def last_chunk(values: int, count: int, spare: int) -> float:
    """The sum of a chunk that is not full."""
    for i in range(CHUNK):
        set_f64(spare + 8 * i, get_f64(values + 8 * i) if i < count else 0.0)
    return folded(spare)


@kernel("running_sums", "void(i8,i8,i8,i8)")
def running_sums(values: int, count: int, spare: int, out: int) -> None:
    """Sum up all of them."""
    total = 0.0
    chunks = count // CHUNK
    for i in range(chunks):
        total = folded(values + 8 * CHUNK * i) + total
        set_f64(out + 8 * i, total)
    if count % CHUNK:
        total = last_chunk(values + 8 * CHUNK * chunks, count % CHUNK, spare) + total
        set_f64(out + 8 * chunks, total)
    clear_vectors()
