"""Keys and values in binary16: scores, weighted values, and how a position is stored.

A page of PAGE positions of one key-value head:
  keys    (PAGE / 16, head_size, 16): 16 positions beside each other, so a score needs no horizontal sum
  values  (PAGE, head_size)
A score is one chain over the head, a value one chain over the positions of a page.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import cgutils, types

from appliance.kernels.code.attention.emit import LARGEST_HALF, Page, Sums, halves, mark, variable
from appliance.kernels.compiler.emit import F32, Code, Val
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import f32x16, i64, load_f32, operation
from appliance.kernels.layouts.attention import LANES, WEIGHTS_NBYTES


def score_sums(code: Code, rows: range, vectors: range, query: Val, keys: Val, head_size: Val,
               ahead: Val | None) -> list[list[Val]]:
    """[row][vector]: 16 scores each."""
    zero = code.constant(ir.VectorType(F32, LANES), 0.0)
    sums = [[variable(code, zero) for _ in vectors] for _ in rows]
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
                    total.set(0, code.fma(lane, factor, total.get(0)))
    return [[total.get(0) for total in line] for line in sums]


def gather_vectors(code: Code, sums: Sums, page: Page, first: Val, vectors: int) -> None:
    """Shrink value sums and add the weighted values of a page: `vectors` vectors from vector
    `first` on."""
    place, values, row_nbytes = sums.address + first * 64, page.values + first * 32, page.head_size * 2
    totals = [[variable(code, code.load(place + sums.spread * row + 64 * v, F32, LANES) * sums.shrink[row])
               for v in range(vectors)] for row in sums.rows]
    with cgutils.for_range(code.b, page.count.ir) as loop:
        index = Val(code, loop.index)
        lanes = [halves(code, values + index * row_nbytes + 32 * v) for v in range(vectors)]
        if page.ahead is not None:
            for v in range(0, vectors, 2):  # two vectors to a cache line
                code.prefetch(values + index * row_nbytes + (page.ahead + 32 * v))
        for row, line in zip(sums.rows, totals, strict=True):
            weight = code.broadcast(page.weights + WEIGHTS_NBYTES * row + index * 4, F32, LANES)
            for lane, total in zip(lanes, line, strict=True):
                total.set(0, code.fma(lane, weight, total.get(0)))
    for row, line in zip(sums.rows, totals, strict=True):
        for v, total in enumerate(line):
            code.store(place + sums.spread * row + 64 * v, total.get(0))


def _finite_half(code: Code, x: Val) -> Val:
    """To binary16 within its finite range: an infinity would reach rows that must not see it."""
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


@kernel("remember_f16", "void(i8,i8,i8,i8,i8,i8)")
def remember(key: int, value: int, keys: int, values: int, inside: int, head_size: int) -> None:
    """Store a key and a value as position `inside` of the page at `keys` and `values`."""
    to_key = keys + (inside // 16) * head_size * 32 + (inside % 16) * 2
    to_value = values + inside * head_size * 2
    for i in range(head_size // 16):
        store_key(to_key + 512 * i, load_f32(key + 64 * i))
        store_value(to_value + 32 * i, load_f32(value + 64 * i))
    mark(key, value, head_size, to_key)
