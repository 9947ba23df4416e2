"""Sizes and offsets that the attention kernels and their callers share. Bytes, if not said otherwise."""

from __future__ import annotations

LANES = 16
BLOCK = 64  # positions that are weighed together
SPAN = 256  # positions that one thread takes on; a multiple of BLOCK
TILE_ROWS = 32  # query rows of a tile, about; changes no bit
MOST_TOKENS = 8  # of a tile; changes no bit

POSITION, SUMS, VALUES = 4, 64, 128  # in the state of a query row
WEIGHTS_NBYTES = 4 * BLOCK  # weights of one row and block
NOTHING = -1e20  # the largest score of no position


def state_nbytes(head_size: int) -> int:
    """Size of the state of a query row."""
    return VALUES + 4 * head_size


def tile_tokens(group: int) -> int:
    """Most tokens of a tile when `group` query heads share a key-value head."""
    return max(1, min(MOST_TOKENS, TILE_ROWS // group))
