"""The tables of the kernels that touch the same pages whatever a text says: see `code/oblivious`.

A *symbol* is a part of a word: 0 to 255 are bytes, 256 + r is what the merge of rank r makes.
Work arrays have an int32 for each byte of the text's class.
"""

from __future__ import annotations

from appliance.kernels.layouts.tables import At, Numbers, Table

NONE = 1 << 30
"""No rank, and no token."""

PAIRS_OF_PAGE, SHIFTS_OF_PAGE = 256, 1024
"""Entries of a page: of pairs (four int32: left, right, rank, least), and of int32."""

END, LETTER, NUMBER, SPACE, LINE, OTHER = range(6)
"""Classes of characters; END stands for the end of a piece."""

HASH_STEP, HASH_MASK = 1_000_003, 0x7FFFFFFF
"""The hash of a word is that of its bytes before the last, times the first, plus the last byte and
1, in the bits of the second."""

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
    TOKENS: int  # address of pages: the token of each symbol
    TOKEN_PAGES: int
    WHOLES: int  # address of pairs of int32: the hash of a word that is a token as a whole, its last place
    WHOLE_COUNT: int
    WHOLE_BYTES: int  # address of pages: the bytes of these words, in int32, a row for each
    WHOLE_PAGES: int
    WHOLE_ROW: int  # entries of a row, a power of two
    WHOLE_SYMBOL: int  # the symbol of the first one
    ROUNDS: int  # rounds of a block
    BLOCKS: int  # blocks of rounds that were needed, written by the kernel
    WORK: int  # address of the work arrays
    STRIDE: int  # bytes of a work array
