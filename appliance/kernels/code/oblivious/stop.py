"""Stop strings as an automaton: each byte of a text is compared with all bytes of all of them.

    find_stops(call)

`call`: the address of a StopPass (`layouts.blind`). A bit of its state is 1 where the text so far
ends with the beginning of a stop string up to that byte (Shift-And). Source: R. Baeza-Yates, G. H.
Gonnet, "A new approach to text searching", 1992.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.cut import byte
from appliance.kernels.code.oblivious.sweep import pick
from appliance.kernels.compiler.emit import I8, I64, Code, Val
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, get_i32, get_i64, i64, operation, set_i64
from appliance.kernels.layouts.blind import StopPass

BITS = 64


@operation(i64, i64, i64)
def equal_bytes(code: Code, address: Val, character: Val) -> Val:
    """A bit for each of 64 bytes: 1 where it is this one."""
    same = code.load(address, I8, BITS).compare("==", code.splat(character.convert("trunc", I8), BITS))
    return Val(code, code.b.bitcast(same.ir, I64))


@operation(i64, i64)
def lowest(code: Code, bits: Val) -> Val:
    """The place of the lowest bit."""
    return Val(code, code.b.cttz(bits.ir, code.constant(code.b.icmp_signed("==", bits.ir, bits.ir).type, 0).ir))


@operation(i64, i64, i64)
def bit_of(code: Code, bits: Val, place: Val) -> Val:
    """The bit at a place, which is 0 or more and below 64."""
    return (bits >> place) & 1


@device
def go_on(call: StopPass, character: int, live: bool) -> int:
    """Take one byte; the place of the first bit at an end, from 1 on, or 0."""
    carry, hit = 0, 0
    for word in range(call.WORDS):
        state = call.STATE + 8 * word
        before = get_i64(state)
        begun = before << 1 | carry | get_i64(call.STARTS + 8 * word)
        now = begun & equal_bytes(call.STOPS + BITS * word, character)
        carry = bit_of(before, BITS - 1)
        set_i64(state, pick(live, now, before))
        ends = now & get_i64(call.ENDS + 8 * word)
        hit = pick((hit == 0) & (ends != 0), BITS * word + lowest(ends) + 1, hit)
    return hit


@device(inline=False)
def longest_begun(call: StopPass) -> int:
    """Bytes at the end of the text that are the longest beginning of a stop string."""
    longest = 0
    for word in range(call.WORDS):
        bits = get_i64(call.STATE + 8 * word)
        for place in range(BITS):
            depth = i64(get_i32(call.DEPTHS + 4 * (BITS * word + place))) & -bit_of(bits, place)
            longest = pick(depth > longest, depth, longest)
    return longest


@kernel("find_stops", "void(i8)")
def find_stops(address: int) -> None:
    """Go on with a text."""
    call = StopPass(address)
    found, ended = 0, 0
    for i in range(call.LENGTH):
        live = (found == 0) & (i < call.COUNT)
        hit = go_on(call, byte(call.TEXT + i), live)
        ended = pick(live & (hit != 0), i + 1, ended)
        found = pick(live, hit, found)
    call.FOUND = found
    call.ENDED = ended
    call.HELD = longest_begun(call)
    clear_vectors()
