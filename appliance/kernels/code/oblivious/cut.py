"""Special tokens, classes of characters and the words of a text, by passes over the whole of its
class.

Words are those of `text/tokenizer/splitting` for two patterns: GPT-2's, and another where runs of
newlines are words (LINES). A pass from the end finds what follows each character; a pass from the
beginning cuts.
"""

from __future__ import annotations

from appliance.kernels.code.oblivious.sweep import from_on, pick
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import get_i32, get_i64, i64, load_i32, set_i32, splat_i32, store_i32
from appliance.kernels.layouts.blind import ARRAYS, END, LETTER, LINE, NUMBER, OTHER, SPACE, Mark, TextPass

(CODE, KIND, LEAD, AFTER, AHEAD, BEGINS, *_, FIXED, REACH, TAKEN, _TOKEN) = range(len(ARRAYS))
LETTERS, NUMBERS, TO_LINE, SPACES, SIGNS, LINES_AFTER, CONTRACTION = range(1, 8)  # what a word goes on with
QUOTE = 39
NO_LIMIT = 1 << 30


@device
def byte(address: int) -> int:
    """The byte at an address that may be read 4 bytes on."""
    return i64(get_i32(address)) & 255


@device
def array(call: TextPass, number: int) -> int:
    """The address of a work array."""
    return call.WORK + call.STRIDE * number


@device
def is_here(text: int, mark: Mark) -> int:
    """1 where the text begins with a special token."""
    words, differences = mark.WORDS, 0
    for index in range((mark.LENGTH + 7) >> 3):
        differences |= (get_i64(text + 8 * index) ^ words[2 * index]) & words[2 * index + 1]
    return 1 if differences == 0 else 0


@device
def is_space(character: int) -> int:
    """1 for white space of ASCII."""
    return 1 if (character == 32) | ((character >= 9) & (character <= 13)) else 0


@device(inline=False)
def reaches(call: TextPass, guarded: int) -> None:
    """How many bytes from each one on are free for a special token."""
    taken, barred, reach = array(call, TAKEN), call.BARRED, array(call, REACH)
    free = 0
    for i in range(call.LENGTH - 1, -1, -1):
        blocked = i64(get_i32(taken + 4 * i)) | (byte(barred + i) & guarded)
        free = pick(blocked != 0, 0, free + 1)
        set_i32(reach + 4 * i, free)


@device(inline=False)
def find_mark(call: TextPass, mark: Mark) -> None:
    """Take all free places of one special token, from the beginning."""
    text, count = call.TEXT, call.COUNT
    taken, reach, fixed = array(call, TAKEN), array(call, REACH), array(call, FIXED)
    length, strips, token, cover, strip = mark.LENGTH, mark.STRIPS, mark.TOKEN + 1, 0, 0
    for i in range(call.LENGTH):
        before, known = i64(get_i32(taken + 4 * i)), i64(get_i32(fixed + 4 * i))
        space = strip & is_space(byte(text + i)) & (1 - before)
        strip = pick(cover == 0, space, strip) & (1 if i < count else 0)
        fits = (cover == 0) & (strip == 0) & (i64(get_i32(reach + 4 * i)) >= length) & (i + length <= count)
        hit = is_here(text + i, mark) & (1 if fits else 0)
        cover = pick(hit == 1, length, cover)
        set_i32(fixed + 4 * i, pick(hit == 1, token, known))
        set_i32(taken + 4 * i, before | strip | (1 if cover > 0 else 0))
        strip = pick(cover > 0, strips, strip)
        cover -= pick(cover > 0, 1, 0)


@device(inline=False)
def find_marks(call: TextPass) -> None:
    """Find all special tokens, the longest first."""
    marks = call.MARKS
    for index in range(call.MARK_COUNT):
        reaches(call, marks[index].GUARDED)
        find_mark(call, marks[index])


@device(inline=False)
def read_points(call: TextPass) -> None:
    """The code point at each byte, and 1 where one begins."""
    text, code, lead, count = call.TEXT, array(call, CODE), array(call, LEAD), call.COUNT
    for i in range(call.LENGTH):
        a, b, c, d = byte(text + i), byte(text + i + 1) & 63, byte(text + i + 2) & 63, byte(text + i + 3) & 63
        two, three = (a & 31) << 6 | b, (a & 15) << 12 | b << 6 | c
        four = (a & 7) << 18 | b << 12 | c << 6 | d
        set_i32(code + 4 * i, pick(a < 128, a, pick(a < 0xE0, two, pick(a < 0xF0, three, four))))
        set_i32(lead + 4 * i, 1 if ((a & 0xC0) != 0x80) & (i < count) else 0)


@device(inline=False)
def classify_points(call: TextPass) -> None:
    """The class of each code point, by a scan of all ranges; END for special tokens."""
    code, kind, taken, ranges, count = array(call, CODE), array(call, KIND), array(call, TAKEN), call.RANGES, call.COUNT
    for i in range(0, 4 * call.LENGTH, 64):
        points, kinds = load_i32(code + i), splat_i32(0)
        for index in range(call.RANGE_COUNT):
            kinds = from_on(points, get_i32(ranges + 8 * index), get_i32(ranges + 8 * index + 4), kinds)
        store_i32(kind + i, kinds)
    for i in range(call.LENGTH):
        here, own = (get_i32(taken + 4 * i) == 0) & (i < count), i64(get_i32(kind + 4 * i))
        set_i32(kind + 4 * i, pick(here, own, END))


