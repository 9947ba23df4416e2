"""The forward pass of the llama architecture for a batch of rows, run by all threads in lock-step.

A row is a token at a position of a slot of the cache. All threads run `step` with the same table of words
(`step_layout`); each takes its share of every phase, and barriers separate phases. Which thread does what never
changes a bit of any row. Read `step` downward; the phases stand above it in the order of their use.
"""

from __future__ import annotations

from appliance.engine.kernels import step_layout
from appliance.engine.kernels.activation import add_vector, swiglu
from appliance.engine.kernels.jit import device
from appliance.engine.kernels.lockstep import barrier
from appliance.engine.kernels.norm import rms_norm
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.step_attention import attend_rows, private
from appliance.engine.kernels.vector import (
    align_frame,
    get_f32,
    get_i64,
    pointer_call,
)

call_product = pointer_call("void(i8,i8,i8,i8,i8,i8,i4,i8,i8)")
call_quantise = pointer_call("void(i8,i8,i8,i8,i8,i8,i8)")
call_gather = pointer_call("void(i8,i8,i8,i8)")
call_fetch = pointer_call("i8(i8,i8,i8)")

_W, _L, _S = step_layout.WEIGHT, step_layout.LAYER, step_layout.STEP
# numba freezes module constants, not dictionary items.
PRODUCT, ADDRESS, GROUPS, COLUMNS = _W["PRODUCT"], _W["ADDRESS"], _W["GROUPS"], _W["COLUMNS"]
QUANTISE, ACTIVATIONS, PRIVATE_ACTIVATIONS = _W["QUANTISE"], _W["ACTIVATIONS"], _W["PRIVATE_ACTIVATIONS"]
BIAS, FETCH, FETCH_CONTEXT, TILE_GROUPS = _W["BIAS"], _W["FETCH"], _W["FETCH_CONTEXT"], _W["TILE_GROUPS"]
GATHER, WEIGHT_NBYTES = _W["GATHER"], step_layout.WEIGHT_NBYTES
ATTENTION_NORM, FEED_FORWARD_NORM = _L["ATTENTION_NORM"], _L["FEED_FORWARD_NORM"]
QUERY, KEY, VALUE, OUTPUT = _L["QUERY"], _L["KEY"], _L["VALUE"], _L["OUTPUT"]
GATE, UP, DOWN, LAYER_NBYTES = _L["GATE"], _L["UP"], _L["DOWN"], step_layout.LAYER_NBYTES
TEAM, BLOCKS, EPSILON, LAYERS, OUTPUT_NORM = (
    _S["TEAM"], _S["BLOCKS"], _S["EPSILON"], _S["LAYERS"], _S["OUTPUT_NORM"])
RESIDUAL, RESIDUAL_STRIDE = _S["RESIDUAL"], _S["RESIDUAL_STRIDE"]
PROJECTED, PROJECTED_STRIDE = _S["PROJECTED"], _S["PROJECTED_STRIDE"]
ATTENDED, ATTENDED_STRIDE = _S["ATTENDED"], _S["ATTENDED_STRIDE"]
HIDDEN, HIDDEN_STRIDE, UP_OFFSET = _S["HIDDEN"], _S["HIDDEN_STRIDE"], _S["UP_OFFSET"]
LOGITS, LOGITS_STRIDE, PRIVATE_ROW = _S["LOGITS"], _S["LOGITS_STRIDE"], _S["PRIVATE_ROW"]
ROWS, TOKENS_, WANTED, WANTED_ROWS = _S["ROWS"], _S["TOKENS"], _S["WANTED"], _S["WANTED_ROWS"]
EMBEDDING_WEIGHT, OUTPUT_WEIGHT = _S["EMBEDDING_WEIGHT"], _S["OUTPUT_WEIGHT"]


