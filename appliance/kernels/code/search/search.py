"""Matches of a pattern in a text, in time that is linear in both: 64 positions at once, each bit of
a word one.

    count = find_spans(search)

`search`: the address of a table Search (`layouts.search`). For each stretch of text a program of
operations on whole streams says, from the end of the pattern to its beginning, from which positions
its rest matches. At each match's start a walk then takes the first choice that succeeds, and never
goes back. The result is how many spans were found, POSITION where to go on; -1 for a walk that
leaves its stretch, which no program of `engine.search` has.

With OPEN a span is a single position: each from which a path through the pattern reaches the end of
the text, so that text to come may matter.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types

from appliance.kernels.compiler.emit import I8, I64, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import get_i32, get_i64, i64, operation, set_i64
from appliance.kernels.layouts.search import GIVEN, INSTRUCTIONS, OPERATIONS, Instruction, Operation, Search

I1 = ir.IntType(1)
LANES = 8  # words of a vector
UNIT = 64  # bits of a word, and positions that are classified together

SHIFTED, EITHER, DIFFER, PREVIOUS, GAINED, AGAIN = range(len(OPERATIONS))
ACCEPT, MOVE, CHOICE, JUMP, RUN, ENTER, TEST = range(len(INSTRUCTIONS))
ONES, NOWHERE, BEGIN, END, LAST_LINE, BEYOND, ROOT, FORCED = range(len(GIVEN))


def _load(code: Code, address: Val) -> Val:
    return code.load(address, I64, LANES, align=8)


def _funnel(code: Code, name: str, high: Val, low: Val, count: Val) -> Val:
    return code.call(f"llvm.{name}.v{LANES}i64", high.type, high, low, code.splat(count, LANES))


@operation(types.void, i64, i64, i64, i64)
def shifted(code: Code, to: Val, a: Val, b: Val, count: Val) -> None:
    """8 words of `a`, and those `count` bits (below 64) after `b`."""
    code.store(to, _load(code, a) & _funnel(code, "fshr", _load(code, b + 8), _load(code, b), count))


@operation(types.void, i64, i64)
def moved_up(code: Code, to: Val, a: Val) -> None:
    """8 words, each bit one position later."""
    code.store(to, _funnel(code, "fshl", _load(code, a), _load(code, a - 8), code.constant(I64, 1)))


@operation(types.void, i64, i64, i64)
def either(code: Code, to: Val, a: Val, b: Val) -> None:
    """8 words, or."""
    code.store(to, _load(code, a) | _load(code, b))


@operation(types.void, i64, i64, i64)
def differ(code: Code, to: Val, a: Val, b: Val) -> None:
    """8 words, exclusive or."""
    code.store(to, _load(code, a) ^ _load(code, b))


@operation(i64, i64, i64, i64, i64)
def gained(code: Code, have: Val, a: Val, rest: Val, queue: Val) -> Val:
    """8 words of a turn: what is new goes to `a`; not zero if anything is."""
    before, found = _load(code, have), _load(code, a)
    new = found & (before ^ -1)
    code.store(a, new)
    code.store(have, before | new)
    code.store(queue, before | new | _load(code, rest))
    return code.call(f"llvm.vector.reduce.or.v{LANES}i64", I64, new)


@operation(types.void, i64, i64, i64)
def marked(code: Code, to: Val, rows: Val, place: Val) -> None:
    """One bit of each of 8 rows as a byte."""
    signs = (_load(code, rows) << code.splat(place, LANES)).compare("<", 0)
    code.b.store(code.b.bitcast(signs.ir, I8), code.pointer(to, I8))


@operation(i64, i64)
def trailing(code: Code, word: Val) -> Val:
    """Zeros below the lowest bit of a word that is not zero."""
    return code.call("llvm.cttz.i64", I64, word, code.constant(I1, 1))


@operation(i64, i64)
def leading(code: Code, word: Val) -> Val:
    """Zeros above the highest bit of a word that is not zero."""
    return code.call("llvm.ctlz.i64", I64, word, code.constant(I1, 1))


@device
def bit(stream: int, place: int) -> int:
    """The bit of a position."""
    return get_i64(stream + 8 * (place >> 6)) >> (place & 63) & 1


@device(inline=False)
def next_bit(stream: int, place: int, limit: int, flip: int) -> int:
    """The first position from `place` on, below `limit`, whose bit is 1 (`flip` = -1: 0); `limit`
    if there is none."""
    index = place >> 6
    word = (get_i64(stream + 8 * index) ^ flip) & (-1 << (place & 63))
    while word == 0:
        index += 1
        if index << 6 >= limit:
            return limit
        word = get_i64(stream + 8 * index) ^ flip
    return min(limit, (index << 6) + trailing(word))


@device(inline=False)
def last_bit(stream: int, place: int, least: int) -> int:
    """The last position up to `place`, from `least` on, whose bit is 1; -1 if there is none."""
    index = place >> 6
    word = get_i64(stream + 8 * index) << (63 - (place & 63))
    if word != 0:
        found = place - leading(word)
        return found if found >= least else -1
    while index << 6 > least:
        index -= 1
        word = get_i64(stream + 8 * index)
        if word != 0:
            found = (index << 6) + 63 - leading(word)
            return found if found >= least else -1
    return -1


# --- the stretch ----------------------------------------------------------------------------------
@device(inline=False)
def fill(stream: int, count: int, word: int) -> None:
    """Words of a stream."""
    for index in range(count):
        set_i64(stream + 8 * index, word)


@device(inline=False)
def fill_from(stream: int, count: int, place: int) -> None:
    """A stream whose bits are 1 from a position on."""
    for index in range(count):
        before = place - (index << 6)
        set_i64(stream + 8 * index, -1 if before <= 0 else 0 if before >= 64 else -1 << before)


@device
def put_bit(stream: int, place: int) -> None:
    """Set the bit of a position."""
    at = stream + 8 * (place >> 6)
    set_i64(at, get_i64(at) | (1 << (place & 63)))


@device(inline=False)
def given(search: Search, origin: int, count: int) -> None:
    """The streams that do not depend on classes."""
    streams, stride, end = search.STREAMS, search.STRIDE, search.END - origin
    is_open = search.OPEN
    for name in (NOWHERE, BEGIN, END, LAST_LINE, FORCED):
        fill(streams + stride * name, count, 0)
    fill(streams + stride * ONES, count, -1)
    if origin == 0:
        put_bit(streams + stride * BEGIN, 0)
    if end < count << 6:
        put_bit(streams + stride * END, end)
        if end > 0 and get_i32(search.TEXT + 4 * (origin + end - 1)) == 10:
            put_bit(streams + stride * LAST_LINE, end - 1)
            if is_open:
                put_bit(streams + stride * FORCED, end - 1)
    fill_from(streams + stride * BEYOND, count, end if is_open else count << 6)
    fill_from(streams + stride * ROOT, count, end if is_open else 0)


@device(inline=False)
def rows_of(search: Search, origin: int) -> None:
    """The row numbers of 64 characters to the buffer's second half; -1 beyond the end."""
    text, pages, buffer = search.TEXT, search.PAGES, search.BUFFER + 8 * UNIT
    count = min(UNIT, search.END - origin)
    for index in range(UNIT):
        row = -1
        if index < count:
            point = i64(get_i32(text + 4 * (origin + index)))
            row = i64(get_i32(pages[point >> 8] + 4 * (point & 255)))
        set_i64(buffer + 8 * index, row)


