"""Words that are a token as a whole, although no merges make it.

A hash and a length say which one of a list a word may be. Then all of its bytes are compared with
that one's, which a sweep over all of them brings.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.cut import array, byte
from appliance.kernels.code.oblivious.sweep import pick, sweep_numbers
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    LANES,
    get_i32,
    i32,
    i32x16,
    i64,
    load_i32,
    operation,
    set_i32,
    splat_i32,
    store_i32,
)
from appliance.kernels.layouts.blind import ARRAYS, HASH_MASK, HASH_STEP, TextPass

(_CODE, _KIND, _LEAD, _AFTER, _AHEAD, BEGINS, SYMBOL, ALIVE, PLACE, NUMBER, INDEX, HASH, BYTES, _SLOT, SAME, *_, TAKEN,
 _TOKEN) = range(len(ARRAYS))


@operation(i32x16, i32x16, i32x16, i32, i32, i32, i32x16)
def where_both(code: Code, one: Val, other: Val, first: Val, second: Val, value: Val, before: Val) -> Val:
    """`value` in the lanes where both are as asked, else what was before."""
    hit = code.b.and_(one.compare("==", code.splat(first, LANES)).ir, other.compare("==", code.splat(second, LANES)).ir)
    return Val(code, hit).select(code.splat(value, LANES), before)


@device
def inside(call: TextPass, i: int) -> int:
    """1 for a byte of a word."""
    free = i64(get_i32(array(call, TAKEN) + 4 * i)) == 0
    return 1 if free & (i < call.COUNT) else 0


@device(inline=False)
def hash_words(call: TextPass) -> None:
    """Write the hash of each word up to each of its bytes, and the byte's place in it."""
    text, begins, place, hashes, mixed, at = call.TEXT, array(call, BEGINS), array(call, PLACE), array(call, HASH), 0, 0
    for i in range(call.LENGTH):
        starts = get_i32(begins + 4 * i) == 1
        mixed = (pick(starts, 0, mixed) * HASH_STEP + byte(text + i) + 1) & HASH_MASK
        at = pick(starts, 0, at + 1)
        set_i32(hashes + 4 * i, mixed)
        set_i32(place + 4 * i, at)


@device(inline=False)
def number_words(call: TextPass) -> None:
    """Write which word of the list each word may be, from 1 on, at its last byte."""
    place, hashes, number, wholes = array(call, PLACE), array(call, HASH), array(call, NUMBER), call.WHOLES
    for i in range(0, 4 * call.LENGTH, 64):
        at, mixed, found = load_i32(place + i), load_i32(hashes + i), splat_i32(0)
        for index in range(call.WHOLE_COUNT):
            to = wholes + 8 * index
            found = where_both(mixed, at, get_i32(to), get_i32(to + 4), i32(index + 1), found)
        store_i32(number + i, found)


@device(inline=False)
def from_last_byte(call: TextPass) -> None:
    """Write the number of each word at all of its bytes, and where its bytes are in the table."""
    begins, place, number, index = array(call, BEGINS), array(call, PLACE), array(call, NUMBER), array(call, INDEX)
    carried, border = 0, 1
    for i in range(call.LENGTH - 1, -1, -1):
        here, own = inside(call, i), i64(get_i32(number + 4 * i))
        carried = pick(border == 1, own, carried) & -here
        at = call.WHOLE_ROW * (carried - 1) + i64(get_i32(place + 4 * i))
        set_i32(number + 4 * i, carried)
        set_i32(index + 4 * i, pick(carried > 0, at, 0))
        border = 1 if (i64(get_i32(begins + 4 * i)) == 1) | (here == 0) else 0


@device(inline=False)
def compare_bytes(call: TextPass) -> None:
    """Write 1 at each byte up to which a word is that of the list."""
    text, begins, same = call.TEXT, array(call, BEGINS), array(call, SAME)
    bytes_of, number, still = array(call, BYTES), array(call, NUMBER), 0
    for i in range(call.LENGTH):
        before = pick(get_i32(begins + 4 * i) == 1, 1, still)
        equal = i64(get_i32(bytes_of + 4 * i)) == byte(text + i)
        still = pick(equal & (get_i32(number + 4 * i) > 0), before, 0)
        set_i32(same + 4 * i, still)


@device(inline=False)
def put_wholes(call: TextPass) -> None:
    """The first byte's symbol is that of the word; the others are gone."""
    begins, symbol, alive, same, number = (array(call, BEGINS), array(call, SYMBOL), array(call, ALIVE),
                                           array(call, SAME), array(call, NUMBER))
    whole, border = 0, 1
    for i in range(call.LENGTH - 1, -1, -1):
        here, starts = inside(call, i), i64(get_i32(begins + 4 * i))
        whole = pick(border == 1, i64(get_i32(same + 4 * i)), whole) & here
        own, lives = i64(get_i32(symbol + 4 * i)), i64(get_i32(alive + 4 * i))
        of_word = call.WHOLE_SYMBOL + i64(get_i32(number + 4 * i)) - 1
        set_i32(symbol + 4 * i, pick(whole == 1, of_word, own))
        set_i32(alive + 4 * i, pick(whole == 1, starts, lives))
        border = 1 if (starts == 1) | (here == 0) else 0


@device(inline=False)
def whole_words(call: TextPass) -> None:
    """Find them, after all merges; a model without any takes no time."""
    if call.WHOLE_COUNT > 0:
        hash_words(call)
        number_words(call)
        from_last_byte(call)
        sweep_numbers(call.WHOLE_BYTES, call.WHOLE_PAGES, array(call, INDEX), 4 * call.LENGTH, array(call, BYTES))
        compare_bytes(call)
        put_wholes(call)
