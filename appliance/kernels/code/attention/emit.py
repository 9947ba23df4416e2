"""The common code of the attention kernels of every cache format: loop variables, rows at once, and
the softmax."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from appliance.kernels.code.rows.activation import power_of_two
from appliance.kernels.compiler.emit import F32, I16, I32, Code, Locals, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    largest_magnitude,
    load_f32,
    magnitude_i32,
    max_i32,
    set_f16,
    splat_i32,
)
from appliance.kernels.layouts.attention import FIRST, LANES, PAGE, POSITION, SUMS

VECTORS = PAGE // LANES
_HIDDEN = -1e30  # score of a position that a row must not see: far below NOTHING, so that its weight is zero
_NEGLIGIBLE = -100.0  # a weight below 2^-100 of the largest is zero
_NOT_A_NUMBER = np.float32(np.nan)
LARGEST_HALF = 65504.0


@dataclass(frozen=True)
class Sums:
    """Weighted values of some query rows, which a page adds to."""

    rows: range
    shrink: list[Val]  # of each row: what its earlier sums shrink by, in every lane
    address: Val  # of the values of row 0
    spread: Val  # bytes between rows


@dataclass(frozen=True)
class Page:
    """Values of a page of the cache, and their weights."""

    values: Val  # address
    head_size: Val
    count: Val  # positions
    weights: Val  # address; WEIGHTS_NBYTES a row
    ahead: Val | None  # bytes to what is prefetched


def variable(code: Code, start: Val) -> Locals:
    """A value that a loop changes."""
    found = Locals(code, start.type, 1)
    found.set(0, start)
    return found


def halves(code: Code, address: Val) -> Val:
    """16 binary16, widened."""
    return code.half_to_float(code.load(address, I16, LANES))


def rows_at_once(code: Code) -> tuple[int, int]:
    """Rows and vectors that accumulate in registers together; changes no bit."""
    return (4, 4) if code.target == "avx512vnni" else (2, 2)


def scores(code: Code, rows: int, query: Val, keys: Val, head_size: Val, ahead: Val,
           sums_of: Callable[..., list[list[Val]]]) -> list[list[Val]]:
    """[row][vector]: 16 scores each, of `rows` query rows with the PAGE positions at `keys`;
    `sums_of` emits those of a few rows and vectors.

    Lines are prefetched `ahead` bytes on: the processor does not foresee the way from page to page.
    """
    at_once, wide = rows_at_once(code)
    found: list[list[Val]] = [[] for _ in range(rows)]
    for first in range(0, rows, at_once):
        chosen = range(first, min(first + at_once, rows))
        for start in range(0, VECTORS, wide):
            sums = sums_of(code, chosen, range(start, start + wide), query, keys, head_size,
                           ahead if first == 0 else None)
            for row, line in zip(chosen, sums, strict=True):
                found[row] += line
    return found


def gather(code: Code, head_size: Val, emit: Callable[[Val, int], None]) -> None:
    """Emit all vectors of a head's values, a few at a time: `emit(first, vectors)`."""
    wide = rows_at_once(code)[1]
    whole = head_size >> {2: 5, 4: 6}[wide]
    with cgutils.for_range(code.b, whole.ir) as loop:
        emit(Val(code, loop.index) * wide, wide)
    with cgutils.for_range(code.b, (head_size >> 4).ir, (whole * wide).ir) as loop:
        emit(Val(code, loop[0]), 1)


def weigh(code: Code, scores: list[Val], state: Val, position: Val, weights: Val) -> Val:
    """Turn a row's scores of a page into weights; returns what the earlier sums shrink by, in every
    lane. A score that is no number gives such a weight."""
    first = code.load(state + FIRST, I32)
    shift = code.splat(position.convert("trunc", I32) - first, LANES)
    count = code.splat(code.load(state + POSITION, I32) - first, LANES)
    seen = []
    for index, score in enumerate(scores):
        lanes = Val(code, ir.Constant(ir.VectorType(I32, LANES), list(range(index * LANES, (index + 1) * LANES))))
        shown = (lanes + shift).compare_unsigned("<=", count)  # what lies before the first wraps around
        seen.append(shown.select(score, score.like(_HIDDEN)))
    highest = seen[0]
    for score in seen[1:]:
        highest = code.larger(highest, score)
    before = code.load(state, F32)
    now = code.larger(before, code.fold(highest, code.larger))
    code.store(state, now)
    peak = code.splat(now, LANES)
    shrink = power_of_two(code, code.splat(before, LANES) - peak)
    sums = code.load(state + SUMS, F32, LANES) * shrink
    for index, score in enumerate(seen):
        below = score - peak
        weight = below.compare(">", _NEGLIGIBLE).select(
            power_of_two(code, below), below.compare("<=", _NEGLIGIBLE).select(below.like(0.0), below))
        code.store(weights + 4 * LANES * index, weight)
        sums = sums + weight
    code.store(state + SUMS, sums)
    return shrink


@device
def mark(key: int, value: int, head_size: int, to: int) -> None:
    """Where a key or value to store has an element that is not finite, put NaN at `to`, a binary16
    that every score of its position is multiplied with. Rows that see it are not numbers then, and
    others stay as they are. (A value cannot tell them apart: with others it is multiplied by zero.)
    """
    magnitudes = splat_i32(0)
    for i in range(head_size // LANES):
        magnitudes = max_i32(magnitudes, magnitude_i32(load_f32(key + 64 * i)))
        magnitudes = max_i32(magnitudes, magnitude_i32(load_f32(value + 64 * i)))
    if not math.isfinite(largest_magnitude(magnitudes)):
        set_f16(to, _NOT_A_NUMBER)
