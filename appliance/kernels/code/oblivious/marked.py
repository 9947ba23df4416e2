"""Text whose spaces are written as marks (U+2581), and whose unknown characters are bytes.

Symbols are bytes here, too: a space stands for the mark, and the first merges make characters.
"""

from __future__ import annotations

from numba.core import types

from appliance.kernels.code.oblivious.cut import AHEAD, BEGINS, FIXED, TAKEN, array, byte
from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.compiler.emit import I8, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import get_i32, i64, operation, set_i32
from appliance.kernels.layouts.blind import BY_LINES, BY_SPACES, NONE, TextPass

SPACE, LINE = 32, 10


@operation(types.void, i64, i64)
def set_byte(code: Code, address: Val, value: Val) -> None:
    """Store the lowest byte."""
    code.store(address, value.convert("trunc", I8))


@device
def is_mark(text: int) -> int:
    """1 where a text begins with the mark."""
    return 1 if (byte(text) == 0xE2) & (byte(text + 1) == 0x96) & (byte(text + 2) == 0x81) else 0


@device
def led(call: TextPass, i: int, taken: int) -> int:
    """1 at the place of a space before a stretch of text: the last byte of what was taken before,
    or the first of all."""
    begins = (1 - (i64(get_i32(array(call, TAKEN) + 4 * i + 4)) & 1)) & (1 if i + 1 < call.COUNT else 0)
    first = call.FIRST & (1 if i == 0 else 0)
    return ((call.LEADS & taken) | first) & begins


@device(inline=False)
def cut_marked(call: TextPass) -> None:
    """Write spaces for marks, put spaces before stretches, and write 1 at each byte where a word
    begins, and at the first of each special token."""
    text, taken, begins, fixed = call.TEXT, array(call, TAKEN), array(call, BEGINS), array(call, FIXED)
    spaces, lines = 1 if call.MARKED == BY_SPACES else 0, 1 if call.MARKED == BY_LINES else 0
    gone, was_free, was_space, was_line = 0, 0, 0, 0
    for i in range(call.LENGTH):
        own, before, special = byte(text + i), i64(get_i32(taken + 4 * i)), i64(get_i32(fixed + 4 * i))
        lead, here = led(call, i, before), (1 - before) & (1 if (i < call.COUNT) & (gone == 0) else 0)
        here &= 1 - (call.FIRST & (1 if i == 0 else 0))
        mark, free = here & is_mark(text + i), here | lead
        space = lead | mark | (here & (1 if own == SPACE else 0))
        line = here & (1 if own == LINE else 0)
        border = (1 - was_free) | (spaces & space & (1 - was_space)) | (lines & (line ^ was_line))
        starts = free & border & (lead | (1 if (own & 0xC0) != 0x80 else 0))
        set_i32(begins + 4 * i, starts | (1 if special > 0 else 0))
        set_i32(taken + 4 * i, 1 - free)
        set_byte(text + i, pick(space == 1, SPACE, own))
        stays = gone > 0
        was_free, was_space = pick(stays, was_free, free), pick(stays, was_space, space)
        was_line = pick(stays, was_line, line)
        gone = pick(mark == 1, 2, pick(stays, gone - 1, 0))


@device(inline=False)
def join_spaces(call: TextPass, symbol: int, alive: int) -> None:
    """Make one symbol of each RUN spaces in a row, from the left, and one of the rest."""
    fixed, ahead, rest, left = array(call, FIXED), array(call, AHEAD), 0, 0
    for i in range(call.LENGTH - 1, -1, -1):
        lives = get_i32(alive + 4 * i) == 1
        space = (get_i32(symbol + 4 * i) == SPACE) & (get_i32(fixed + 4 * i) == 0)
        rest = pick(lives, pick(space, rest + 1, 0), rest)
        set_i32(ahead + 4 * i, pick(lives, rest, 0))
    for i in range(call.LENGTH):
        here, rest = i64(get_i32(symbol + 4 * i)), i64(get_i32(ahead + 4 * i))
        space = rest > 0
        first, size = space & (left == 0), pick(rest < call.RUN, rest, call.RUN)
        set_i32(symbol + 4 * i, pick(first & (size > 1), 254 + size, here))
        set_i32(alive + 4 * i, pick(space & (left > 0), 0, i64(get_i32(alive + 4 * i))))
        left = pick(first, size - 1, pick(space, left - 1, left))


@device(inline=False)
def bytes_of(call: TextPass, symbol: int, token: int, alive: int) -> None:
    """In the place of each living symbol that has no token, its bytes."""
    left = 0
    for i in range(call.LENGTH):
        lives, own = get_i32(alive + 4 * i) == 1, i64(get_i32(token + 4 * i))
        left = pick(lives, pick(own > NONE, own - NONE, 0), left)
        apart, here = left > 0, i64(get_i32(symbol + 4 * i))
        set_i32(symbol + 4 * i, pick(apart, byte(call.TEXT + i), here))
        set_i32(alive + 4 * i, pick(apart, 1, i64(get_i32(alive + 4 * i))))
        left -= pick(apart, 1, 0)
