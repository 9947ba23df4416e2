"""Sizes and offsets that the attention kernels and their callers share. Bytes, if not said
otherwise."""

from __future__ import annotations

LANES = 16
PAGE = 64  # positions that are weighed together; the specification of the arithmetic calls them a block
SPAN = 256  # positions that one thread takes on; a multiple of PAGE
BUNDLE_ROWS = 32  # query rows of a bundle, about; changes no bit
MOST_TOKENS = 8  # of a bundle; changes no bit

POSITION, FIRST, SUMS, VALUES = 4, 8, 64, 128  # in the state of a query row
WEIGHTS_NBYTES = 4 * PAGE  # weights of one row and page
SCRATCH_NBYTES = 12 * WEIGHTS_NBYTES  # weights of four rows, and the same times the scales of two groups of elements
NOTHING = -1e20  # the largest score of no position

# How keys and values are kept. In f16 they are binary16. Otherwise, elements of a head are in
# groups of 32 that share a binary16 scale, with QUANTS bytes of quants each: those of keys, and
# those of values. The last group may be half empty.
GROUP = 32
QUANTS = {"f16": (0, 0), "q8": (32, 32), "q4": (16, 16), "q8q4": (32, 16)}
CACHE_FORMATS = tuple(QUANTS)
SCALES_NBYTES = 2 * PAGE  # scales of one group of elements and page of positions
QUERY_SCALE, QUERY_SUM, QUERY_NBYTES = 32, 36, 64  # in a group of a query with 8 bits


def groups(head_size: int) -> int:
    """Groups of elements of a head."""
    return -(-head_size // GROUP)


def head_nbytes(cache_format: str, head_size: int) -> tuple[int, int]:
    """Sizes of a head's keys, and of its values, of one page of positions."""
    keys, values = (groups(head_size) * (SCALES_NBYTES + PAGE * quants) if quants else 2 * PAGE * head_size
                    for quants in QUANTS[cache_format])
    return keys, values


def state_nbytes(head_size: int) -> int:
    """Size of the state of a query row."""
    return VALUES + 4 * head_size


def bundle_tokens(group: int) -> int:
    """Most tokens of a bundle when `group` query heads share a key-value head."""
    return max(1, min(MOST_TOKENS, BUNDLE_ROWS // group))
