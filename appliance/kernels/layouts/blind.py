"""The tables of the kernels that touch the same pages whatever a text says: see `code/oblivious`.

A *symbol* is a part of a word: 0 to 255 are bytes, 256 + r is what the merge of rank r makes.
Work arrays have an int32 for each byte of the text's class.
"""

from __future__ import annotations

from appliance.kernels.layouts.tables import At, Numbers, Table

SYMBOL_BITS = 20
"""Bits of a symbol. The two numbers of a pair's symbols have its rank above these bits, low half
first; the third one is its least."""

NARROW = 0xFFFF
"""Where all symbols are below this, a pair has two numbers: its symbols, in 16 bits each, then its
rank and its least. This in the place of a rank is none."""

NONE = (1 << 2 * (32 - SYMBOL_BITS)) - 1
"""No rank, and no token."""

UNIT = 32
"""Entries of a unit of a swept table: the first numbers (int32) of all of them, then the second
ones, and so on. No unit lies on two pages."""


def entries_of_page(planes: int) -> int:
    """Entries of so many numbers on a page."""
    return 4096 // (4 * UNIT * planes) * UNIT


NARROW_OF_PAGE, PAIRS_OF_PAGE, SHIFTS_OF_PAGE = entries_of_page(2), entries_of_page(3), entries_of_page(1)

END, LETTER, NUMBER, SPACE, LINE, OTHER = range(6)
"""Classes of characters; END stands for the end of a piece."""

BY_CLASS, BY_SPACES, BY_LINES, WHOLE = range(4)
"""How text is cut: by a pre-tokenizer's classes, before runs of spaces, around runs of newlines, and
nowhere but at special tokens."""

HASH_STEP, HASH_MASK = 1_000_003, 0x7FFFFFFF
"""The hash of a word is that of its bytes before the last, times the first, plus the last byte and
1, in the bits of the second."""

REPLACED, SLOTS = 3, 6
"""Bytes that a byte of an answer becomes at most: U+FFFD, and the longest escape of JSON."""

ARRAYS = ("code", "kind", "lead", "after", "ahead", "begins", "symbol", "alive", "left", "right", "bucket", "hash",
          "shift", "slot", "rank", "least", "flags", "best", "fixed", "reach", "taken", "token")
"""The work arrays, in their order."""


class Mark(Table):
    """A special token."""

    TOKEN: int
    LENGTH: int  # bytes
    GUARDED: int  # 1 where it is not found in barred text
    STRIPS: int  # 1 where white space after it belongs to it
    WORDS: At[Numbers]  # its bytes in words of 8, each followed by a mask of the bytes that count


class TextPass(Table):
    """One call of `encode_text`."""

    TEXT: int  # address of LENGTH + 64 bytes, zeros after the text
    COUNT: int  # bytes of the text
    LENGTH: int  # bytes of its class, a multiple of 64
    BARRED: int  # address of LENGTH bytes: 1 where no guarded mark may lie
    MARKS: At[Mark]  # longest first
    MARK_COUNT: int
    RANGES: int  # address of pairs of int32: first code point, class from there on
    RANGE_COUNT: int
    LINES: int  # 1 where runs of newlines are words
    DIGITS: int  # most digits of a word
    EACH_DIGIT: int  # 1 where each digit is a piece
    SHIFTS: int  # address of pages
    SHIFT_PAGES: int
    BUCKETS: int  # a power of two
    PAIRS: int  # address of pages
    PAIR_PAGES: int
    NARROW: int  # 1 where a pair has two numbers
    TOKENS: int  # address of pages: the token of each symbol
    TOKEN_PAGES: int
    WHOLES: int  # address of pairs of int32: the hash of a word that is a token as a whole, its last place
    WHOLE_COUNT: int
    WHOLE_BYTES: int  # address of pages: the bytes of these words, in int32, a row for each
    WHOLE_PAGES: int
    WHOLE_ROW: int  # entries of a row, a power of two
    WHOLE_SYMBOL: int  # the symbol of the first one
    MARKED: int  # how text with marks for spaces is cut, see the numbers above; BY_CLASS for other text
    LEADS: int  # 1 where a space is put before what follows a special token
    FIRST: int  # 1 where the first byte is the place of such a space
    RUN: int  # spaces that merge to one symbol after all else, which is 254 and their number; 0 for none
    ROUNDS: int  # rounds of a block
    BLOCKS: int  # blocks of rounds that were needed, written by the kernel
    WORK: int  # address of the work arrays
    STRIDE: int  # bytes of a work array


class StopPass(Table):
    """One call of `find_stops`, on the next bytes of a text. Arrays of bits have a word for each 64
    bytes of stop strings."""

    TEXT: int  # address of LENGTH + 4 bytes
    COUNT: int  # bytes that are new
    LENGTH: int  # bytes that are gone through
    STOPS: int  # address of the stop strings' bytes, the longest first, one after the other
    WORDS: int
    STARTS: int  # address of bits: 1 at the first byte of a stop string
    ENDS: int  # at the last one
    STATE: int  # what is begun, which goes on from call to call
    DEPTHS: int  # address of int32: how many bytes of its stop string end at each byte
    FOUND: int  # written: 1 and the place of the last byte of what was found, or 0
    ENDED: int  # written: new bytes up to its end
    HELD: int  # written: bytes at the end that may become a stop string


class ReadPass(Table):
    """One call of `quote_places` for a body, or of `read_string` for the bytes between two quotes.
    Work arrays have an int32 for each byte of the class. 4 more of them may be written before
    `CODES` and `ALIVE`."""

    TEXT: int  # address of LENGTH + 4 bytes
    COUNT: int  # bytes of the string
    LENGTH: int  # bytes of its class
    CODES: int  # address; written: 1 at each quote of a string, or the string's bytes
    ALIVE: int  # address
    AWAY: int  # address
    NBYTES: int  # written: bytes of the string that is meant
    LEADING: int  # written: of these, white space of ASCII at its beginning
    TRAILING: int  # written: and at its end
    SPACED: int  # written: 1 where white space beyond ASCII follows or goes before that
    FAULTY: int  # written: 1 for a fault in its JSON or UTF-8


class WritePass(Table):
    """One call of `complete_text` for the next bytes of an answer, or of `write_string` for text.
    Work arrays have REPLACED or SLOTS int32 for each byte of LENGTH."""

    TEXT: int  # address of LENGTH + 4 bytes, zeros after the text
    COUNT: int  # bytes of the text
    LENGTH: int  # bytes that are gone through
    CODES: int  # address; written: the bytes of what it becomes
    ALIVE: int  # address
    AWAY: int  # address
    NBYTES: int  # written: how many these are
    HELD: int  # written: bytes at the end that begin a character
