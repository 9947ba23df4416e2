"""Keys and values with 8 or 4 bits, or keys with 8 and values with 4: scores, weighted values, and
how a position and a query are stored.

The elements of a head are cut into groups of 32 (GROUP; missing elements of the last one count as
zero), each with a binary16 scale d, as in ggml's Q8_0 and Q4_0:
  q8  d = amax / 127; quants x * 127 / amax, rounded, ties to even; -127..127
  q4  d = m / -8, where m is the value of largest magnitude with its sign (negative, if both signs reach it); quants
      x * -8 / m, rounded, ties to even, within -8..7, kept plus 8; elements e and e + 16 are the halves of byte e
A page of PAGE positions of one key-value head:
  scales  (groups, PAGE) binary16
  keys    (PAGE / 16, groups, words, 16) of four bytes: elements 4 w .. 4 w + 3 of one position, 16 positions beside
          each other; q8 with 128 added, q4 two elements a byte
  values  (PAGE, groups, QUANTS bytes)

The query gets 8 bits too (as llama.cpp does), so that a group's part of a score is an exact integer
dot product. It takes a quarter of a multiplication an element, where widening keys to floats takes
three operations. Measured on the demo model (mean divergence from float32, nats): the cache q8 adds
0.0005 with a float query and 0.0008 with this one; q4 adds 0.12 and 0.14. The 8-bit activations of
everything else add 0.0029. A group of the query, QUERY_NBYTES: 32 quants, f32 scale amax / 127, and
-8 times the sum of its quants.

Order: a score is one chain over the groups, of integer dot product times (scale of the key * scale
of the query). A value is one chain over the positions of a page, of quant times (weight * scale of
the value).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from appliance.kernels.code.attention.emit import LARGEST_HALF, VECTORS, Page, Sums, halves, mark, variable
from appliance.kernels.code.rows.quantise import quantised, store_fields, store_quantised
from appliance.kernels.compiler.emit import F32, I8, I32, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    abs_f32,
    largest_f32,
    load_f32,
    max_f32,
    max_i32,
    min_f32,
    min_i32,
    nearest_i32,
    round_f16,
    set_f16,
    set_f32,
    set_i32,
    shift_left,
    smallest_f32,
    splat_f32,
    splat_i32,
)
from appliance.kernels.layouts.attention import (
    GROUP,
    LANES,
    QUANTS,
    QUERY_NBYTES,
    QUERY_SCALE,
    QUERY_SUM,
    SCALES_NBYTES,
    WEIGHTS_NBYTES,
)

_ZERO, _LIMIT, _MINUS_8 = np.float32(0.0), np.float32(127.0), np.float32(-8.0)
_MOST = np.float32(LARGEST_HALF)
_NIBBLES = 0x0F0F0F0F


def _count(head_size: Val) -> Val:
    """Groups of a head."""
    return (head_size + (GROUP - 1)) >> 5


def score_sums(quants: int, code: Code, rows: range, vectors: range, query: Val, keys: Val, head_size: Val,
               ahead: Val | None) -> list[list[Val]]:
    """[row][vector]: 16 scores each."""
    groups, zero = _count(head_size), code.constant(ir.VectorType(F32, LANES), 0.0)
    each = LANES * quants  # bytes of 16 positions and a group
    sums = [[variable(code, zero) for _ in vectors] for _ in rows]
    with cgutils.for_range(code.b, groups.ir) as loop:
        group = Val(code, loop.index)
        asked = [query + head_size * (4 * row) + group * QUERY_NBYTES for row in rows]
        places = [keys + groups * SCALES_NBYTES + (groups * vector + group) * each for vector in vectors]
        scales = keys + group * SCALES_NBYTES
        if ahead is not None:
            for at in (0, 64) if vectors.start == 0 else ():
                code.prefetch(scales + ahead + at)
        dots = _dots(quants, code, asked, places, ahead)
        for row, place in enumerate(asked):
            factor = code.broadcast(place + QUERY_SCALE, F32, LANES)
            for index, vector in enumerate(vectors):
                total = sums[row][index]
                scale = halves(code, scales + 2 * LANES * vector) * factor
                total.set(0, code.fma(dots[row][index].convert("sitofp", F32), scale, total.get(0)))
    return [[total.get(0) for total in line] for line in sums]


def _dots(quants: int, code: Code, asked: list[Val], places: list[Val], ahead: Val | None) -> list[list[Val]]:
    """[row][vector]: integer dot products of a group of each query at `asked` with 16 keys at each
    of `places`."""
    dots = []
    for at in asked:
        start = code.broadcast(at + QUERY_SUM, I32, LANES)
        dots.append([code.start8(start << 4) if quants == GROUP else start for _ in places])
    for word in range(quants // 4):
        lines = [code.load(place + 64 * word, I32, LANES) for place in places]
        if ahead is not None:
            for place in places:
                code.prefetch(place + ahead + 64 * word)
        for row, at in enumerate(asked):
            low = code.broadcast(at + 4 * word, I32, LANES)
            if quants == GROUP:
                dots[row] = [code.dot8(dot, line, low) for dot, line in zip(dots[row], lines, strict=True)]
                continue
            high = code.broadcast(at + 4 * word + GROUP // 2, I32, LANES)
            for index, line in enumerate(lines):
                part = code.dot7(dots[row][index], line & _NIBBLES, low)
                dots[row][index] = code.dot7(part, (line >> 4) & _NIBBLES, high)
    return dots


def gather_vectors(quants: int, code: Code, sums: Sums, page: Page, first: Val, vectors: int) -> None:
    """Shrink value sums and add the weighted values of a page: `vectors` vectors from vector
    `first` on."""
    place, groups, group = sums.address + first * 64, _count(page.head_size), first >> 1
    scaled = _scaled(code, sums.rows, max(1, vectors // 2), page.values + group * SCALES_NBYTES, page.weights)
    totals = [[variable(code, code.load(place + sums.spread * row + 64 * v, F32, LANES) * sums.shrink[row])
               for v in range(vectors)] for row in sums.rows]
    with cgutils.for_range(code.b, page.count.ir) as loop:
        index = Val(code, loop.index)
        at = page.values + groups * SCALES_NBYTES + (index * groups + group) * quants
        if page.ahead is not None:
            code.prefetch(at + page.ahead)
        lanes = _widened(quants, code, at, first, vectors)
        for line, places in zip(totals, scaled, strict=True):
            for v, total in enumerate(line):
                weight = code.broadcast(places[v // 2] + index * 4, F32, LANES)
                total.set(0, code.fma(lanes[v], weight, total.get(0)))
    for row, line in zip(sums.rows, totals, strict=True):
        for v, total in enumerate(line):
            code.store(place + sums.spread * row + 64 * v, total.get(0))


def _scaled(code: Code, rows: range, groups: int, scales: Val, weights: Val) -> list[list[Val]]:
    """[row][group]: where the weights of a page are, times the scales of a group of elements."""
    found = []
    for index, row in enumerate(rows):
        line = [weights + WEIGHTS_NBYTES * (4 + 2 * index + group) for group in range(groups)]
        for group, to in enumerate(line):
            for v in range(VECTORS):
                weight = code.load(weights + WEIGHTS_NBYTES * row + 64 * v, F32, LANES)
                code.store(to + 64 * v, weight * halves(code, scales + (SCALES_NBYTES * group + 32 * v)))
        found.append(line)
    return found


def _widened(quants: int, code: Code, at: Val, first: Val, vectors: int) -> list[Val]:
    """The quants of one position as floats, 16 to a vector."""
    lanes = []
    for v in range(vectors):
        if quants == GROUP:
            inside = at + (first & 1) * LANES if vectors == 1 else at + LANES * v
            wide = code.load(inside, I8, LANES).convert("sext", I32)
        else:
            both = code.load(at + LANES * (v // 2), I8, LANES).convert("zext", I32)
            shift = (first & 1).convert("trunc", I32) << 2 if vectors == 1 else code.constant(I32, 4 * (v % 2))
            wide = ((both >> code.splat(shift, LANES)) & 15) - 8
        lanes.append(wide.convert("sitofp", F32))
    return lanes


# --- storing --------------------------------------------------------------------------------------
@device
def finite(x: Any) -> Any:
    """Within the finite range of binary16: an infinity would reach rows that must not see it."""
    return min_f32(max_f32(x, splat_f32(-_MOST)), splat_f32(_MOST))


@device
def store_8(low: Any, high: Any, scale: int, to: int, apart: int, flip: int) -> None:
    """Quantise a group to 8 bits, each xor `flip`; words `apart` bytes apart."""
    amax = largest_f32(max_f32(abs_f32(low), abs_f32(high)))
    d = round_f16(amax / _LIMIT)
    set_f16(scale, d)
    factor = splat_f32(_LIMIT / amax if d > _ZERO else _ZERO)
    store_fields(to, apart, quantised(low, factor) ^ splat_i32(flip))
    store_fields(to + 4 * apart, apart, quantised(high, factor) ^ splat_i32(flip))


@device
def nibbles(x: Any, factor: Any) -> Any:
    """Quants of 16 elements, 0..15."""
    return max_i32(min_i32(nearest_i32(x * factor), splat_i32(7)), splat_i32(-8)) + splat_i32(8)


@device
def store_4(low: Any, high: Any, scale: int, to: int, apart: int, flip: int) -> None:
    """Quantise a group to 4 bits; words `apart` bytes apart. `flip` is not used."""
    highest, lowest = largest_f32(max_f32(low, high)), smallest_f32(min_f32(low, high))
    most = highest if highest > -lowest else lowest
    d = round_f16(most / _MINUS_8)
    set_f16(scale, d)
    factor = splat_f32(_MINUS_8 / most if d != _ZERO else _ZERO)
    store_fields(to, apart, nibbles(low, factor) | shift_left(nibbles(high, factor), 4))


def _remember(quants: tuple[int, int], store_key: Callable[..., None], store_value: Callable[..., None]) -> Any:
    """The kernel that stores keys and values with so many bytes a group."""
    of_key, of_value = quants

    def remember(key: int, value: int, keys: int, values: int, inside: int, head_size: int) -> None:
        groups = (head_size + (GROUP - 1)) // GROUP
        to_key = keys + groups * SCALES_NBYTES + (inside // LANES) * groups * (LANES * of_key) + (inside % LANES) * 4
        to_value = values + groups * SCALES_NBYTES + inside * groups * of_value
        for group in range(groups):
            at, scale = 128 * group, group * SCALES_NBYTES + 2 * inside
            low = finite(load_f32(key + at))
            other = finite(load_f32(value + at))
            high, last = splat_f32(_ZERO), splat_f32(_ZERO)
            if GROUP * group + LANES < head_size:
                high = finite(load_f32(key + at + 64))
                last = finite(load_f32(value + at + 64))
            store_key(low, high, keys + scale, to_key + group * (LANES * of_key), 64, 128)
            store_value(other, last, values + scale, to_value + group * of_value, 4, 0)
        mark(key, value, head_size, keys + 2 * inside)
    remember.__doc__ = "Store a key and a value as position `inside` of a page."
    return remember


_STORES = {32: store_8, 16: store_4}
for _format, _quants in QUANTS.items():
    if _quants != (0, 0):
        kernel(f"remember_{_format}", "void(i8,i8,i8,i8,i8,i8)")(_remember(_quants, *map(_STORES.__getitem__, _quants)))


@kernel("query_q8", "void(i8,i8,i8)")
def query_q8(query: int, rows: int, head_size: int) -> None:
    """Quantise `rows` query rows where they are: groups of QUERY_NBYTES at the start of each row.
    """
    for row in range(rows):
        start = query + 4 * head_size * row
        for group in range((head_size + (GROUP - 1)) // GROUP):
            low, high = load_f32(start + 128 * group), splat_f32(_ZERO)
            if GROUP * group + LANES < head_size:
                high = load_f32(start + 128 * group + 64)
            to = start + QUERY_NBYTES * group
            amax, total = store_quantised(low, high, to)
            set_f32(to + QUERY_SCALE, amax / _LIMIT)
            set_i32(to + QUERY_SUM, -8 * total)