@device(inline=False)
def multiply(w: int, activations: int, rows: int, y: int, stride: int, accumulate: int, first: int,
             last: int, thread: int) -> None:
    """y = (accumulate: y +) weights * activations, for groups first..last-1 of 16 rows of the matrix `w`."""
    if first >= last:
        return
    product, columns, fetch = get_i64(w + PRODUCT), get_i64(w + COLUMNS), get_i64(w + FETCH)
    if fetch == 0:
        call_product(product, get_i64(w + ADDRESS), columns, activations, rows, y, stride, accumulate, first, last)
    else:
        size = get_i64(w + TILE_GROUPS)
        for tile in range(first // size, (last + size - 1) // size):
            start = tile * size
            packed = call_fetch(fetch, get_i64(w + FETCH_CONTEXT), tile, thread)
            call_product(product, packed, columns, activations, rows, y + 64 * start, stride, accumulate,
                         max(first, start) - start, min(last, start + size) - start)
    bias = get_i64(w + BIAS)
    if bias != 0:
        for row in range(rows):
            add_vector(y + row * stride + 64 * first, bias + 64 * first, 16 * (last - first))


@device
def share(w: int, offset: int, total: int, thread: int, threads: int) -> tuple[int, int]:
    """Groups (first, last) of matrix `w` for this thread, where matrices of `total` groups are one after another."""
    groups = get_i64(w + GROUPS)
    first = total * thread // threads - offset
    last = total * (thread + 1) // threads - offset
    return min(max(first, 0), groups), min(max(last, 0), groups)


@device
def quantise_row(w: int, count: int, x: int, row: int, rows: int, own: int) -> None:
    """Quantise row `row` of `rows`, at `x`, once for each kind of activation that `count` matrices from `w` need."""
    for _ in range(count):
        quantise = get_i64(w + QUANTISE)
        if quantise != 0:
            to = own + get_i64(w + PRIVATE_ACTIVATIONS) if rows == 1 else get_i64(w + ACTIVATIONS)
            call_quantise(quantise, x, 0, get_i64(w + COLUMNS), to, row, row + 1, rows)
        w += WEIGHT_NBYTES


@device(inline=False)
def prepare(p: int, w: int, count: int, x: int, stride: int, norm: int, rows: int, thread: int,
            threads: int) -> None:
    """Normalise (`norm` != 0) and quantise `rows` rows for the matrices from `w` on.

    A single row is done by every thread for itself, which costs less than a barrier.
    """
    own = private(p, thread)
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    if rows == 1:
        first, last = 0, 1
    columns = get_i64(w + COLUMNS)
    for row in range(first, last):
        source = x + row * stride
        if norm != 0:
            rms_norm(source, norm, own + get_i64(p + PRIVATE_ROW), columns, get_f32(p + EPSILON))
            source = own + get_i64(p + PRIVATE_ROW)
        quantise_row(w, count, source, row, rows, own)
    if rows > 1:
        barrier(get_i64(p + TEAM), threads)


@device
def activations_of(p: int, w: int, rows: int, thread: int) -> int:
    """Where `prepare` put the activations of matrix `w`."""
    return private(p, thread) + get_i64(w + PRIVATE_ACTIVATIONS) if rows == 1 else get_i64(w + ACTIVATIONS)


@device(inline=False)
def embed(p: int, thread: int, threads: int) -> None:
    """The residual rows: the tokens' rows of the embedding matrix."""
    w, rows = p + EMBEDDING_WEIGHT, get_i64(p + ROWS)
    for row in range(rows * thread // threads, rows * (thread + 1) // threads):
        token = get_i64(get_i64(p + TOKENS_) + 8 * row)
        call_gather(get_i64(w + GATHER), get_i64(w + ADDRESS), get_i64(w + COLUMNS), token,
                    get_i64(p + RESIDUAL) + row * get_i64(p + RESIDUAL_STRIDE))


@device(inline=False)
def project(p: int, layer: int, rows: int, thread: int, threads: int) -> None:
    """Queries, keys and values of the normalised rows, beside each other."""
    prepare(p, layer + QUERY, 3, get_i64(p + RESIDUAL), get_i64(p + RESIDUAL_STRIDE),
            get_i64(layer + ATTENTION_NORM), rows, thread, threads)
    total = get_i64(layer + QUERY + GROUPS) + get_i64(layer + KEY + GROUPS) + get_i64(layer + VALUE + GROUPS)
    offset, w = 0, layer + QUERY
    for _ in range(3):
        first, last = share(w, offset, total, thread, threads)
        multiply(w, activations_of(p, w, rows, thread), rows, get_i64(p + PROJECTED) + 64 * offset,
                 get_i64(p + PROJECTED_STRIDE), 0, first, last, thread)
        offset += get_i64(w + GROUPS)
        w += WEIGHT_NBYTES


@device(inline=False)
def project_back(p: int, w: int, x: int, stride: int, rows: int, thread: int, threads: int) -> None:
    """Add weights * rows at `x` to the residual rows."""
    prepare(p, w, 1, x, stride, 0, rows, thread, threads)
    groups = get_i64(w + GROUPS)
    multiply(w, activations_of(p, w, rows, thread), rows, get_i64(p + RESIDUAL), get_i64(p + RESIDUAL_STRIDE), 1,
             groups * thread // threads, groups * (thread + 1) // threads, thread)
    barrier(get_i64(p + TEAM), threads)


@device(inline=False)
def expand(p: int, layer: int, rows: int, thread: int, threads: int) -> None:
    """The gated hidden rows of the feed-forward network."""
    w = layer + GATE
    prepare(p, w, 2, get_i64(p + RESIDUAL), get_i64(p + RESIDUAL_STRIDE), get_i64(layer + FEED_FORWARD_NORM), rows,
            thread, threads)
    groups = get_i64(w + GROUPS)
    first, last = groups * thread // threads, groups * (thread + 1) // threads
    hidden, stride, up = get_i64(p + HIDDEN), get_i64(p + HIDDEN_STRIDE), get_i64(p + UP_OFFSET)
    multiply(w, activations_of(p, w, rows, thread), rows, hidden, stride, 0, first, last, thread)
    w = layer + UP
    multiply(w, activations_of(p, w, rows, thread), rows, hidden + up, stride, 0, first, last, thread)
    for row in range(rows):
        gate = hidden + row * stride + 64 * first
        swiglu(gate, gate + up, 16 * (last - first))
    barrier(get_i64(p + TEAM), threads)


@device(inline=False)
def answer(p: int, thread: int, threads: int) -> None:
    """Logits of the rows asked for."""
    rows, w, team = get_i64(p + WANTED), p + OUTPUT_WEIGHT, get_i64(p + TEAM)
    own = private(p, thread)
    scratch = own + get_i64(p + PRIVATE_ROW)
    first, last = rows * thread // threads, rows * (thread + 1) // threads
    if rows == 1:
        first, last = 0, 1
    for index in range(first, last):
        row = get_i64(get_i64(p + WANTED_ROWS) + 8 * index)
        rms_norm(get_i64(p + RESIDUAL) + row * get_i64(p + RESIDUAL_STRIDE), get_i64(p + OUTPUT_NORM), scratch,
                 get_i64(w + COLUMNS), get_f32(p + EPSILON))
        quantise_row(w, 1, scratch, index, rows, own)
    if rows > 1:
        barrier(team, threads)
    groups = get_i64(w + GROUPS)
    multiply(w, activations_of(p, w, rows, thread), rows, get_i64(p + LOGITS), get_i64(p + LOGITS_STRIDE), 0,
             groups * thread // threads, groups * (thread + 1) // threads, thread)


@kernel("step", "void(i8,i8,i8)")
def step(thread: int, threads: int, p: int) -> None:
    """One pass of all rows through the model; `p` is the table STEP of `step_layout`."""
    align_frame()
    rows = get_i64(p + ROWS)
    team = get_i64(p + TEAM)
    embed(p, thread, threads)
    barrier(team, threads)
    for index in range(get_i64(p + BLOCKS)):
        layer = get_i64(p + LAYERS) + LAYER_NBYTES * index
        project(p, layer, rows, thread, threads)
        barrier(team, threads)
        attend_rows(p, index, rows, thread, threads)
        project_back(p, layer + OUTPUT, get_i64(p + ATTENDED), get_i64(p + ATTENDED_STRIDE), rows, thread, threads)
        expand(p, layer, rows, thread, threads)
        project_back(p, layer + DOWN, get_i64(p + HIDDEN), get_i64(p + HIDDEN_STRIDE), rows, thread, threads)
    if get_i64(p + WANTED) > 0:
        answer(p, thread, threads)
