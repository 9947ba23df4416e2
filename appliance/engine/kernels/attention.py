"""Attention of query rows over a cache of keys and values in binary16, with an online softmax.

Cache of one slot, layer and key-value head, for each block of BLOCK positions, in binary16:
  keys    (BLOCK / 16, head_size, 16): 16 positions beside each other, so a score needs no horizontal sum
  values  (BLOCK, head_size)

A *query row* is one query head of one token. All rows that share a key-value head, over a few tokens, form a
tile and read keys and values together. Its state, `state_nbytes(head_size)` bytes:
  0   f32  largest score so far      4  i32  position, the last one it may see
  64  f32x16  sums of weights, by lane     128  f32 (head_size) weighted values

Order, the same for every tile shape, batch and thread count: positions in blocks of BLOCK from 0 on, blocks in spans
of SPAN from 0 on; a span starts from nothing; spans are merged in ascending order. A score is one chain over the head;
a value one chain over the positions of a block. What a row must not see has weight zero, which changes no bit.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from appliance.engine.kernels.activation import exp2_f32, power_of_two
from appliance.engine.kernels.attention_layout import BLOCK, LANES, NOTHING, POSITION, SUMS, VALUES, WEIGHTS_NBYTES
from appliance.engine.kernels.emit import F32, I16, I32, Code, Val
from appliance.engine.kernels.jit import device
from appliance.engine.kernels.vector import (
    f32,
    f32x16,
    fma_f32,
    get_f32,
    i64,
    load_f32,
    operation,
    set_f32,
    splat_f32,
    store_f32,
    sum_f32,
)

_VECTORS = BLOCK // LANES
_HIDDEN = -1e30  # score of a position that a row must not see: far below NOTHING, so that its weight is zero
_NEGLIGIBLE = -100.0  # a weight below 2^-100 of the largest is zero
_LARGEST_HALF = 65504.0


class _Variable:
    """A value that a loop changes; LLVM keeps it in a register."""

    def __init__(self, code: Code, start: Val) -> None:
        self._code = code
        self._place = cgutils.alloca_once(code.b, start.type)
        self.set(start)

    def get(self) -> Val:
        return Val(self._code, self._code.b.load(self._place))

    def set(self, value: Val) -> None:
        self._code.b.store(value.ir, self._place)


def _halves(code: Code, address: Val) -> Val:
    return code.half_to_float(code.load(address, I16, LANES))


def _tile_shape(code: Code) -> tuple[int, int]:
    """Rows and vectors that accumulate in registers together; changes no bit."""
    return (4, 4) if code.target == "avx512vnni" else (2, 2)


def _scores(code: Code, rows: int, query: Val, keys: Val, head_size: Val, ahead: Val) -> list[list[Val]]:
    """[row][vector]: 16 scores each, of `rows` query rows with the BLOCK positions at `keys`.

    What is read is prefetched `ahead` bytes on: the processor does not foresee the way from block to block.
    """
    at_once, wide = _tile_shape(code)
    found: list[list[Val]] = [[] for _ in range(rows)]
    for first in range(0, rows, at_once):
        chosen = range(first, min(first + at_once, rows))
        for start in range(0, _VECTORS, wide):
            sums = _score_sums(code, chosen, range(start, start + wide), query, keys, head_size,
                               ahead if first == 0 else None)
            for row, line in zip(chosen, sums, strict=True):
                found[row] += line
    return found


def _score_sums(code: Code, rows: range, vectors: range, query: Val, keys: Val, head_size: Val,
                ahead: Val | None) -> list[list[Val]]:
    zero = code.constant(ir.VectorType(F32, LANES), 0.0)
    sums = [[_Variable(code, zero) for _ in vectors] for _ in rows]
    unroll = 4
    with cgutils.for_range(code.b, (head_size >> 2).ir) as loop:
        element = Val(code, loop.index) * unroll
        for part in range(unroll):
            key = keys + (element + part) * (2 * LANES)
            places = [key + head_size * (2 * LANES * vector) for vector in vectors]
            lanes = [_halves(code, place) for place in places]
            if ahead is not None and part % 2 == 0:  # two elements to a cache line
                for place in places:
                    code.prefetch(place + ahead)
            for row, line in zip(rows, sums, strict=True):
                factor = code.broadcast(query + head_size * (4 * row) + (element + part) * 4, F32, LANES)
                for lane, total in zip(lanes, line, strict=True):
                    total.set(code.fma(lane, factor, total.get()))
    return [[total.get() for total in line] for line in sums]


def _weigh(code: Code, scores: list[Val], state: Val, position: Val, weights: Val) -> Val:
    """Turn a row's scores of a block into weights; returns what the earlier sums shrink by, in every lane."""
    last = code.splat(code.load(state + POSITION, I32) - position.convert("trunc", I32), LANES)
    seen = []
    for index, score in enumerate(scores):
        lanes = Val(code, ir.Constant(ir.VectorType(I32, LANES), list(range(index * LANES, (index + 1) * LANES))))
        seen.append(lanes.compare("<=", last).select(score, score.like(_HIDDEN)))
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
        weight = below.compare(">", _NEGLIGIBLE).select(power_of_two(code, below), below.like(0.0))
        code.store(weights + 4 * LANES * index, weight)
        sums = sums + weight
    code.store(state + SUMS, sums)
    return shrink