@device(inline=False)
def look_ahead(call: TextPass) -> None:
    """Write the next character's class in its piece, and whether a newline follows in white
    space."""
    kind, lead, after, ahead = array(call, KIND), array(call, LEAD), array(call, AFTER), array(call, AHEAD)
    each, following, line = call.EACH_DIGIT, END, 0
    for i in range(call.LENGTH - 1, -1, -1):
        here = i64(get_i32(kind + 4 * i))
        alone = (each == 1) & (here == NUMBER)
        next_kind = pick(alone, END, following)
        lines = 1 if (next_kind == LINE) | ((next_kind == SPACE) & (line == 1)) else 0
        set_i32(after + 4 * i, next_kind)
        set_i32(ahead + 4 * i, lines)
        is_lead = get_i32(lead + 4 * i) == 1
        following = pick(is_lead, pick(alone, END, here), following)
        line = pick(is_lead, lines, line)


@device
def contracted(call: TextPass, i: int) -> int:
    """Letters of a contraction after the quote at a place; 0 where there is none."""
    text, after = call.TEXT + i, array(call, AFTER)
    folds = 32 if call.LINES else 0
    a, b = byte(text + 1) | folds, byte(text + 2) | folds
    one = (a == 115) | (a == 116) | (a == 109) | (a == 100)
    two = ((a == 114) & (b == 101)) | ((a == 118) & (b == 101)) | ((a == 108) & (b == 108))
    letter, letters = get_i32(after + 4 * i) == LETTER, get_i32(after + 4 * (i + 1)) == LETTER
    found = pick(one & letter, 1, pick(two & letter & letters, 2, 0))
    return pick(byte(text) == QUOTE, found, 0)


@device
def goes_on(run: int, left: int, kind: int, following: int) -> bool:
    """Whether a word goes on with a character."""
    spaces = ((kind == SPACE) | (kind == LINE)) & ((following == SPACE) | (following == LINE) | (following == END))
    return (((run == LETTERS) & (kind == LETTER)) | ((run == NUMBERS) & (kind == NUMBER) & (left > 0))
            | (run == TO_LINE) | ((run == SPACES) & spaces) | ((run == SIGNS) & (kind == OTHER))
            | ((run == LINES_AFTER) & (kind == LINE)) | ((run == CONTRACTION) & (left > 0)))


@device
def first_run(lines: int, code: int, kind: int, following: int, ahead: int) -> int:
    """The kind of characters that follow the first one of a word."""
    of_kind = pick(kind == LETTER, LETTERS, pick(kind == NUMBER, NUMBERS, pick(kind == OTHER, SIGNS, SPACES)))
    of_next = pick(following == LETTER, LETTERS, pick(following == NUMBER, NUMBERS, SIGNS))
    joins = (following == LETTER) | (following == NUMBER) | (following == OTHER)
    gpt2 = pick((code == 32) & joins, of_next, of_kind)
    head = ((kind == SPACE) | (kind == OTHER)) & (following == LETTER)
    space = pick(ahead == 1, TO_LINE, pick(kind == LINE, 0, SPACES))
    other = pick((code == 32) & (following == OTHER), SIGNS,
                 pick((kind == SPACE) | (kind == LINE), space, of_kind))
    return pick(lines == 1, pick(head, LETTERS, other), gpt2)


@device(inline=False)
def cut_words(call: TextPass) -> None:
    """Write 1 at each byte where a word begins, and at the first of each special token."""
    code, kind, lead, after, ahead = (array(call, CODE), array(call, KIND), array(call, LEAD), array(call, AFTER),
                                      array(call, AHEAD))
    begins, fixed, lines, digits = array(call, BEGINS), array(call, FIXED), call.LINES, call.DIGITS
    run, left, ended = 0, 0, 1
    for i in range(call.LENGTH):
        is_lead, here, special = get_i32(lead + 4 * i) == 1, i64(get_i32(kind + 4 * i)), i64(get_i32(fixed + 4 * i))
        following, line = i64(get_i32(after + 4 * i)), i64(get_i32(ahead + 4 * i))
        newlines = (lines == 1) & ((run == SIGNS) | (run == LINES_AFTER)) & (here == LINE) & (ended == 0)
        more = newlines | ((ended == 0) & goes_on(run, left, here, following))
        letters, start = contracted(call, i), first_run(lines, i64(get_i32(code + 4 * i)), here, following, line)
        fresh = pick(letters > 0, CONTRACTION, start)
        fresh_left = pick(letters > 0, letters, digits - (1 if here == NUMBER else 0))
        kept = pick(newlines, LINES_AFTER, pick((run == TO_LINE) & (line == 0), 0, run))
        next_run, next_left = pick(more, kept, fresh), pick(more, left - 1, fresh_left)
        set_i32(begins + 4 * i, pick(is_lead, 0 if more else 1, 1 if special > 0 else 0))
        run, left = pick(is_lead, next_run, run), pick(is_lead, next_left, left)
        ended = pick(is_lead, 1 if (following == END) | (here == END) else 0, ended)
