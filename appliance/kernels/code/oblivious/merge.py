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
from appliance.kernels.code.oblivious.marked import bytes_of, cut_marked, join_spaces
from appliance.kernels.code.oblivious.sweep import (
    hash_pairs,
    match_narrow,
    match_pairs,
    pick,
    place_pairs,
    sweep_narrow,
    sweep_numbers,
    sweep_pairs,
)
from appliance.kernels.code.oblivious.whole import whole_words
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import clear_vectors, get_i32, i64, set_i32
from appliance.kernels.layouts.blind import ARRAYS, BY_CLASS, NARROW_OF_PAGE, NONE, PAIRS_OF_PAGE, TextPass

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
        set_i32(left + 4 * i, pick(pairs, here, -1))
        set_i32(right + 4 * i, pick(pairs, following, -1))
        start = i64(get_i32(begins + 4 * i))
        following, border = pick(lives, here, following), pick(lives, start, border)


@device(inline=False)
def look_up(call: TextPass) -> None:
    """Rank and least of every pair."""
    size, left, right = 4 * call.LENGTH, array(call, LEFT), array(call, RIGHT)
    bucket, hashes, shift, slot = array(call, BUCKET), array(call, HASH), array(call, SHIFT), array(call, SLOT)
    rank, least, flags = array(call, RANK), array(call, LEAST), array(call, FLAGS)
    slots = (NARROW_OF_PAGE if call.NARROW else PAIRS_OF_PAGE) * call.PAIR_PAGES
    for i in range(0, size, 64):
        hash_pairs(left + i, right + i, call.BUCKETS, bucket + i, hashes + i)
    sweep_numbers(call.SHIFTS, call.SHIFT_PAGES, bucket, size, shift)
    for i in range(0, size, 64):
        place_pairs(hashes + i, shift + i, slots, slot + i)
    if call.NARROW:
        sweep_narrow(call.PAIRS, call.PAIR_PAGES, slot, size, rank, least)
        for i in range(0, size, 64):
            match_narrow(left + i, right + i, rank + i, least + i)
    else:
        sweep_pairs(call.PAIRS, call.PAIR_PAGES, slot, size, rank, flags, least)
        for i in range(0, size, 64):
            match_pairs(left + i, right + i, rank + i, flags + i, least + i)


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
        place = pick(lives, own << 32 | i, FAR)
        start = get_i32(begins + 4 * i) == 1
        low = pick(place < low, place, low)
        set_i32(best + 4 * i, pick(low < FAR, low & 0xFFFFFFFF, -1))
        low = pick(start, FAR, low)
        equal = (own == next_rank) & (own != NONE)
        safe = pick(equal, next_safe, 1 if next_least >= own else 0)
        all_equal = (1 if reach == own else 0) & pick(equal, next_all, 1)
        set_i32(flags + 4 * i, safe | all_equal << 1 | (1 if equal else 0) << 2)
        next_rank, next_least = pick(lives, own, next_rank), pick(lives, reach, next_least)
        next_safe, next_all = pick(lives, safe, next_safe), pick(lives, all_equal, next_all)


@device(inline=False)
def from_the_start(call: TextPass) -> int:
    """Merge; not 0 where anything did."""
    symbol, alive, begins, rank = array(call, SYMBOL), array(call, ALIVE), array(call, BEGINS), array(call, RANK)
    least, flags, best = array(call, LEAST), array(call, FLAGS), array(call, BEST)
    of_word, gone, merges, last_rank, last_least, row, odd = -1, 0, 0, NONE, NONE, 0, 0
    for i in range(call.LENGTH):
        of_next, start, reach = i64(get_i32(best + 4 * i)), get_i32(begins + 4 * i) == 1, i64(get_i32(least + 4 * i))
        of_word = pick(start, of_next, of_word)
        here = i64(get_i32(symbol + 4 * i))
        lives, own, flag = i64(get_i32(alive + 4 * i)), i64(get_i32(rank + 4 * i)), i64(get_i32(flags + 4 * i))
        goes = (own == last_rank) & (own != NONE)
        single = ((flag >> 2 & 1) ^ 1) | (flag >> 1 & 1)
        starts = (1 if (own != NONE) & (last_least > own) else 0) & flag & single
        new_row, new_odd = pick(goes, row, starts), pick(goes, odd ^ 1, 0)
        first = 1 if (of_word == i) & (own != NONE) else 0
        hit = ((new_row & (new_odd ^ 1)) | first) & lives & (gone ^ 1)
        set_i32(symbol + 4 * i, pick(hit == 1, 256 + own, here))
        set_i32(alive + 4 * i, lives & (gone ^ 1))
        gone = hit | (gone & (lives ^ 1))
        merges |= hit
        living = lives == 1
        row, odd = pick(living, new_row, row), pick(living, new_odd, odd)
        last_rank, last_least = pick(living, own, last_rank), pick(living, reach, last_least)
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
    sweep_numbers(call.TOKENS, call.TOKEN_PAGES, symbol, size, token)
    if call.MARKED != BY_CLASS:
        bytes_of(call, symbol, token, alive)
        sweep_numbers(call.TOKENS, call.TOKEN_PAGES, symbol, size, token)
    for i in range(call.LENGTH):
        special, own, lives = i64(get_i32(fixed + 4 * i)), i64(get_i32(token + 4 * i)), i64(get_i32(alive + 4 * i))
        own = pick(special > 0, special - 1, own)
        set_i32(token + 4 * i, own)
        set_i32(alive + 4 * i, lives & (1 if own != NONE else 0))


@device(inline=False)
def close_up(row: int, alive: int, away: int, length: int) -> int:
    """Bring the living numbers of a row to its front, in order, by steps of 1, 2, 4 and so on; how
    many they are. Source: M. T. Goodrich, "Data-oblivious external-memory algorithms", 2011."""
    gone = 0
    for i in range(length):
        lives = i64(get_i32(alive + 4 * i))
        set_i32(away + 4 * i, gone & -lives)
        gone += 1 - lives
    step = 1
    while step < length:
        for i in range(length - step):
            from_there, stays = i64(get_i32(away + 4 * (i + step))), i64(get_i32(away + 4 * i))
            there, here = i64(get_i32(row + 4 * (i + step))), i64(get_i32(row + 4 * i))
            moves = (from_there & step) != 0
            set_i32(row + 4 * i, pick(moves, there, here))
            set_i32(away + 4 * i, pick(moves, from_there - step, stays))
            set_i32(away + 4 * (i + step), pick(moves, 0, from_there))
        step *= 2
    return length - gone


@kernel("encode_text", "i8(i8)")
def encode_text(address: int) -> int:
    """Encode one text; how many tokens it has."""
    call = TextPass(address)
    find_marks(call)
    if call.MARKED == BY_CLASS:
        read_points(call)
        classify_points(call)
        look_ahead(call)
        cut_words(call)
    else:
        cut_marked(call)
    first_symbols(call)
    merge_all(call)
    if call.RUN > 0:
        join_spaces(call, array(call, SYMBOL), array(call, ALIVE))
    whole_words(call)
    tokens_of(call)
    count = close_up(array(call, TOKEN), array(call, ALIVE), array(call, REACH), call.LENGTH)
    clear_vectors()
    return count
