"""Where the `step` kernel finds things: tables of words. Filled by `engine.forward`; the kernel
changes none of them.

Strides are in bytes between rows, layers or heads.
"""

from __future__ import annotations

from appliance.kernels.layouts.tables import At, Numbers, Room, Table


class Weight(Table):
    """One matrix of weights: groups of 16 rows, packed. Its rows are at ADDRESS, or come tile by
    tile from FETCH. Or a run of such matrices, one for each expert."""

    PRODUCT: int  # kernel `product_F`
    ADDRESS: int  # of the packed rows, where FETCH is 0
    GROUPS: int  # of 16 rows
    COLUMNS: int
    QUANTISE: int  # kernel `quantise_A`; 0 when the matrix before it already needed the same activations
    ACTIVATIONS: int  # address of those of all rows
    PRIVATE_ACTIVATIONS: int  # offset in a thread's own memory, for a single row
    BIAS: int  # address of a float32 for each row, and of a whole group's for the last ones; 0: none
    FETCH: int  # `i8 fetch(i8 context, i8 tile, i8 thread)`: where the tile is, until that thread's next fetch; or 0
    FETCH_CONTEXT: int
    TILE_GROUPS: int  # groups of a tile; the last tile may have fewer
    IN_ORDER: int  # 1 where a disk brings tiles, each once, in their order
    GATHER: int  # kernel `gather_F`, of the embedding; 0 where its rows are in RESIDUAL before the kernel runs
    GROUP_NBYTES: int  # of 16 packed rows; for a debug build's checks
    TOKEN_NBYTES: int  # of one row of activations
    BLOCK_NBYTES: int  # of a block of it; a row of floats is one block
    RUN_NBYTES: int  # from one matrix of a run to the next, at ADDRESS
    RUN_TILES: int  # of one matrix of a run, by FETCH
    VISITED: int  # 1 to ask FETCH for all tiles of a run; where no row needs a tile, for its complement


class Norm(Table):
    """A normalisation of a row."""

    KIND: int  # 0: none; or RMS_NORM, LAYER_NORM
    WEIGHT: int  # address of the weights; 0: ones
    BIAS: int  # address of what a LAYER_NORM adds; 0: nothing


class Attention(Table):
    """The attention of one layer."""

    HEADS: int  # of queries
    KV_HEADS: int  # of keys, and of values
    HEAD_SIZE: int  # floats of a head
    SCALE: float  # of queries
    SCALES: int  # address of a float32 for each position that takes the place of SCALE; 0: none
    TURNS: int  # address of cosines and sines of each position; 0: heads are not turned
    TURNS_STRIDE: int  # bytes of a position in TURNS
    TURNED: int  # elements at the start of a head that are turned
    HALVES: int  # 1: element i is paired with element i + TURNED / 2; 0: neighbours are pairs
    WINDOW: int  # positions that a row sees, its own included; 0: all
    GATED: int  # 1: each head of a query is followed by the gate of its output
    SINKS: int  # address of a float32 for each head of a query: a score that has no value; 0: none
    KEY: int  # bytes from the start of a row of PROJECTED to its keys
    VALUE: int  # bytes from there to its values
    PLACE: int  # bytes from the start of a page's keys to those of this layer's heads
    HEAD_STRIDE: int  # bytes of a head's keys in a page
    VALUE_PLACE: int  # the same of values
    VALUE_STRIDE: int
    QUERY_NORM: Norm  # of each head of a query
    KEY_NORM: Norm
    VALUE_NORM: Norm


class ConvolutionLayer(Table):
    """The short convolution of one layer."""

    COLUMNS: int
    WIDTH: int  # rows that a row sees, its own included
    WEIGHTS: int  # address of a row of COLUMNS float32 for each of those, the oldest one's first
    BIAS: int  # address of a float32 for each column, from which sums start; 0: they start from 0
    GATED: int  # 1: a row has a factor of what is convolved, one of the result, and then what is convolved
    ACTIVATED: int  # 1: silu of the result is taken
    PLACE: int  # bytes from the start of a slot's state to this layer's: WIDTH - 1 rows
    LOG: int  # bytes from the start of a slot's log to this layer's: LOG_ROWS rows as they are convolved


class DeltaLayer(Table):
    """The gated delta rule of one layer."""

    HEADS: int  # of values
    KEY_HEADS: int  # of queries, and of keys
    SIZE: int  # floats of a head
    TOGETHER: int  # heads whose rates lie together, before their paces
    QUERY_SCALE: float
    GATE: int  # bytes from the start of a row of PROJECTED to its gates
    RATE: int  # and to the first of its rates
    PACE: int  # bytes from the rate of a head to its pace
    START: int  # address of a float32 for each head that its pace starts from
    DECAY: int  # address of a float32 for each head
    PLACE: int  # bytes from the start of a slot's state to this layer's matrices
    LOG: int  # bytes from the start of a slot's log to this layer's: of each head, LOG_ROWS rows


