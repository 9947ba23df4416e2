"""The order of logits, and rows with an entry a token; no address depends on either.

    mark_highest(logits, count, most, marks)
    count = bring_forward(values, names, marks, count, hole)
    sort_pairs(keys, payloads, count)
    add_up(row, pages, places, values, count, highest)

`mark_highest` writes 1 (int32) for the `most` highest of `count` float32 logits, of equals at the
border for the first ones, and 0 for the others, in whole vectors. It finds the border bit by bit.

`bring_forward` moves the marked entries of two rows of 4 bytes each to the front, in their order,
and returns how many they are. Other entries become `hole`, and 0 in `names`. It takes steps of 1,
2, 4 and so on. `count` is a multiple of 16; 64 bytes behind `marks` are zeros.

`sort_pairs` sorts int64 pairs by key, then by payload. `count` is a power of two from 16 on. Rows
begin at multiples of 64. Source: K. E. Batcher, "Sorting networks and their applications", 1968.

`add_up` adds an int32 at each of `count` places (int64) of a row in pages of int32; with `highest`
the larger of both stays.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.kernels.code.oblivious.sweep import loaded, pick
from appliance.kernels.compiler.emit import F32, I32, I64, Code, Val, vector
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    LANES,
    clear_vectors,
    get_i32,
    get_i64,
    i32,
    i32x16,
    i64,
    operation,
    set_i32,
    splat_i32,
    sum_i32,
)

_SIGN = 0x7FFFFFFF
_HALF = 8  # int64 of a vector
PAGE, LAST = 4096, [LANES - 1] * LANES
NEAR, PART = 8, 256  # steps that follow each other, the longest shorter than a part


def _ordered(value: Val) -> Val:
    """Emit integers in the order of float32 numbers, the same for both zeros."""
    bits = (value + value.like(0.0)).bits(I32)
    return bits ^ (bits.sar(31) & _SIGN)


def _through(lanes: Val) -> Val:
    """Emit the sums up to each lane, itself included."""
    for step in (1, 2, 4, 8):
        lanes = lanes + lanes.shuffle([lane - step if lane >= step else LANES for lane in range(LANES)], lanes.like(0))
    return lanes


@operation(types.void, i64, i64, i64)
def write_orders(code: Code, logits: Val, count: Val, to: Val) -> None:
    """The order of up to 16 logits among all float32 numbers; lanes behind them are the lowest."""
    lanes = Val(code, ir.Constant(vector(I32, LANES), list(range(LANES))))
    there = lanes.compare("<", code.splat(count.convert("trunc", I32), LANES))
    row = Val(code, code.b.inttoptr(logits.ir, ir.PointerType(vector(F32, LANES))))
    nothing = code.constant(vector(F32, LANES), 0)
    read = code.call(f"llvm.masked.load.v{LANES}f32.p0", nothing.type, row, code.constant(I32, 4), there, nothing)
    code.store(to, there.select(_ordered(read), code.constant(vector(I32, LANES), -1 << 31)))


@operation(i32x16, i64, i32, i32x16)
def counted(code: Code, orders: Val, border: Val, before: Val) -> Val:
    """16 counts, one more where a place is at the border or above it."""
    reaches = code.load(orders, I32, LANES).compare(">=", code.splat(border, LANES))
    return before + reaches.convert("zext", I32)


@operation(i32x16, i64, i32, i32x16)
def marked(code: Code, orders: Val, border: Val, left: Val) -> Val:
    """Write the marks of 16 places, so many equals of the border among them; how many are left."""
    order, edge = code.load(orders, I32, LANES), code.splat(border, LANES)
    equal = order.compare("==", edge).convert("zext", I32)
    number = _through(equal)
    code.store(orders, order.compare(">", edge).convert("zext", I32) | (
        number.compare("<=", left).convert("zext", I32) & equal))
    return left - number.shuffle(LAST)


@kernel("mark_highest", "void(i8,i8,i8,i8)")
def mark_highest(logits: int, count: int, most: int, marks: int) -> None:
    """Mark them."""
    for i in range(0, count, LANES):
        write_orders(logits + 4 * i, count - i, marks + 4 * i)
    border, reaching = -1 << 31, 0
    for bit in range(31, -2, -1):  # in the end, how many are above the border
        higher, counts = border + (1 << max(bit, 0)), splat_i32(0)
        for i in range(0, count, LANES):
            counts = counted(marks + 4 * i, i32(higher), counts)
        reaching = i64(sum_i32(counts))
        border = pick((reaching >= most) & (bit >= 0), higher, border)
    left = splat_i32(i32(most - reaching))
    for i in range(0, count, LANES):
        left = marked(marks + 4 * i, i32(border), left)
    clear_vectors()


def _moved(code: Code, row: Val, lanes: tuple[Val, Val, Val], hole: Val, zero: Val) -> None:
    """Emit a row's step: what comes, a hole where it goes, or what is there: see `sweep`."""
    comes, goes, far = lanes
    there, here = loaded(code, code.load(row + far, I32, LANES), code.load(row, I32, LANES))
    code.store(row, comes.select(there, goes.select(hole, here + zero)))


