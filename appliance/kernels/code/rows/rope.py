"""Rotary positions: a pair (a, b) of a head becomes (a cos - b sin, a sin + b cos).

Pairs are neighbours, or element i and element i + n / 2 of the first n. The table holds the cosine
and sine of each pair for each position. Those of neighbours are beside each other, filled up to
whole vectors by pairs that stay as they are. Of halves all cosines come first, then all sines.
"""

from __future__ import annotations

from llvmlite import ir

from appliance.kernels.compiler.emit import F32, I32, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    LANES,
    f32x16,
    fma_f32,
    get_f32,
    load_f32,
    operation,
    splat_f32,
    store_f32,
)
from appliance.kernels.layouts.step import Attention

_EVEN_SIGN = [-(1 << 31), 0] * (LANES // 2)  # xor: changes the sign of the even lanes


@operation(f32x16, f32x16, f32x16)
def rotate(code: Code, x: Val, turns: Val) -> Val:
    """Eight pairs of `x` turned by eight (cosine, sine) pairs."""
    cosine = turns.shuffle([lane & ~1 for lane in range(LANES)])
    sine = turns.shuffle([lane | 1 for lane in range(LANES)])
    crossed = x.shuffle([lane ^ 1 for lane in range(LANES)]) * sine
    signs = Val(code, ir.Constant(ir.VectorType(I32, LANES), _EVEN_SIGN))
    return code.fma(x, cosine, (crossed.bits(I32) ^ signs).bits(F32))


@device
def turn_halves(x: int, to: int, angles: int, half: int, scale: float) -> None:
    """Elements i and i + half of `x`, turned and scaled; `half` is 16 or more and a multiple of 8.
    """
    factor = splat_f32(scale)
    for i in range((half + LANES - 1) // LANES):
        place = 4 * min(LANES * i, half - LANES)  # the last vector may do some elements again
        first, second = load_f32(x + place), load_f32(x + place + 4 * half)
        cosine, sine = load_f32(angles + place), load_f32(angles + place + 4 * half)
        store_f32(to + place, fma_f32(first, cosine, second * (sine * splat_f32(-1.0))) * factor)
        store_f32(to + place + 4 * half, fma_f32(second, cosine, first * sine) * factor)


@device
def turn_head(attention: Attention, x: int, to: int, position: int, scale: float) -> None:
    """Turn a head at `x` as far as its position says, scale it, and write it to `to`, another
    place."""
    size, turned, factor = attention.HEAD_SIZE, 0, splat_f32(scale)
    if attention.TURNS != 0:
        angles, turned = attention.TURNS + position * attention.TURNS_STRIDE, attention.TURNED
        if attention.HALVES == 0:
            turned = (turned + LANES - 1) // LANES * LANES
            for i in range(turned // LANES):
                store_f32(to + 64 * i, rotate(load_f32(x + 64 * i), load_f32(angles + 64 * i)) * factor)
        else:
            turn_halves(x, to, angles, turned // 2, scale)
    for i in range(turned // LANES, size // LANES):
        store_f32(to + 64 * i, load_f32(x + 64 * i) * factor)


@device
def scale_of(attention: Attention, position: int) -> float:
    """The factor of queries at a position."""
    return attention.SCALE if attention.SCALES == 0 else get_f32(attention.SCALES + 4 * position)