class MambaLayer(Table):
    """Mamba-2 of one layer. A row at X has what each head gets, then a key of each group, and then
    a query of each. A row of PROJECTED begins with a gate for each float of the heads."""

    HEADS: int
    HEAD_SIZE: int  # floats of a head
    SIZE: int  # floats of a key
    SHARED: int  # heads that share a key and a query
    KEY: int  # bytes from the start of a row at X to its keys
    QUERY: int  # bytes from a key to its query
    PACE: int  # bytes from the start of a row of PROJECTED to a number for each head
    START: int  # address of a float32 for each head, added to that
    DECAY: int  # address of a float32 for each head, below zero
    SKIP: int  # address of a float32 for each head: what it reads has so much of what it got
    PLACE: int  # bytes from the start of a slot's state to this layer's: of each head, by 16 columns
    LOG: int  # bytes from the start of a slot's log to this layer's: of each head, LOG_ROWS rows


class ExpertLayer(Table):
    """The experts of one layer."""

    COUNT: int
    USED: int  # by each row
    SCORE: int  # SOFTMAX, SIGMOID or CHOSEN
    BIAS: int  # address of a float32 for each expert, added to scores where they are chosen; 0: none
    GROUPS: int  # of experts with neighbouring numbers
    GROUPS_USED: int  # by each row
    LEAST: float  # that weights are divided by, which is else their sum; 0: they are not
    ADDED: float  # to that sum
    SCALE: float  # of weights
    WEIGHTS: int  # address of a float32 for each expert that its weight is multiplied by; 0: none
    SHARED: int  # 1 where sums start from the rows at PRODUCT, which the shared expert gave
    SHARED_SCALE: int  # address of the vector whose product with a row is the gate of those; 0: they have none
    ALL: int  # 1 where each row goes through all experts, so that nobody sees which ones it chose


class Choice(Table):
    """One expert of a row."""

    EXPERT: int
    WEIGHT: Room  # a float32
    PAIR: int  # number of its row among those of EXPANDED and MIXED, which lie by experts


class ExpertRows(Table):
    """The rows of a pass that chose an expert."""

    FIRST: int  # number of the first one's pair
    ROWS: int


class Op(Table):
    """One operation of the program."""

    KIND: int  # its place in KINDS
    NORM: Norm  # of the rows at X
    X: int  # address of the rows that it reads
    X_STRIDE: int
    Y: int  # address of the rows that it writes
    Y_STRIDE: int
    ACCUMULATE: int  # 1 to add products to what is there
    COLUMNS: int  # floats of a row at X, where no matrix tells
    PARTS: int  # that a row is normalised in, each of COLUMNS floats
    SCALE: float  # of what is added to the residual rows
    FINAL: float  # of the residual rows after that
    ACTIVATION: int  # SILU, GELU, SWIGLU_OAI or RELU2
    UP: int  # bytes from gate to up within a row; 0: the network has no gate
    ATTENTION: At[Attention]
    EXPERTS: At[ExpertLayer]
    CONVOLUTION: At[ConvolutionLayer]
    DELTA: At[DeltaLayer]
    MAMBA: At[MambaLayer]
    WEIGHTS: At[Weight]  # matrices, one after the other
    COUNT: int  # how many


class Bundle(Table):
    """Rows of one slot at consecutive positions that read the cache together."""

    FIRST_ROW: int  # number in the batch
    COUNT: int  # rows
    SLOT: int
    POSITION: int  # of its first row
    FIRST_PART: int  # states in PARTS before its own, which are ordered by span, key-value head, row and query head


