"""Symbols of words to tokens: all merges that cannot depend on others at once, round by round.

    count = encode_text(call)

`call`: the address of a TextPass (`layouts.blind`). In a round, each two neighbours in a word are
looked up. The table has the rank of their merge, and the least rank of any merge that could ever
join what they become part of. A pair merges where no merge of a lower rank can reach over its two
ends; of equal ones in a row, every other. The best pair of each word always merges. So the result
is that of one merge after the other.

Rounds come in blocks of ROUNDS, until one ends without a merge. The tokens are in the first words
of the array `token`.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.cut import (
    array,
    byte,
    classify_points,
    cut_words,
    find_marks,
    look_ahead,
    read_points,
)
from appliance.kernels.code.oblivious.sweep import hash_pairs, place_pairs, sweep_numbers, sweep_pairs
from appliance.kernels.code.oblivious.whole import whole_words
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, get_i32, i64, set_i32, splat_i32, store_i32
from appliance.kernels.layouts.blind import ARRAYS, NONE, PAIRS_OF_PAGE, TextPass

(_CODE, _KIND, LEAD, _AFTER, _AHEAD, BEGINS, SYMBOL, ALIVE, LEFT, RIGHT, BUCKET, HASH, SHIFT, SLOT, RANK, LEAST, FLAGS,
 BEST, FIXED, REACH, TAKEN, TOKEN) = range(len(ARRAYS))
FAR = NONE << 32
BEARABLE = 1 << 17  # bytes that blocks of rounds go through, of a text


@device
def first_symbols(call: TextPass) -> None:
    """Every byte is a symbol; of a special token, only its first one."""
    text, count = call.TEXT, call.COUNT
    symbol, alive, taken, fixed = array(call, SYMBOL), array(call, ALIVE), array(call, TAKEN), array(call, FIXED)
    for i in range(call.LENGTH):
        set_i32(symbol + 4 * i, byte(text + i))
        own = (get_i32(taken + 4 * i) == 0) | (get_i32(fixed + 4 * i) > 0)
        set_i32(alive + 4 * i, 1 if own & (i < count) else 0)


@device(inline=False)
def neighbours(call: TextPass) -> None:
    """The pair that begins at each living symbol; -1 where its word ends with it."""
    symbol, alive, begins = array(call, SYMBOL), array(call, ALIVE), array(call, BEGINS)
    left, right, following, border = array(call, LEFT), array(call, RIGHT), -1, 1
    for i in range(call.LENGTH - 1, -1, -1):
        here, lives = i64(get_i32(symbol + 4 * i)), get_i32(alive + 4 * i) == 1
        pairs = lives & (border == 0)
        set_i32(left + 4 * i, here if pairs else -1)
        set_i32(right + 4 * i, following if pairs else -1)
        start = i64(get_i32(begins + 4 * i))
        following, border = (here, start) if lives else (following, border)


@device(inline=False)
def fill_all(to: int, nbytes: int, number: int) -> None:
    """The same number in an array."""
    for i in range(0, nbytes, 64):
        store_i32(to + i, splat_i32(number))


@device(inline=False)
def look_up(call: TextPass) -> None:
    """Rank and least of every pair."""
    size, left, right = 4 * call.LENGTH, array(call, LEFT), array(call, RIGHT)
    bucket, hashes, shift, slot = array(call, BUCKET), array(call, HASH), array(call, SHIFT), array(call, SLOT)
    rank, least, slots = array(call, RANK), array(call, LEAST), PAIRS_OF_PAGE * call.PAIR_PAGES
    for i in range(0, size, 64):
        hash_pairs(left + i, right + i, call.BUCKETS, bucket + i, hashes + i)
    for page in range(call.SHIFT_PAGES):
        for i in range(0, size, 64):
            sweep_numbers(call.SHIFTS, page, bucket + i, shift + i)
    for i in range(0, size, 64):
        place_pairs(hashes + i, shift + i, slots, slot + i)
    fill_all(rank, size, NONE)
    fill_all(least, size, NONE)
    for page in range(call.PAIR_PAGES):
        for i in range(0, size, 64):
            sweep_pairs(call.PAIRS, page, slot + i, left + i, right + i, rank + i, least + i)


@device(inline=False)
def from_the_end(call: TextPass) -> None:
    """Write the best pair of the rest of each word, and whether later pairs can reach over this
    one.

    `flags`: 1 where no lower rank reaches over its right end, 2 where the equal ones in a row
    have no lower rank, 4 where the next one is equal.
    """
    alive, begins, rank, least = array(call, ALIVE), array(call, BEGINS), array(call, RANK), array(call, LEAST)
    flags, best, low = array(call, FLAGS), array(call, BEST), FAR
    next_rank, next_least, next_safe, next_all = NONE, NONE, 1, 1
    for i in range(call.LENGTH - 1, -1, -1):
        lives, own, reach = get_i32(alive + 4 * i) == 1, i64(get_i32(rank + 4 * i)), i64(get_i32(least + 4 * i))
        place = (own << 32 | i) if lives else FAR
        start = get_i32(begins + 4 * i) == 1
        low = place if place < low else low
        set_i32(best + 4 * i, low & 0xFFFFFFFF if low < FAR else -1)
        low = FAR if start else low
        equal = 1 if (own == next_rank) & (own != NONE) else 0
        safe = next_safe if equal else 1 if next_least >= own else 0
        all_equal = (1 if reach == own else 0) & (next_all if equal else 1)
        set_i32(flags + 4 * i, safe | all_equal << 1 | equal << 2)
        next_rank, next_least = (own, reach) if lives else (next_rank, next_least)
        next_safe, next_all = (safe, all_equal) if lives else (next_safe, next_all)


@device(inline=False)
def from_the_start(call: TextPass) -> int:
    """Merge; not 0 where anything did."""
    symbol, alive, begins, rank = array(call, SYMBOL), array(call, ALIVE), array(call, BEGINS), array(call, RANK)
    least, flags, best = array(call, LEAST), array(call, FLAGS), array(call, BEST)
    of_word, gone, merges, last_rank, last_least, row, odd = -1, 0, 0, NONE, NONE, 0, 0
    for i in range(call.LENGTH):
        of_next, start, reach = i64(get_i32(best + 4 * i)), get_i32(begins + 4 * i) == 1, i64(get_i32(least + 4 * i))
        of_word = of_next if start else of_word
        here = i64(get_i32(symbol + 4 * i))
        lives, own, flag = i64(get_i32(alive + 4 * i)), i64(get_i32(rank + 4 * i)), i64(get_i32(flags + 4 * i))
        goes = (own == last_rank) & (own != NONE)
        single = 1 if (flag & 4) == 0 else flag >> 1 & 1
        starts = (1 if (own != NONE) & (last_least > own) else 0) & flag & single
        new_row, new_odd = (row, odd ^ 1) if goes else (starts, 0)
        first = 1 if (of_word == i) & (own != NONE) else 0
        hit = ((new_row & (new_odd ^ 1)) | first) & lives & (gone ^ 1)
        set_i32(symbol + 4 * i, 256 + own if hit else here)
        set_i32(alive + 4 * i, lives & (gone ^ 1))
        gone = hit | (gone & (lives ^ 1))
        merges |= hit
        row, odd = (new_row, new_odd) if lives else (row, odd)
        last_rank, last_least = (own, reach) if lives else (last_rank, last_least)
    return merges


@device(inline=False)
def merge_all(call: TextPass) -> None:
    """Rounds, block by block; BLOCKS is -1 where a word needs more of them than are bearable: each
    goes through the whole text, so longer texts have fewer."""
    more, blocks, most = 1, 0, min(max(BEARABLE // call.LENGTH, 4), 16)
    while (more != 0) & (blocks < most):
        for _ in range(call.ROUNDS):
            neighbours(call)
            look_up(call)
            from_the_end(call)
            more = from_the_start(call)
        blocks += 1
    call.BLOCKS = -1 if more != 0 else blocks


@device(inline=False)
def tokens_of(call: TextPass) -> None:
    """The token of each living symbol. A symbol without one goes."""
    size, symbol, token = 4 * call.LENGTH, array(call, SYMBOL), array(call, TOKEN)
    alive, fixed = array(call, ALIVE), array(call, FIXED)
    for page in range(call.TOKEN_PAGES):
        for i in range(0, size, 64):
            sweep_numbers(call.TOKENS, page, symbol + i, token + i)
    for i in range(call.LENGTH):
        special, own, lives = i64(get_i32(fixed + 4 * i)), i64(get_i32(token + 4 * i)), i64(get_i32(alive + 4 * i))
        own = special - 1 if special > 0 else own
        set_i32(token + 4 * i, own)
        set_i32(alive + 4 * i, lives if own != NONE else 0)


@device(inline=False)
def close_up(call: TextPass) -> int:
    """Bring the tokens of living symbols to the front, in order, by steps of 1, 2, 4 and so on; how
    many they are. Source: M. T. Goodrich, "Data-oblivious external-memory algorithms", 2011."""
    token, alive, away, length, gone = array(call, TOKEN), array(call, ALIVE), array(call, REACH), call.LENGTH, 0
    for i in range(length):
        lives = i64(get_i32(alive + 4 * i))
        set_i32(away + 4 * i, gone if lives else 0)
        gone += 1 - lives
    step = 1
    while step < length:
        for i in range(length - step):
            from_there, stays = i64(get_i32(away + 4 * (i + step))), i64(get_i32(away + 4 * i))
            there, here = i64(get_i32(token + 4 * (i + step))), i64(get_i32(token + 4 * i))
            moves = (from_there & step) != 0
            set_i32(token + 4 * i, there if moves else here)
            set_i32(away + 4 * i, from_there - step if moves else stays)
            set_i32(away + 4 * (i + step), 0 if moves else from_there)
        step *= 2
    return length - gone


@kernel("encode_text", "i8(i8)")
def encode_text(address: int) -> int:
    """Encode one text; how many tokens it has."""
    call = TextPass(address)
    find_marks(call)
    read_points(call)
    classify_points(call)
    look_ahead(call)
    cut_words(call)
    first_symbols(call)
    merge_all(call)
    whole_words(call)
    tokens_of(call)
    count = close_up(call)
    clear_vectors()
    return count
