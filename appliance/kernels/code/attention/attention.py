"""Attention of query rows over a cache of keys and values, with an online softmax: one kernel for a
cache format.

    attend_F(query, state, rows, head_size, keys, values, pages, first, last, scratch, follow)

adds positions first..last-1 (`first` a multiple of PAGE) to the states of `rows` query rows. `keys`
and `values` are those of one layer and key-value head of an arena of pages. `pages`: an int64 for
each page of PAGE positions from position 0 on, how many bytes behind `keys`, and `values`, it is. A
page is in the order that `attention.f16` or `attention.quantised` describes.
`scratch`: SCRATCH_NBYTES. `follow`: bytes from the last page to the one that the thread wants next,
in keys, which is prefetched, and in values as if they had as many bits; 0: not known.

A *query row* is one query head of one token. All rows that share a key-value head, over a few
tokens, form a bundle and read keys and values together. Its state, `state_nbytes(head_size)` bytes:
  0   f32  largest score so far      4  i32  position, the last one it may see     8  i32  the first one
  64  f32x16  sums of weights, by lane     128  f32 (head_size) weighted values

Order, the same for every number of rows at once, batch and thread count: positions in pages of PAGE
from 0 on, pages in spans of SPAN from 0 on. A span starts from nothing, and spans are merged in
ascending order. A position that a row must not see has weight zero, which changes no bit. A
position whose key or value was not finite makes every row NaN that sees it.
"""

from __future__ import annotations

import functools
from typing import Any

from numba.core import types

from appliance.kernels.code.attention import f16, quantised
from appliance.kernels.code.attention.emit import Page, Sums, gather, rows_at_once, scores, weigh
from appliance.kernels.code.rows.activation import LOG2E, exp2_f32
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    align_frame,
    f32,
    fma_f32,
    get_f32,
    get_i64,
    i64,
    load_f32,
    operation,
    set_f32,
    splat_f32,
    store_f32,
    sum_f32,
)
from appliance.kernels.layouts.attention import (
    CACHE_FORMATS,
    LANES,
    NOTHING,
    PAGE,
    QUANTS,
    SUMS,
    VALUES,
    WEIGHTS_NBYTES,
)

WORD = 8  # bytes of a page's offset
SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i8,i8,i8,i8,i8)"


def _parts(cache_format: str) -> tuple[Any, ...]:
    """The emitters of scores and of weighted values, of a few rows and vectors."""
    keys, values = QUANTS[cache_format]
    if not keys:
        return f16.score_sums, f16.gather_vectors
    return functools.partial(quantised.score_sums, keys), functools.partial(quantised.gather_vectors, values)


def _page(cache_format: str, rows: int) -> Any:
    """The operation on `rows` query rows and one page."""
    score_sums, gather_vectors = _parts(cache_format)

    def page(code: Code, query: Val, head_size: Val, state: Val, *cache: Val) -> None:
        keys, values, position, count, weights, ahead = cache
        spread = head_size * 4 + VALUES
        found = scores(code, rows, query, keys, head_size, ahead, score_sums)
        shrink = [weigh(code, found[row], state + spread * row, position, weights + WEIGHTS_NBYTES * row)
                  for row in range(rows)]
        at_once = rows_at_once(code)[0]
        for first in range(0, rows, at_once):
            sums = Sums(range(first, min(first + at_once, rows)), shrink, state + VALUES, spread)
            read = Page(values, head_size, count, weights, ahead if first == 0 else None)
            gather(code, head_size, functools.partial(gather_vectors, code, sums, read))
    page.__name__, page.__doc__ = f"page_{rows}", f"One page for {rows} query rows."
    return operation(types.void, *[i64] * 9)(page)


def _attend(cache_format: str) -> Any:
    page_1, page_2, page_3, page_4 = (_page(cache_format, rows) for rows in (1, 2, 3, 4))

    # A kernel's arguments are scalars, in registers: a record in memory would be other
    # instructions.
    def attend(query: int, state: int, rows: int, head_size: int, keys: int, values: int, pages: int,
               first: int, last: int, scratch: int, follow: int) -> None:
        align_frame()
        spread = 4 * head_size + VALUES
        place = get_i64(pages + WORD * (first // PAGE))
        for position in range(first, last, PAGE):
            count = min(PAGE, last - position)
            k, v = keys + place, values + place
            ahead = follow
            if position + PAGE < last:
                ahead = get_i64(pages + WORD * (position // PAGE + 1)) - place
            place += ahead
            row = 0
            while row + 4 <= rows:
                page_4(query + 4 * head_size * row, head_size, state + spread * row, k, v, position, count, scratch,
                       ahead)
                row += 4
                ahead = 0
            q, s = query + 4 * head_size * row, state + spread * row
            if rows - row == 3:
                page_3(q, head_size, s, k, v, position, count, scratch, ahead)
            elif rows - row == 2:
                page_2(q, head_size, s, k, v, position, count, scratch, ahead)
            elif rows - row == 1:
                page_1(q, head_size, s, k, v, position, count, scratch, ahead)
    return attend


for _format in CACHE_FORMATS:
    kernel(f"attend_{_format}", SIGNATURE)(_attend(_format))


@device
def start(state: int, rows: int, head_size: int) -> None:
    """Empty the states of `rows` query rows, but for their positions."""
    for row in range(rows):
        place = state + (4 * head_size + VALUES) * row
        set_f32(place, f32(NOTHING))
        for i in range((head_size + LANES) // LANES):
            store_f32(place + SUMS + 64 * i, splat_f32(f32(0.0)))


@device
def sink(state: int, score: float) -> None:
    """Add a position with this score and no value to an empty state. The score is not yet in units
    of log2."""
    set_f32(state, score * f32(LOG2E))
    set_f32(state + SUMS, f32(1.0))


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
