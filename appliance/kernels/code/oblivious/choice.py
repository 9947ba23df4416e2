"""The place of a draw and the bytes of a token, by sweeps over all of them.

    place_of_draw(weights, count, sums, uniform, spare)
    token_row(rows, pages, row_bytes, token, to)

`place_of_draw` is the first place up to which `count` binary64 weights make more than the share
`uniform` of their sum. `sums` has their sums up to the end of each chunk of 256 (`rows/weights`),
`spare` has room for 256 numbers. The last chunk of weights may be read to its end.

`token_row` copies one row, of `row_bytes` (a power of two from 64 to 4096), out of a table of so
many pages.
"""

from __future__ import annotations

from numba.core import types

from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.code.rows.weights import CHUNK, f64, get_f64, set_f64
from appliance.kernels.compiler.emit import F64, I32, I64, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import LANES, clear_vectors, i64, operation

PAGE = 4096


@operation(i64, f64)
def bits_of(code: Code, value: Val) -> Val:
    """The bits of a number."""
    return value.bits(I64)


@operation(f64, i64)
def number_of(code: Code, bits: Val) -> Val:
    """The number of some bits."""
    return bits.bits(F64)


@operation(types.void, i64, i64, i64)
def take_row(code: Code, source: Val, mask: Val, to: Val) -> None:
    """64 bytes of a row where the mask is -1, else what is there."""
    chosen = code.splat(mask.convert("trunc", I32), LANES)
    there = code.load(to, I32, LANES)
    code.store(to, there ^ ((there ^ code.load(source, I32, LANES)) & chosen))


@device
def limit_of(target: float, whole: float) -> float:
    """A target that is below the whole sum."""
    below = bits_of(whole) - 1
    return number_of(pick(target < number_of(below), bits_of(target), below))


@kernel("place_of_draw", "i8(i8,i8,i8,f8,i8)")
def place_of_draw(weights: int, count: int, sums: int, uniform: float, spare: int) -> int:
    """Find it."""
    chunks = (count + CHUNK - 1) // CHUNK
    target = uniform * get_f64(sums + 8 * (chunks - 1))
    limit, chunk, before = limit_of(target, get_f64(sums + 8 * (chunks - 1))), 0, 0.0
    for i in range(chunks):
        reached = get_f64(sums + 8 * i)
        before = number_of(pick(reached <= limit, bits_of(reached), bits_of(before)))
        chunk += pick(reached <= limit, 1, 0)
    for i in range(chunks):
        mask = pick(i == chunk, -1, 0)
        for at in range(0, 8 * CHUNK, 64):
            take_row(weights + 8 * CHUNK * i + at, mask, spare + at)
    size = min(CHUNK, count - CHUNK * chunk)
    total = 0.0
    for i in range(CHUNK):
        more = total + get_f64(spare + 8 * i)
        total = number_of(pick(i < size, bits_of(more), bits_of(total)))
        set_f64(spare + 8 * i, total)
    limit, place = limit_of(target - before, total), 0
    for i in range(CHUNK):
        place += pick((get_f64(spare + 8 * i) <= limit) & (i < size), 1, 0)
    clear_vectors()
    return CHUNK * chunk + place


@kernel("token_row", "void(i8,i8,i8,i8,i8)")
def token_row(rows: int, pages: int, row_bytes: int, token: int, to: int) -> None:
    """Copy it."""
    of_page = PAGE // row_bytes
    page_of, place = token // of_page, token % of_page
    for page in range(pages):
        mask = pick(page == page_of, -1, 0)
        source = rows + PAGE * page + row_bytes * (place & mask)
        for at in range(0, row_bytes, 64):
            take_row(source + at, mask, to + at)
    clear_vectors()
