"""Keys and values in binary16: scores, weighted values, and how a position is stored.

A block of BLOCK positions of one key-value head:
  keys    (BLOCK / 16, head_size, 16): 16 positions beside each other, so a score needs no horizontal sum
  values  (BLOCK, head_size)
A score is one chain over the head, a value one chain over the positions of a block.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from appliance.engine.kernels.attention_code import LARGEST_HALF, VECTORS, Variable, halves, tile_shape
from appliance.engine.kernels.attention_layout import LANES, WEIGHTS_NBYTES
from appliance.engine.kernels.emit import F32, Code, Val
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.rope import rotate
from appliance.engine.kernels.vector import f32x16, i64, load_f32, operation


def scores(code: Code, rows: int, query: Val, keys: Val, head_size: Val, ahead: Val) -> list[list[Val]]:
    """[row][vector]: 16 scores each, of `rows` query rows with the BLOCK positions at `keys`.

    What is read is prefetched `ahead` bytes on: the processor does not foresee the way from block to block.
    """
    at_once, wide = tile_shape(code)
    found: list[list[Val]] = [[] for _ in range(rows)]
    for first in range(0, rows, at_once):
        chosen = range(first, min(first + at_once, rows))
        for start in range(0, VECTORS, wide):
            sums = _score_sums(code, chosen, range(start, start + wide), query, keys, head_size,
                               ahead if first == 0 else None)
            for row, line in zip(chosen, sums, strict=True):
                found[row] += line
    return found


def _score_sums(code: Code, rows: range, vectors: range, query: Val, keys: Val, head_size: Val,
                ahead: Val | None) -> list[list[Val]]:
    zero = code.constant(ir.VectorType(F32, LANES), 0.0)
    sums = [[Variable(code, zero) for _ in vectors] for _ in rows]
    unroll = 4
    with cgutils.for_range(code.b, (head_size >> 2).ir) as loop:
        element = Val(code, loop.index) * unroll
        for part in range(unroll):
            key = keys + (element + part) * (2 * LANES)
            places = [key + head_size * (2 * LANES * vector) for vector in vectors]
            lanes = [halves(code, place) for place in places]
            if ahead is not None and part % 2 == 0:  # two elements to a cache line
                for place in places:
                    code.prefetch(place + ahead)
            for row, line in zip(rows, sums, strict=True):
                factor = code.broadcast(query + head_size * (4 * row) + (element + part) * 4, F32, LANES)
                for lane, total in zip(lanes, line, strict=True):
                    total.set(code.fma(lane, factor, total.get()))
    return [[total.get() for total in line] for line in sums]


def _gather_vectors(code: Code, rows: range, vectors: int, shrink: list[Val], place: Val, spread: Val, values: Val,
            step: Val, count: Val, weights: Val, ahead: Val | None) -> None:
    """place[row][vector] = place * shrink + sum over `count` positions of weight * value."""
    totals = [[Variable(code, code.load(place + spread * row + 64 * v, F32, LANES) * shrink[row])
               for v in range(vectors)] for row in rows]
    with cgutils.for_range(code.b, count.ir) as loop:
        index = Val(code, loop.index)
        lanes = [halves(code, values + index * step + 32 * v) for v in range(vectors)]
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


def gather(code: Code, rows: range, shrink: list[Val], state: Val, spread: Val, values: Val, head_size: Val,
           count: Val, weights: Val, ahead: Val | None) -> None:
    """Shrink the value sums of `rows` at `state` and add the weighted values of `count` positions."""
    wide = tile_shape(code)[1]
    whole = head_size >> {2: 5, 4: 6}[wide]
    with cgutils.for_range(code.b, whole.ir) as loop:
        offset = Val(code, loop.index) * (LANES * wide)
        _gather_vectors(code, rows, wide, shrink, state + offset * 4, spread, values + offset * 2, head_size * 2,
                        count, weights, ahead)
    with cgutils.for_range(code.b, (head_size >> 4).ir, (whole * wide).ir) as loop:
        offset = Val(code, loop[0]) * LANES
        _gather_vectors(code, rows, 1, shrink, state + offset * 4, spread, values + offset * 2, head_size * 2,
                        count, weights, ahead)


def _finite_half(code: Code, x: Val) -> Val:
    """To binary16 within its finite range: an infinity in the cache would outlive its row."""
    return code.float_to_half(code.smaller(code.larger(x, x.like(-LARGEST_HALF)), x.like(LARGEST_HALF)))


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


@kernel("remember_f16", "void(i8,i8,i8,i8,i8,i8,i8)")
def remember(key: int, value: int, angles: int, keys: int, values: int, inside: int, head_size: int) -> None:
    """Turn a key by `angles` and store it, and a value, as position `inside` of the block at `keys` and `values`."""
    to_key = keys + (inside // 16) * head_size * 32 + (inside % 16) * 2
    to_value = values + inside * head_size * 2
    for i in range(head_size // 16):
        store_key(to_key + 512 * i, rotate(load_f32(key + 64 * i), load_f32(angles + 64 * i)))
        store_value(to_value + 32 * i, load_f32(value + 64 * i))