def _gather(code: Code, rows: range, vectors: int, shrink: list[Val], place: Val, spread: Val, values: Val,
            step: Val, count: Val, weights: Val, ahead: Val | None) -> None:
    """place[row][vector] = place * shrink + sum over `count` positions of weight * value."""
    totals = [[_Variable(code, code.load(place + spread * row + 64 * v, F32, LANES) * shrink[row])
               for v in range(vectors)] for row in rows]
    with cgutils.for_range(code.b, count.ir) as loop:
        index = Val(code, loop.index)
        lanes = [_halves(code, values + index * step + 32 * v) for v in range(vectors)]
        if ahead is not None:
            for v in range(0, vectors, 2):  # two vectors to a cache line
                code.prefetch(values + index * step + (ahead + 32 * v))
        for row, line in zip(rows, totals, strict=True):
            weight = code.broadcast(weights + WEIGHTS_NBYTES * row + index * 4, F32, LANES)
            for lane, total in zip(lanes, line, strict=True):
                total.set(code.fma(lane, weight, total.get()))
    for row, line in zip(rows, totals, strict=True):
        for v, total in enumerate(line):
            code.store(place + spread * row + 64 * v, total.get())


def _tile(rows: int) -> Any:
    """The operation on `rows` query rows and one block."""
    def tile(code: Code, query: Val, head_size: Val, state: Val, keys: Val, values: Val, position: Val, count: Val,
             weights: Val, ahead: Val) -> None:
        spread = head_size * 4 + VALUES
        scores = _scores(code, rows, query, keys, head_size, ahead)
        shrink = [_weigh(code, scores[row], state + spread * row, position, weights + WEIGHTS_NBYTES * row)
                  for row in range(rows)]
        at_once, wide = _tile_shape(code)
        for first in range(0, rows, at_once):
            chosen = range(first, min(first + at_once, rows))
            whole = head_size >> {2: 5, 4: 6}[wide]
            with cgutils.for_range(code.b, whole.ir) as loop:
                offset = Val(code, loop.index) * (LANES * wide)
                _gather(code, chosen, wide, shrink, state + VALUES + offset * 4, spread, values + offset * 2,
                        head_size * 2, count, weights, ahead if first == 0 else None)
            with cgutils.for_range(code.b, (head_size >> 4).ir, (whole * wide).ir) as loop:
                offset = Val(code, loop[0]) * LANES
                _gather(code, chosen, 1, shrink, state + VALUES + offset * 4, spread, values + offset * 2,
                        head_size * 2, count, weights, ahead if first == 0 else None)
    tile.__name__, tile.__doc__ = f"tile_{rows}", f"One block for {rows} query rows."
    return operation(types.void, *[i64] * 9)(tile)


tile_1, tile_2, tile_3, tile_4 = (_tile(rows) for rows in (1, 2, 3, 4))


@device
def start(state: int, rows: int, head_size: int) -> None:
    """Empty the states of `rows` query rows, but for their positions."""
    for row in range(rows):
        place = state + (4 * head_size + VALUES) * row
        set_f32(place, f32(NOTHING))
        for i in range((head_size + LANES) // LANES):
            store_f32(place + SUMS + 64 * i, splat_f32(f32(0.0)))


@device(inline=False)
def attend(query: int, state: int, rows: int, head_size: int, keys: int, values: int, stride: int,
           first: int, last: int, weights: int) -> None:
    """Add positions first..last-1 (`first` a multiple of BLOCK) to the states of `rows` query rows.

    `keys` and `values` are those of position 0; `stride` bytes lie between blocks.
    """
    spread = 4 * head_size + VALUES
    for position in range(first, last, BLOCK):
        count = min(BLOCK, last - position)
        k, v = keys + position // BLOCK * stride, values + position // BLOCK * stride
        ahead = stride if position + BLOCK < last else 0
        row = 0
        while row + 4 <= rows:
            tile_4(query + 4 * head_size * row, head_size, state + spread * row, k, v, position, count, weights,
                   ahead)
            row += 4
            ahead = 0
        q, s = query + 4 * head_size * row, state + spread * row
        if rows - row == 3:
            tile_3(q, head_size, s, k, v, position, count, weights, ahead)
        elif rows - row == 2:
            tile_2(q, head_size, s, k, v, position, count, weights, ahead)
        elif rows - row == 1:
            tile_1(q, head_size, s, k, v, position, count, weights, ahead)


@device
def merge(total: int, part: int, head_size: int) -> None:
    """Add the state of a later span to the state of all earlier ones."""
    one, two = get_f32(total), get_f32(part)
    peak = max(one, two)
    keep, take = exp2_f32(splat_f32(one - peak)), exp2_f32(splat_f32(two - peak))
    set_f32(total, peak)
    for i in range((head_size + LANES) // LANES):
        place = total + SUMS + 64 * i
        store_f32(place, fma_f32(load_f32(part + SUMS + 64 * i), take, load_f32(place) * keep))


@device
def finish(total: int, out: int, head_size: int) -> None:
    """The attended values of a query row: weighted values over the sum of weights."""
    scale = splat_f32(f32(1.0) / sum_f32(load_f32(total + SUMS)))
    for i in range(head_size // LANES):
        store_f32(out + 64 * i, load_f32(total + VALUES + 64 * i) * scale)


def _finite_half(code: Code, x: Val) -> Val:
    """To binary16 within its finite range: an infinity in the cache would outlive its row."""
    return code.float_to_half(code.smaller(code.larger(x, x.like(-_LARGEST_HALF)), x.like(_LARGEST_HALF)))


@operation(types.void, i64, f32x16)
def store_value(code: Code, address: Val, x: Val) -> None:
    """16 elements of a value row."""
    code.store(address, _finite_half(code, x))


@operation(types.void, i64, f32x16)
def store_key(code: Code, address: Val, x: Val) -> None:
    """16 elements of a key, each into its own group of 16 positions."""
    halves = _finite_half(code, x)
    for lane in range(LANES):
        code.store(address + 2 * LANES * lane, halves.lane(lane))