@operation(types.void, i64, i64, i64, i32, i32, i64, i32)
def step_forward(code: Code, values: Val, names: Val, away: Val, step: Val, hole: Val, far: Val, zero: Val) -> None:
    """Move 16 entries by a step. `far` is its bytes, or 0 where nothing comes from there."""
    bits, nothing = code.splat(step, LANES), code.splat(zero, LANES)
    there, here = loaded(code, code.load(away + far, I32, LANES), code.load(away, I32, LANES))
    reach = code.splat(far.compare("!=", 0).convert("sext", I32), LANES)
    comes, goes = (there & bits & reach).compare("!=", 0), (here & bits).compare("!=", 0)
    _moved(code, values, (comes, goes, far), code.splat(hole, LANES), nothing)
    _moved(code, names, (comes, goes, far), nothing, nothing)
    code.store(away, comes.select(there - bits, goes.select(nothing, here + nothing)))


@operation(i32x16, i64, i64, i64, i32, i32, i32x16)
def write_away(code: Code, values: Val, names: Val, marks: Val, hole: Val, zero: Val, gone: Val) -> Val:
    """Write in the place of each of 16 marks how far its entry moves; how many are gone by then."""
    value, name, mark = loaded(code, *(code.load(row, I32, LANES) for row in (values, names, marks)))
    keeps, nothing = mark.compare("!=", 0), code.splat(zero, LANES)
    before = gone + _through(mark.compare("==", 0).convert("zext", I32))
    code.store(values, keeps.select(value + nothing, code.splat(hole, LANES)))
    code.store(names, keeps.select(name + nothing, nothing))
    code.store(marks, keeps.select(before, nothing))
    return before.shuffle(LAST)


@device(inline=False)
def move(values: int, names: int, marks: int, first: int, end: int, step: int, count: int, hole: int) -> None:
    """Move entries from `first` to `end` of `count` by a step."""
    whole, zero = count if step < LANES else count - step, i32(values & 63)
    for i in range(first, min(end, count), LANES):
        far = 4 * step if i < whole else 0
        step_forward(values + 4 * i, names + 4 * i, marks + 4 * i, i32(step), i32(hole), far, zero)


@kernel("bring_forward", "i8(i8,i8,i8,i8,i8)")
def bring_forward(values: int, names: int, marks: int, count: int, hole: int) -> int:
    """Move them; how many they are. Short steps follow each other a part apart: it stays cached."""
    gone, step = splat_i32(0), 1 << NEAR
    for part in range(0, count + PART * (NEAR + 1), PART):
        for i in range(part, min(part + PART, count), LANES):
            gone = write_away(values + 4 * i, names + 4 * i, marks + 4 * i, i32(hole), i32(values & 63), gone)
        for number in range(NEAR):
            first = part - PART * (number + 1)
            if first >= 0 and 1 << number < count:
                move(values, names, marks, first, first + PART, 1 << number, count, hole)
    away = i64(sum_i32(gone)) // LANES
    while step < count:
        move(values, names, marks, 0, count, step, count, hole)
        step *= 2
    clear_vectors()
    return count - away


