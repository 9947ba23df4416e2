"""An answer's bytes to text, and text to a string of JSON, without a jump that depends on what they
say.

    complete_text(call)
    write_string(call)

`call`: the address of a WritePass (`layouts.blind`). Bytes that are no UTF-8 become U+FFFD, one for
each maximal part of a character. Sources: The Unicode Standard, table 3-7 and "U+FFFD Substitution
of Maximal Subparts"; RFC 8259, section 7.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.cut import byte
from appliance.kernels.code.oblivious.merge import close_up
from appliance.kernels.code.oblivious.read import BACKSLASH, LETTER_U, QUOTE, following_of, within
from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, set_i32
from appliance.kernels.layouts.blind import REPLACED, SLOTS, WritePass


@device
def put(call: WritePass, slot: int, code: int, alive: int) -> None:
    """Write one number of a row, and whether it lives."""
    set_i32(call.CODES + 4 * slot, code)
    set_i32(call.ALIVE + 4 * slot, alive)


@device
def continued(at: int, following: int, left: int) -> int:
    """How many of the bytes that have to follow a first byte do, of `left` bytes from it on. Two
    bytes of a surrogate wait at the end, as they do in Python's decoder."""
    lead, second = byte(at), byte(at + 1)
    low = pick(lead == 0xE0, 0xA0, pick(lead == 0xF0, 0x90, 0x80))
    top = pick((lead == 0xED) & (left != 2), 0x9F, pick(lead == 0xF4, 0x8F, 0xBF))
    one = within(second, low, top) & (1 if following > 0 else 0)
    two = one & within(byte(at + 2), 0x80, 0xBF) & (1 if following > 1 else 0)
    return one + two + (two & within(byte(at + 3), 0x80, 0xBF) & (1 if following > 2 else 0))


@device
def letter_of(character: int) -> int:
    """The letter of a character's short escape; 0 for none."""
    found = pick((character == QUOTE) | (character == BACKSLASH), character, 0)
    found = pick(character == 8, 98, found)
    found = pick(character == 12, 102, found)
    found = pick(character == 10, 110, found)
    found = pick(character == 13, 114, found)
    return pick(character == 9, 116, found)


@kernel("complete_text", "void(i8)")
def complete_text(address: int) -> None:
    """The characters that are complete."""
    call = WritePass(address)
    whole_1, whole_2, whole_3, got_1, got_2, got_3, held = 0, 0, 0, 0, 0, 0, 0
    for i in range(call.LENGTH):
        here, inside = byte(call.TEXT + i), 1 if i < call.COUNT else 0
        following = following_of(here)
        got = continued(call.TEXT + i, following, call.COUNT - i)
        whole = 1 if got == following else 0
        covered = (1 if got_1 > 0 else 0) | (1 if got_2 > 1 else 0) | (1 if got_3 > 2 else 0)
        kept = pick(got_1 > 0, whole_1, pick(got_2 > 1, whole_2, pick(got_3 > 2, whole_3, whole)))
        ends = (covered ^ 1) & (1 if following > got else 0) & (1 if i + got + 1 == call.COUNT else 0)
        wrong = inside & (covered ^ 1) & (whole ^ 1) & (ends ^ 1)
        held = pick((inside & ends) == 1, got + 1, held)
        put(call, REPLACED * i, pick(wrong == 1, 0xEF, here), inside & (kept | wrong))
        put(call, REPLACED * i + 1, 0xBF, wrong)
        put(call, REPLACED * i + 2, 0xBD, wrong)
        got_3, got_2, got_1, whole_3, whole_2, whole_1 = got_2, got_1, got, whole_2, whole_1, whole
    call.NBYTES = close_up(call.CODES, call.ALIVE, call.AWAY, REPLACED * call.LENGTH)
    call.HELD = held
    clear_vectors()


@kernel("write_string", "void(i8)")
def write_string(address: int) -> None:
    """The bytes between the quotes of a string."""
    call = WritePass(address)
    for i in range(call.LENGTH):
        here, inside = byte(call.TEXT + i), 1 if i < call.COUNT else 0
        letter, digit = letter_of(here), here & 15
        short = 1 if letter > 0 else 0
        long = (short ^ 1) & (1 if here < 32 else 0)
        put(call, SLOTS * i, pick(short | long == 1, BACKSLASH, here), inside)
        put(call, SLOTS * i + 1, pick(short == 1, letter, LETTER_U), inside & (short | long))
        put(call, SLOTS * i + 2, 48, inside & long)
        put(call, SLOTS * i + 3, 48, inside & long)
        put(call, SLOTS * i + 4, 48 + (here >> 4), inside & long)
        put(call, SLOTS * i + 5, pick(digit < 10, 48 + digit, 87 + digit), inside & long)
    call.NBYTES = close_up(call.CODES, call.ALIVE, call.AWAY, SLOTS * call.LENGTH)
    clear_vectors()
