"""The highest logits, the place of a draw and the bytes of a token, by sweeps over all of them.

    highest_logits(logits, count, most, ids, values)
    place_of_draw(weights, count, sums, uniform, spare)
    token_row(rows, pages, row_bytes, token, to)

`highest_logits` writes the `most` highest of `count` float32 logits and their ids (int64), in
ascending order of ids; of equals at the border the lowest ids. It finds the border bit by bit.
Both places have room for one more.

`place_of_draw` is the first place up to which `count` binary64 weights make more than the share
`uniform` of their sum. `sums` has their sums up to the end of each chunk of 256 (`rows/weights`),
`spare` has room for 256 numbers. The last chunk of weights may be read to its end.

`token_row` copies one row, of `row_bytes` (a power of two from 64 to 4096), out of a table of so
many pages.
"""

from __future__ import annotations

from numba.core import types

from appliance.kernels.code.rows.weights import CHUNK, f64, get_f64, set_f64
from appliance.kernels.compiler.emit import F32, F64, I32, I64, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    LANES,
    clear_vectors,
    get_f32,
    i32,
    i32x16,
    i64,
    operation,
    set_f32,
    set_i64,
    splat_i32,
)

_SIGN = 0x7FFFFFFF
PAGE = 4096


def _ordered(value: Val) -> Val:
    """Emit integers in the order of float32 numbers, the same for both zeros."""
    bits = (value + value.like(0.0)).bits(I32)
    return bits ^ (bits.sar(31) & _SIGN)


@operation(i64, i64)
def order_of(code: Code, address: Val) -> Val:
    """The place of a logit in the order of all float32 numbers."""
    return _ordered(code.load(address, F32)).convert("sext", I64)


@operation(i32x16, i64, i32, i32x16)
def counted(code: Code, logits: Val, border: Val, before: Val) -> Val:
    """16 counts, one more where a logit is at the border or above it."""
    reaches = _ordered(code.load(logits, F32, LANES)).compare(">=", code.splat(border, LANES))
    return before + reaches.convert("zext", I32)


@operation(i64, i32x16)
def added(code: Code, counts: Val) -> Val:
    """The sum of 16 counts."""
    return code.call("llvm.vector.reduce.add.v16i32", I32, counts).convert("sext", I64)


@operation(i32, i64)
def narrow(code: Code, value: Val) -> Val:
    """The low half of a word."""
    return value.convert("trunc", I32)


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


@device(inline=False)
def reaching(logits: int, count: int, border: int) -> int:
    """How many logits are at a border or above it."""
    counts, whole = splat_i32(0), count - count % LANES
    for i in range(0, whole, LANES):
        counts = counted(logits + 4 * i, narrow(border), counts)
    total = added(counts)
    for i in range(whole, count):
        total += 1 if order_of(logits + 4 * i) >= border else 0
    return total


@kernel("highest_logits", "void(i8,i8,i8,i8,i8)")
def highest_logits(logits: int, count: int, most: int, ids: int, values: int) -> None:
    """Find them."""
    border = -1 << 31
    for bit in range(31, -1, -1):
        higher = border + (1 << bit)
        border = higher if reaching(logits, count, higher) >= most else border
    equal = most - reaching(logits, count, border + 1)
    at = 0
    for i in range(count):
        order = order_of(logits + 4 * i)
        same = 1 if (order == border) & (equal > 0) else 0
        set_i64(ids + 8 * at, i)
        set_f32(values + 4 * at, get_f32(logits + 4 * i))
        equal -= same
        at += same | (1 if order > border else 0)
    clear_vectors()


@device
def limit_of(target: float, whole: float) -> float:
    """A target that is below the whole sum."""
    below = number_of(bits_of(whole) - 1)
    return target if target < below else below


@kernel("place_of_draw", "i8(i8,i8,i8,f8,i8)")
def place_of_draw(weights: int, count: int, sums: int, uniform: float, spare: int) -> int:
    """Find it."""
    chunks = (count + CHUNK - 1) // CHUNK
    target = uniform * get_f64(sums + 8 * (chunks - 1))
    limit, chunk, before = limit_of(target, get_f64(sums + 8 * (chunks - 1))), 0, 0.0
    for i in range(chunks):
        reached = get_f64(sums + 8 * i)
        before, chunk = (reached, chunk + 1) if reached <= limit else (before, chunk)
    for i in range(chunks):
        mask = -1 if i == chunk else 0
        for at in range(0, 8 * CHUNK, 64):
            take_row(weights + 8 * CHUNK * i + at, mask, spare + at)
    size = min(CHUNK, count - CHUNK * chunk)
    total = 0.0
    for i in range(CHUNK):
        more = total + get_f64(spare + 8 * i)
        total = more if i < size else total
        set_f64(spare + 8 * i, total)
    limit, place = limit_of(target - before, total), 0
    for i in range(CHUNK):
        place += 1 if (get_f64(spare + 8 * i) <= limit) & (i < size) else 0
    clear_vectors()
    return CHUNK * chunk + place


@kernel("token_row", "void(i8,i8,i8,i8,i8)")
def token_row(rows: int, pages: int, row_bytes: int, token: int, to: int) -> None:
    """Copy it."""
    of_page = PAGE // row_bytes
    page_of, place = token // of_page, token % of_page
    for page in range(pages):
        mask = -1 if page == page_of else 0
        source = rows + PAGE * page + row_bytes * (place & mask)
        for at in range(0, row_bytes, 64):
            take_row(source + at, mask, to + at)
    clear_vectors()