def _more(x: Val, y: Val, s: Val, t: Val) -> Any:
    """Emit whether the pairs (x, s) come after (y, t)."""
    b = x.code.b
    return b.or_(x.compare(">", y).ir, b.and_(x.compare("==", y).ir, s.compare(">", t).ir))


@operation(types.void, i64, i64, i64, i64, i64)
def exchange(code: Code, keys: Val, payloads: Val, far: Val, up: Val, zero: Val) -> None:
    """Put 8 pairs and those `far` bytes on in order; `up` is -1, or 0 for a falling one."""
    x, y, s, t = loaded(code, *(code.load(row + more, I64, _HALF) for row in (keys, payloads)
                                for more in (far * 0, far)))
    rises, nothing = code.splat(up, _HALF).compare("!=", 0), code.splat(zero, _HALF)
    swap = Val(code, code.b.icmp_signed("==", _more(x, y, s, t), rises.ir))
    for row, low, high in ((keys, x, y), (payloads, s, t)):
        code.store(row, swap.select(high, low + nothing))
        code.store(row + far, swap.select(low, high + nothing))


def _within(distance: int) -> Any:
    """The same for pairs within a vector, so many lanes apart."""
    partner = [lane ^ distance for lane in range(_HALF)]

    @operation(types.void, i64, i64, i64, i64, i64)
    def exchange_within(code: Code, keys: Val, payloads: Val, first: Val, size: Val, zero: Val) -> None:
        x, s = loaded(code, code.load(keys, I64, _HALF), code.load(payloads, I64, _HALF))
        y, t, nothing = x.shuffle(partner), s.shuffle(partner), code.splat(zero, _HALF)
        lanes = Val(code, ir.Constant(vector(I64, _HALF), list(range(_HALF))))
        rises = ((code.splat(first, _HALF) + lanes) & code.splat(size, _HALF)).compare("==", 0)
        low = (lanes & distance).compare("==", 0)
        takes_less = code.b.icmp_signed("==", rises.ir, low.ir)
        take = Val(code, code.b.icmp_signed("==", _more(x, y, s, t), takes_less))
        code.store(keys, take.select(y, x + nothing))
        code.store(payloads, take.select(t, s + nothing))

    return exchange_within


by_one, by_two, by_four = _within(1), _within(2), _within(4)


@device(inline=False)
def merge_near(keys: int, payloads: int, count: int, size: int, zero: int) -> None:
    """The last steps of a merge of `size`, within vectors."""
    for i in range(0, count, _HALF):
        if size > 4:
            by_four(keys + 8 * i, payloads + 8 * i, i, size, zero)
        if size > 2:
            by_two(keys + 8 * i, payloads + 8 * i, i, size, zero)
        by_one(keys + 8 * i, payloads + 8 * i, i, size, zero)


@device(inline=False)
def merge_far(keys: int, payloads: int, count: int, size: int, zero: int) -> None:
    """The first steps of a merge of `size`, between vectors."""
    step = size >> 1
    while step >= _HALF:
        for block in range(0, count, 2 * step):
            up = -1 if block & size == 0 else 0
            for i in range(block, block + step, _HALF):
                exchange(keys + 8 * i, payloads + 8 * i, 8 * step, up, zero)
        step >>= 1


@kernel("sort_pairs", "void(i8,i8,i8)")
def sort_pairs(keys: int, payloads: int, count: int) -> None:
    """Sort them."""
    size, zero = 2, keys & 63
    while size <= count:
        merge_far(keys, payloads, count, size, zero)
        merge_near(keys, payloads, count, size, zero)
        size *= 2
    clear_vectors()


@kernel("add_up", "void(i8,i8,i8,i8,i8,i8)")
def add_up(row: int, pages: int, places: int, values: int, count: int, highest: int) -> None:
    """Add them."""
    for number in range(count):
        place, value = get_i64(places + 8 * number), i64(get_i32(values + 4 * number))
        page_of, of_page = place >> 10, place & 1023
        for page in range(pages):
            here = pick(page == page_of, -1, 0)
            to = row + PAGE * page + 4 * (of_page & here)
            before, more = i64(get_i32(to)), value & here
            larger = pick(before > more, before, more)
            set_i32(to, larger if highest == 1 else before + more)
    clear_vectors()
