"""The strings of a JSON text, without a jump that depends on what they say.

    quote_places(call)
    read_string(call)

`call`: the address of a ReadPass (`layouts.blind`). `quote_places` finds where strings begin and
end. `read_string` makes the bytes that a string means. Source: RFC 8259, section 7; for UTF-8,
table 3-7 of the Unicode Standard.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.cut import byte
from appliance.kernels.code.oblivious.merge import close_up
from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, get_i32, i64, set_i32
from appliance.kernels.layouts.blind import ReadPass

QUOTE, BACKSLASH, SLASH, LETTER_U = 34, 92, 47, 117
HIGH, LOW, PLANES = 0xD800, 0xDC00, 0x10000
LEAD_BITS = 0xF0E0C000  # of a character of 1 to 4 bytes, from the lowest byte on


@device
def within(value: int, low: int, high: int) -> int:
    """1 for a number from the first to the last."""
    return 1 if (value >= low) & (value <= high) else 0


@device
def escape_of(character: int) -> int:
    """The character of an escape by its letter; 0 for none."""
    found = pick((character == QUOTE) | (character == BACKSLASH) | (character == SLASH), character, 0)
    found = pick(character == 98, 8, found)
    found = pick(character == 102, 12, found)
    found = pick(character == 110, 10, found)
    found = pick(character == 114, 13, found)
    return pick(character == 116, 9, found)


@device
def digit_of(character: int) -> int:
    """The value of a hexadecimal digit; -1 for none."""
    small = character | 32
    value = pick(within(character, 48, 57) == 1, character - 48, -1)
    return pick(within(small, 97, 102) == 1, small - 87, value)


@device
def following_of(lead: int) -> int:
    """How many bytes follow the first byte of a character; -1 where none begins so."""
    value = pick(lead < 0x80, 0, -1)
    value = pick(within(lead, 0xC2, 0xDF) == 1, 1, value)
    value = pick(within(lead, 0xE0, 0xEF) == 1, 2, value)
    return pick(within(lead, 0xF0, 0xF4) == 1, 3, value)


@device
def is_blank(character: int) -> int:
    """1 for white space of ASCII, as Python has it."""
    return within(character, 9, 13) | within(character, 28, 32)


@device
def is_wide_blank(three: int, two: int) -> int:
    """1 for white space of three bytes, or of two."""
    return (within(three, 0xE28080, 0xE2808A) | within(three, 0xE280A8, 0xE280A9) |
            (1 if (three == 0xE19A80) | (three == 0xE280AF) | (three == 0xE2819F) | (three == 0xE38080) else 0) |
            (1 if (two == 0xC285) | (two == 0xC2A0) else 0))


@device
def write_point(call: ReadPass, end: int, point: int, wanted: int) -> None:
    """Write a character's bytes, the last one at `end`, where it is wanted."""
    nbytes = pick(point >= PLANES, 4, pick(point >= 0x800, 3, pick(point >= 0x80, 2, 1)))
    for back in range(4):
        bits = point >> 6 * back
        value = pick(nbytes == back + 1, (LEAD_BITS >> 8 * back & 255) | bits, 0x80 | (bits & 63))
        code, alive = call.CODES + 4 * (end - back), call.ALIVE + 4 * (end - back)
        here = (wanted == 1) & (back < nbytes)
        set_i32(code, pick(here, value, i64(get_i32(code))))
        set_i32(alive, pick(here, 1, i64(get_i32(alive))))