class SlotRows(Table):
    """All rows of a slot, for layers with states.

    The state stays that of the rows before the guesses. These are left in the slot's log. The next
    pass reads the right ones there, and so brings the state up to its own first row.
    """

    FIRST_ROW: int  # number in the batch
    COUNT: int  # rows
    SLOT: int
    POSITION: int  # of its first row
    LOG: int  # address of the slot's log; 0: there is none
    LOGGED: int  # rows of the log that come before the first row
    GUESSES: int  # rows, the last ones, that go into the log


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
    OP_COUNT: int
    PROGRAM: At[Op]
    EPSILON: float  # of the norms
    EMBEDDING_SCALE: float
    PLACES: int  # address of a row of embeddings for each position, which is added; 0: none
    PLACES_STRIDE: int
    OUTPUT_NORM: Norm
    LOGIT_SCALE: float
    LOGIT_CAP: float  # logits stay within plus and minus this; 0: they are not bent
    # The cache, and what depends on its format.
    REMEMBER: int  # kernel `remember_F`
    QUERY_KERNEL: int  # kernel `query_q8`; 0 where queries stay float32
    ATTEND: int  # kernel `attend_F`
    KEYS: int  # address
    VALUES: int  # address
    PAGES: int  # address of each slot's row of int64: how many bytes behind KEYS, and VALUES, its pages begin
    PAGES_STRIDE: int  # from one slot's row to the next one's
    STATES: int  # address of the first slot's state
    STATES_STRIDE: int  # from one slot's state to the next one's
    # Rows that all threads share, float32: an address, and the stride.
    RESIDUAL: int
    RESIDUAL_STRIDE: int
    PROJECTED: int  # queries, keys and values beside each other
    PROJECTED_STRIDE: int
    CONVOLVED: int  # queries, keys and values of a delta rule beside each other; 0 without one
    CONVOLVED_STRIDE: int
    ATTENDED: int
    ATTENDED_STRIDE: int
    HIDDEN: int  # gate and up beside each other
    HIDDEN_STRIDE: int
    PRODUCT: int  # what is normalised, scaled or summed before it is added to RESIDUAL; 0 where nothing is
    PRODUCT_STRIDE: int
    LOGITS: int
    LOGITS_STRIDE: int
    # Of models with experts; 0 in others.
    ROUTED: int  # logits of experts
    ROUTED_STRIDE: int
    EXPANDED: int  # gate and up of each pair of a row and an expert
    EXPANDED_STRIDE: int
    MIXED: int  # what experts give, of each pair
    MIXED_STRIDE: int
    PAIRS: int  # rows that EXPANDED and MIXED have room for
    CHOICES: At[Choice]  # of each row, in ascending order of experts
    LOADS: At[ExpertRows]  # of each expert
    ACTIVE: At[Numbers]  # how many experts were chosen, and their numbers
    # Each thread's own memory: address, bytes of a thread, and offsets in it.
    PRIVATE: int
    PRIVATE_STRIDE: int
    PRIVATE_ROW: int  # a normalised row
    PRIVATE_QUERY: int  # queries of a bundle
    PRIVATE_TOTAL: int  # states of a bundle
    PRIVATE_PART: int  # states of a span of it
    PRIVATE_HEAD: int  # a head's key and value
    PRIVATE_SCORES: int  # four float32 for each expert
    PRIVATE_CHOICES: int  # of a single row
    PRIVATE_DELTA: int  # rows of a head, shaped, and what its state says about one
    PRIVATE_SCRATCH: int
    PRIVATE_MAMBA: int  # numbers of some rows, and what a head reads for them
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
    RUN_COUNT: int
    RUNS: At[SlotRows]  # of models with states
    SPREAD: int  # 1 to split spans over threads
    APART: int  # 1 when no two bundles have the same slot
    LOGIT_COUNT: int  # rows whose logits are asked for
    LOGIT_ROWS: int  # address of their numbers
    # The first and the last matrix.
    EMBEDDING_WEIGHT: Weight
    OUTPUT_WEIGHT: Weight


KINDS = ("multiply", "attend", "expand", "activate", "add", "normalise",
         "scale", "choose", "expand_chosen", "multiply_chosen", "combine", "convolve", "correct", "scan")
(MULTIPLY, ATTEND, EXPAND, ACTIVATE, ADD, NORMALISE,
 SCALE, CHOOSE, EXPAND_CHOSEN, MULTIPLY_CHOSEN, COMBINE, CONVOLVE, CORRECT, SCAN) = range(len(KINDS))
RMS_NORM, LAYER_NORM = 1, 2
SILU, GELU, SWIGLU_OAI, RELU2 = 0, 1, 2, 3
SCORES = ("softmax", "sigmoid", "chosen")
SOFTMAX, SIGMOID, CHOSEN = range(len(SCORES))

COUNTER_NBYTES = 64
DELTA_ROWS = 16
"""Rows of a head that are shaped before its state goes through them."""
LOG_ROWS = 5
"""Rows of a slot's log. A run of rows with guesses has at most DELTA_ROWS, those of the log included."""

# The faults that a debug build finds, by number, and how a range may be accessed (a sum).
FAULTS = ("none", "buffer", "weight", "cache")
READ, WRITE, CALL = 1, 2, 4


def delta_nbytes(size: int) -> int:
    """Bytes that a thread needs for the rows of a head of a delta rule. Each row, and one more, has
    a query, a key and numbers. The rest is what a state says about a row, a result that nobody
    reads, and 32 columns of a state."""
    return (DELTA_ROWS + 1) * (8 * size + 64) + 256 + 128 + 128 * size


def delta_log_nbytes(size: int) -> int:
    """Bytes of a row in the log of a head of a delta rule: its query, key, numbers and value."""
    return 12 * size + 64


def mamba_nbytes(size: int) -> int:
    """Bytes that a thread needs for rows of a head of Mamba-2: their numbers, what four of them
    read, and 16 columns of a state."""
    return 128 + 256 + 64 * size


def mamba_log_nbytes(head_size: int, size: int) -> int:
    """Bytes of a row in the log of a head of Mamba-2: what it gets, its key, and its numbers."""
    return 4 * (head_size + size) + 128