@device(inline=False)
def classify_unit(search: Search, stream: int) -> None:
    """A word of the stream of each class, from row numbers; `stream`: the first class's, at this
    word."""
    rows, groups, classes = search.ROWS, search.GROUPS, search.CLASSES
    buffer, stride, absent = search.BUFFER, search.STRIDE, -search.OPEN
    for group in range(groups):
        present = 0
        for index in range(UNIT):
            row = get_i64(buffer + 8 * (UNIT + index))
            word = absent if row < 0 else get_i64(rows + 8 * (row * groups + group))
            set_i64(buffer + 8 * index, word)
            present |= word
        for number in range(min(64, classes - 64 * group)):
            to = stream + stride * (64 * group + number)
            set_i64(to, 0)
            if (present >> number | search.EVEN) & 1:
                for part in range(UNIT // LANES):
                    marked(to + part, buffer + 8 * LANES * part, 63 - number)


@device(inline=False)
def classify(search: Search, origin: int, count: int) -> None:
    """The streams of all classes."""
    first = search.STREAMS + search.STRIDE * len(GIVEN)
    for index in range(count):
        rows_of(search, origin + (index << 6))
        classify_unit(search, first + 8 * index)


# --- the program ----------------------------------------------------------------------------------
@device(inline=False)
def run_shifted(to: int, a: int, b: int, amount: int, count: int) -> None:
    """Run the operation `shifted` of `layouts.search.OPERATIONS`."""
    b += 8 * (amount >> 6)
    amount &= 63
    for at in range(0, 8 * count, 8 * LANES):
        shifted(to + at, a + at, b + at, amount)


@device(inline=False)
def run_either(to: int, a: int, b: int, count: int) -> None:
    """Run the operation `either` of `layouts.search.OPERATIONS`."""
    for at in range(0, 8 * count, 8 * LANES):
        either(to + at, a + at, b + at)


@device(inline=False)
def run_differ(to: int, a: int, b: int, count: int) -> None:
    """Run the operation `differ` of `layouts.search.OPERATIONS`."""
    for at in range(0, 8 * count, 8 * LANES):
        differ(to + at, a + at, b + at)


@device(inline=False)
def run_previous(to: int, a: int, count: int) -> None:
    """Run the operation `previous` of `layouts.search.OPERATIONS`."""
    for at in range(0, 8 * count, 8 * LANES):
        moved_up(to + at, a + at)
    set_i64(to, get_i64(to) & -2)


@device(inline=False)
def run_gained(op: Operation, streams: int, stride: int, turn: int, count: int) -> int:
    """A turn of a loop; not zero if anything was new."""
    have, a = streams + stride * op.TO, streams + stride * op.A
    rest, queue = streams + stride * op.B, streams + stride * op.QUEUE
    anything = 0
    for at in range(0, 8 * count, 8 * LANES):
        anything |= gained(have + at, a + at, rest + at, queue + at)
    for number in range(op.PLANE_COUNT):
        if turn >> number & 1:
            plane = streams + stride * (op.PLANES + number)
            run_either(plane, plane, a, count)
    return anything


@device(inline=False)
def turn_over(search: Search, op: Operation, count: int) -> bool:
    """The end of a turn of a loop; whether there is another."""
    counter = search.COUNTERS + 8 * op.LOOP
    turn = get_i64(counter) + 1
    goes_on = turn < op.AMOUNT
    if op.KIND == GAINED and not run_gained(op, search.STREAMS, search.STRIDE, turn, count) | search.EVEN:
        goes_on = False
    set_i64(counter, turn if goes_on else 0)
    return goes_on


@device(inline=False)
def run_operations(search: Search, count: int) -> None:
    """The whole program on a stretch."""
    streams, stride, first, index = search.STREAMS, search.STRIDE, search.OPERATIONS, 0
    while index < search.OPERATION_COUNT:
        op = first[index]
        kind, to = op.KIND, streams + stride * op.TO
        a, b = streams + stride * op.A, streams + stride * op.B
        index += 1
        if kind == SHIFTED:
            run_shifted(to, a, b, op.AMOUNT, count)
        elif kind == EITHER:
            run_either(to, a, b, count)
        elif kind == DIFFER:
            run_differ(to, a, b, count)
        elif kind == PREVIOUS:
            run_previous(to, a, count)
        elif turn_over(search, op, count):
            index = op.BACK


# --- the walk -------------------------------------------------------------------------------------
@device(inline=False)
def run_wide(stream: int, ends: int, at: Instruction, place: int) -> int:
    """`run_end` for WIDTH characters at a time."""
    width, low, high, lazy = at.WIDTH, at.LOW, at.HIGH, at.LAZY
    found, turn = -1, 0
    while True:
        if turn >= low and bit(ends, place):
            found = place
            if lazy:
                return found
        if turn == high or bit(stream, place) == 0:
            return found
        place += width
        turn += 1


@device(inline=False)
def run_end(streams: int, stride: int, at: Instruction, place: int) -> int:
    """Where a run ends; -1 if it cannot."""
    stream, ends = streams + stride * at.STREAM, streams + stride * at.OTHER
    if at.WIDTH != 1:
        return run_wide(stream, ends, at, place)
    least, most = place + at.LOW, place + at.HIGH
    if at.LAZY:
        found = next_bit(ends, least, most + 1, 0)
        return found if found <= most else -1
    return last_bit(ends, next_bit(stream, place, most, -1), least)


@device(inline=False)
def another_turn(streams: int, stride: int, at: Instruction, place: int, turn: int) -> bool:
    """Whether a loop takes another turn."""
    high = at.HIGH
    if turn < at.LOW or turn == high:
        return turn < high
    if at.LAZY:
        return bit(streams + stride * at.OTHER, place) == 0
    planes, least = streams + stride * at.PLANES, 0
    for number in range(at.PLANE_COUNT):
        least |= bit(planes + stride * number, place) << number
    return 0 < least <= high - turn


@device(inline=False)
def walk(search: Search, place: int, limit: int) -> int:
    """The end of the match that starts at `place`; -1 beyond `limit`."""
    streams, stride, counters = search.STREAMS, search.STRIDE, search.COUNTERS
    at = search.WALK
    while 0 <= place <= limit:
        kind, skip = at.KIND, 1
        if kind == ACCEPT:
            return place
        if kind == MOVE:
            place += at.WIDTH
        elif kind == CHOICE:
            skip = 1 if bit(streams + stride * at.STREAM, place) else at.NEXT
        elif kind == JUMP:
            skip = at.NEXT
        elif kind == RUN:
            place = run_end(streams, stride, at, place)
        else:
            counter = counters + 8 * at.LOOP
            turn = 0 if kind == ENTER else get_i64(counter) + 1
            if kind == TEST and not another_turn(streams, stride, at, place, turn - 1):
                turn, skip = 0, at.NEXT
            set_i64(counter, turn)
        at = at[skip]
    return -1


@device(inline=False)
def take_stretch(search: Search, origin: int, place: int, limit: int, spans: int) -> int:
    """Add the matches that start from `place` to before `limit`; how many spans there are now, -1
    for a fault."""
    root = search.STREAMS + search.STRIDE * search.ROOT
    capacity, out, is_open = search.CAPACITY, search.SPANS, search.OPEN
    while spans < capacity and place < limit:  # a match may have ended beyond it
        place = next_bit(root, place, limit, 0)
        if place >= limit:
            break
        end = place + 1 if is_open else walk(search, place, place + search.WIDTH)
        if end <= place:
            return -1
        set_i64(out + 16 * spans, origin + place)
        set_i64(out + 16 * spans + 8, origin + end)
        spans += 1
        place = end
    search.POSITION = origin + place
    return spans


@kernel("find_spans", "i8(i8)")
def find_spans(address: int) -> int:
    """Find the spans of all matches."""
    search = Search(address)
    end, is_open, spans = search.END, search.OPEN, 0
    reach, stop = search.WIDTH + UNIT, min(end, search.STOP)
    while 0 <= spans < search.CAPACITY and search.POSITION < stop:
        origin = max(search.POSITION - 1, 0)
        needed = end - origin + (reach if is_open else 1)
        count = min(search.WORDS, (needed + 64 * LANES - 1) // (64 * LANES) * LANES)
        given(search, origin, count)
        classify(search, origin, count)
        run_operations(search, count)
        place, limit = search.POSITION - origin, min(end - origin, (search.WORDS << 6) - reach)
        spans = take_stretch(search, origin, place, limit, spans)
    return spans
