"""Where the `step` kernel finds things: tables of words. Filled by `engine.forward`; the kernel
changes none of them.

Strides are in bytes between rows, layers or heads.
"""

from __future__ import annotations

from appliance.engine.kernels.layouts.tables import At, Numbers, Table


class Weight(Table):
    """One matrix of weights: groups of 16 rows, packed. Its rows are at ADDRESS, or come tile by
    tile from FETCH."""

    PRODUCT: int  # kernel `product_F`
    ADDRESS: int  # of the packed rows, where FETCH is 0
    GROUPS: int  # of 16 rows
    COLUMNS: int
    QUANTISE: int  # kernel `quantise_A`; 0 when the matrix before it already needed the same activations
    ACTIVATIONS: int  # address of those of all rows
    PRIVATE_ACTIVATIONS: int  # offset in a thread's own memory, for a single row
    BIAS: int  # address of a float32 for each row; 0: none
    FETCH: int  # `i8 fetch(i8 context, i8 tile, i8 thread)`: where the tile is, until that thread's next fetch; or 0
    FETCH_CONTEXT: int
    TILE_GROUPS: int  # groups of a tile; the last tile may have fewer
    IN_ORDER: int  # 1 where a disk brings tiles, each once, in their order
    GATHER: int  # kernel `gather_F`, of the embedding; 0 where its rows are in RESIDUAL before the kernel runs
    GROUP_NBYTES: int  # of 16 packed rows; for a debug build's checks
    TOKEN_NBYTES: int  # of one row of activations; for a debug build's checks


class Layer(Table):
    """One layer of the model."""

    ATTENTION_NORM: int  # address of the norm's weights
    FEED_FORWARD_NORM: int  # address of the norm's weights
    QUERY: Weight
    KEY: Weight
    VALUE: Weight
    OUTPUT: Weight
    GATE: Weight
    UP: Weight
    DOWN: Weight


class Bundle(Table):
    """Rows of one slot at consecutive positions that read the cache together."""

    FIRST_ROW: int  # number in the batch
    COUNT: int  # rows
    SLOT: int
    POSITION: int  # of its first row
    FIRST_PART: int  # states in PARTS before its own, which are ordered by span, key-value head, row and query head


class Unit(Table):
    """One span of one bundle; used where spans are split over threads."""

    BUNDLE: int  # number of the bundle
    SPAN: int  # number of the span


class Range(Table):
    """Memory that a debug build may touch."""

    ADDRESS: int
    NBYTES: int
    ACCESS: int  # a sum of READ, WRITE and CALL


class Step(Table):
    """The argument of the kernel."""

    # The threads and the model.
    TEAM: int  # address of what threads share, see `runtime.team`
    LAYER_COUNT: int
    HEADS: int  # of queries
    KV_HEADS: int  # of keys, and of values
    HEAD_SIZE: int  # floats of a head
    EPSILON: float  # of the RMS norms
    SCALE: float  # of queries
    TURNS: int  # address of cosines and sines, (position, HEAD_SIZE) float32
    LAYERS: At[Layer]
    OUTPUT_NORM: int  # address of the norm's weights
    # The cache, and what depends on its format.
    REMEMBER: int  # kernel `remember_F`
    QUERY_KERNEL: int  # kernel `query_q8`; 0 where queries stay float32
    ATTEND: int  # kernel `attend_F`
    KEYS: int  # address
    VALUES: int  # address
    PAGES: int  # address of each slot's row of int64: how many bytes behind KEYS, and VALUES, its pages begin
    PAGES_STRIDE: int  # from one slot's row to the next one's
    LAYER_STRIDE: int
    HEAD_STRIDE: int
    # Rows that all threads share, float32: an address, and the stride.
    RESIDUAL: int
    RESIDUAL_STRIDE: int
    PROJECTED: int  # queries, keys and values beside each other
    PROJECTED_STRIDE: int
    ATTENDED: int
    ATTENDED_STRIDE: int
    HIDDEN: int  # gate and up beside each other
    HIDDEN_STRIDE: int
    UP_OFFSET: int  # bytes from gate to up within a row of HIDDEN
    LOGITS: int
    LOGITS_STRIDE: int
    # Each thread's own memory: address, bytes of a thread, and offsets in it.
    PRIVATE: int
    PRIVATE_STRIDE: int
    PRIVATE_ROW: int  # a normalised row
    PRIVATE_QUERY: int  # queries of a bundle
    PRIVATE_TOTAL: int  # states of a bundle
    PRIVATE_PART: int  # states of a span of it
    PRIVATE_SCRATCH: int
    # Attention by spans.
    PARTS: int  # address of states
    COUNTERS: int  # spans done of a bundle and key-value head: an int32 in a line of its own, zero between passes
    # A debug build's checks, filled by whoever runs one.
    STATUS: At[Numbers]  # one number: the first fault
    RANGES: At[Range]
    RANGE_COUNT: int
    # The call: an int64 for each row, and tables.
    ROWS: int
    TOKENS: At[Numbers]
    POSITIONS: At[Numbers]
    SLOTS: At[Numbers]
    BUNDLE_COUNT: int
    BUNDLES: At[Bundle]
    UNIT_COUNT: int
    UNITS: At[Unit]
    SPREAD: int  # 1 to split spans over threads
    APART: int  # 1 when no two bundles have the same slot
    LOGIT_COUNT: int  # rows whose logits are asked for
    LOGIT_ROWS: int  # address of their numbers
    # The first and the last matrix.
    EMBEDDING_WEIGHT: Weight
    OUTPUT_WEIGHT: Weight


LAYER_PARTS = tuple(name for name, field in Layer.fields.items() if field.kind is Weight)

COUNTER_NBYTES = 64

# The faults that a debug build finds, by number, and how a range may be accessed (a sum).
FAULTS = ("none", "buffer", "weight", "cache")
READ, WRITE, CALL = 1, 2, 4