@device(inline=False)
def unescape(call: ReadPass) -> None:
    """Write the bytes that a string means, each where its escape stands."""
    escaped, digits, value, high, due = 0, 0, 0, 0, 0
    more, low, top, fault, cut = 0, 0x80, 0xBF, 0, 0
    for i in range(call.LENGTH):
        here, inside = byte(call.TEXT + i), 1 if i < call.COUNT else 0
        in_number = 1 if digits > 0 else 0
        plain = (escaped | in_number) ^ 1
        begins = plain & (1 if here == BACKSLASH else 0)
        number = escaped & (1 if here == LETTER_U else 0)
        letter, digit = escape_of(here), digit_of(here)
        wrong = (in_number & (1 if digit < 0 else 0)) | (escaped & (number ^ 1) & (1 if letter == 0 else 0))
        wrong |= plain & (1 if (here < 32) | (here == QUOTE) else 0)
        wrong |= (1 if due == 2 else 0) & (begins ^ 1) | (1 if due == 1 else 0) & (number ^ 1)

        inner, lead = 1 if more > 0 else 0, following_of(here)
        wrong |= (inner & (within(here, low, top) ^ 1)) | ((inner ^ 1) & plain & (1 if lead < 0 else 0))
        more = pick(inner == 1, more - 1, pick((plain == 1) & (lead > 0), lead, 0))
        low = pick(inner == 1, 0x80, pick(here == 0xE0, 0xA0, pick(here == 0xF0, 0x90, 0x80)))
        top = pick(inner == 1, 0xBF, pick(here == 0xED, 0x9F, pick(here == 0xF4, 0x8F, 0xBF)))

        value = pick(in_number == 1, value << 4 | (digit & 15), 0)
        done = 1 if digits == 1 else 0
        digits = pick(number == 1, 4, digits - in_number)
        is_high, is_low, paired = within(value, HIGH, LOW - 1), within(value, LOW, 0xDFFF), 1 if high > 0 else 0
        wrong |= done & (paired ^ is_low)
        point = pick(paired == 1, PLANES + (high - HIGH << 10) + (value & 0x3FF), value)
        first = done & is_high & (paired ^ 1)
        due = pick(first == 1, 2, pick(due > 0, due - 1, 0))

        kept = inside & ((plain & (begins ^ 1)) | (escaped & (number ^ 1)))
        set_i32(call.CODES + 4 * i, pick(escaped == 1, letter, here))
        set_i32(call.ALIVE + 4 * i, kept)
        write_point(call, i, point, inside & done & (first ^ 1))
        high = pick(first == 1, value, pick(done == 1, 0, high))
        escaped = pick(begins == 1, 1, 0)
        fault |= wrong & inside
        cut = pick(inside == 1, 1 if escaped | digits | high | more > 0 else 0, cut)
    call.FAULTY = fault | cut


@device(inline=False)
def find_blanks(call: ReadPass) -> None:
    """White space at both ends."""
    leading, trailing, runs, count = 0, 0, 1, call.NBYTES
    for i in range(call.LENGTH):
        inside = 1 if i < count else 0
        blank = is_blank(i64(get_i32(call.CODES + 4 * i)))
        runs = pick((blank & inside) == 1, runs, 0)
        leading += runs
        trailing = pick(inside == 1, (trailing + 1) & -blank, trailing)
    first, last = 0, 0
    for i in range(call.LENGTH):
        code = i64(get_i32(call.CODES + 4 * i))
        first = pick((i >= leading) & (i < leading + 3), first << 8 | code, first)
        last = pick(i < count - trailing, (last << 8 | code) & 0xFFFFFF, last)
    call.LEADING = leading
    call.TRAILING = trailing
    call.SPACED = is_wide_blank(first, first >> 8) | is_wide_blank(last, last & 0xFFFF)


@kernel("quote_places", "void(i8)")
def quote_places(address: int) -> None:
    """Find the quotes of strings."""
    call = ReadPass(address)
    escaped = 0
    for i in range(call.LENGTH):
        here = byte(call.TEXT + i)
        set_i32(call.CODES + 4 * i, pick((here == QUOTE) & (escaped == 0), 1, 0))
        escaped = pick((here == BACKSLASH) & (escaped == 0), 1, 0)
    clear_vectors()


@kernel("read_string", "void(i8)")
def read_string(address: int) -> None:
    """Read one string."""
    call = ReadPass(address)
    unescape(call)
    call.NBYTES = close_up(call.CODES, call.ALIVE, call.AWAY, call.LENGTH)
    find_blanks(call)
    clear_vectors()
