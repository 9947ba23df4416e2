"""Where the `step` kernel finds things: tables of 64-bit words, each word with a name. Filled by `engine.forward`.

A word is an int64 (a count, a size in bytes, an address, or 0 for "none") or, where it says so, a float32 in its low
half. The kernel reads the words; it changes none of them.
"""

from __future__ import annotations

from collections import namedtuple
from typing import Any


def words(names: str) -> dict[str, int]:
    """Byte offsets of named words that follow each other."""
    return {name: 8 * index for index, name in enumerate(names.split())}


# One matrix of weights. FETCH: 0 when the packed rows are at ADDRESS; else the address of
# `i8 fetch(i8 context, i8 tile, i8 thread)`, which gives the address of tile n (TILE_GROUPS groups of 16 rows, the last
# tile may have fewer) and keeps it valid until that thread's next fetch.
# IN_ORDER: 1 where a disk brings tiles, each once, in their order.
# GROUP_NBYTES: of 16 packed rows; TOKEN_NBYTES: of one row of activations; both for a debug build's checks.
# QUANTISE: 0 when the matrix before it already needed the same activations.
# GATHER: of the embedding; 0 where its rows are in RESIDUAL before the kernel runs.
WEIGHT = words("PRODUCT ADDRESS GROUPS COLUMNS QUANTISE ACTIVATIONS PRIVATE_ACTIVATIONS BIAS "
                "FETCH FETCH_CONTEXT TILE_GROUPS IN_ORDER GATHER GROUP_NBYTES TOKEN_NBYTES")
WEIGHT_NBYTES = 8 * len(WEIGHT)

# One block of the model: two norm vectors, then seven weights.
LAYER_PARTS = ("QUERY", "KEY", "VALUE", "OUTPUT", "GATE", "UP", "DOWN")
LAYER = {"ATTENTION_NORM": 0, "FEED_FORWARD_NORM": 8} | {
    name: 16 + WEIGHT_NBYTES * index for index, name in enumerate(LAYER_PARTS)}
LAYER_NBYTES = 16 + WEIGHT_NBYTES * len(LAYER_PARTS)

# The argument of the kernel. Strides are in bytes between rows; SLOT/BLOCK/LAYER/HEAD_STRIDE are those of the cache.
_CONSTANT = ("TEAM BLOCKS HEADS KV_HEADS HEAD_SIZE EPSILON SCALE TURNS LAYERS OUTPUT_NORM "
             "REMEMBER QUERY_KERNEL ATTEND KEYS VALUES SLOT_STRIDE BLOCK_STRIDE LAYER_STRIDE HEAD_STRIDE "
             "RESIDUAL RESIDUAL_STRIDE PROJECTED PROJECTED_STRIDE ATTENDED ATTENDED_STRIDE HIDDEN HIDDEN_STRIDE "
             "UP_OFFSET LOGITS LOGITS_STRIDE PRIVATE PRIVATE_STRIDE PRIVATE_ROW PRIVATE_QUERY PRIVATE_TOTAL "
             "PRIVATE_PART PRIVATE_SCRATCH PARTS COUNTERS "
             "STATUS RANGES RANGE_COUNT")
# What changes from call to call. TOKENS, POSITIONS, SLOTS: int64 per row. TILES: tables below. SPREAD: 1 to split
# spans over threads. APART: 1 when no two tiles have the same slot. WANTED_ROWS: rows whose logits are asked for.
_CALL = "ROWS TOKENS POSITIONS SLOTS TILES TILE_TABLE UNITS UNIT_TABLE SPREAD APART WANTED WANTED_ROWS"
# The last line of _CONSTANT is for a debug build's checks, and filled by who runs one: STATUS is the address of a word
# that becomes the number of the first fault, RANGES that of RANGE_COUNT rows (address, bytes, access) of what may be
# touched.
STEP = words(f"{_CONSTANT} {_CALL}")
_AFTER = 8 * len(STEP)
STEP |= {"EMBEDDING_WEIGHT": _AFTER, "OUTPUT_WEIGHT": _AFTER + WEIGHT_NBYTES}
STEP_NBYTES = _AFTER + 2 * WEIGHT_NBYTES

# Rows of one slot at consecutive positions that read the cache together. FIRST_PART: number of states in PARTS before
# those of this tile, which are ordered by span, key-value head, token and query head.
TILE = words("FIRST_ROW COUNT SLOT POSITION FIRST_PART")
TILE_NBYTES = 8 * len(TILE)

# COUNTERS: how many spans of a tile and key-value head are done, an int32 in a line of its own, zero between passes.
COUNTER_NBYTES = 64

# One span of one tile; used when spans are split over threads.
UNIT = words("UNIT_TILE UNIT_SPAN")
UNIT_NBYTES = 8 * len(UNIT)


def frozen(table: dict[str, int]) -> Any:
    """The offsets as attributes, for kernels: numba takes those of a named tuple for constants."""
    return namedtuple("Words", table)(**table)


S, W, L, T, U = (frozen(table) for table in (STEP, WEIGHT, LAYER, TILE, UNIT))

# What a debug build found, by number, and how a range may be accessed (a sum).
FAULTS = ("none", "buffer", "weight", "cache")
RANGE_NBYTES = 24
READ, WRITE, CALL = 1, 2, 4
