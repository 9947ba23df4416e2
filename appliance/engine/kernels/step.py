"""The forward pass of the llama architecture for a batch of rows, run by all threads in lock-step.

A row is a token at a position of a slot of the cache. All threads run `step` with the same table of words
(`step_layout`) and claim units of work of each phase (`lockstep`); outside of claimed units they write nothing. Which
thread does what never changes a bit of any row. Read `step` downward; the phases stand above it in the order of their
use.
"""

from __future__ import annotations

from appliance.engine.kernels import step_layout
from appliance.engine.kernels.activation import swiglu
from appliance.engine.kernels.jit import device
from appliance.engine.kernels.lockstep import claim, finish
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.step_attention import attend_rows
from appliance.engine.kernels.step_matrix import (
    activations_of,
    multiply,
    prepare,
    prepare_row,
    unit_groups,
    units_grain,
    units_of,
)
from appliance.engine.kernels.vector import align_frame, get_i64, pointer_call

call_gather = pointer_call("void(i8,i8,i8,i8)")

_W, _L, _S = step_layout.WEIGHT, step_layout.LAYER, step_layout.STEP
# numba freezes module constants, not dictionary items.
ADDRESS, GROUPS, COLUMNS = _W["ADDRESS"], _W["GROUPS"], _W["COLUMNS"]
GATHER, WEIGHT_NBYTES = _W["GATHER"], step_layout.WEIGHT_NBYTES
ATTENTION_NORM, FEED_FORWARD_NORM = _L["ATTENTION_NORM"], _L["FEED_FORWARD_NORM"]
QUERY, KEY, VALUE, OUTPUT = _L["QUERY"], _L["KEY"], _L["VALUE"], _L["OUTPUT"]
GATE, UP, DOWN, LAYER_NBYTES = _L["GATE"], _L["UP"], _L["DOWN"], step_layout.LAYER_NBYTES
TEAM, BLOCKS, LAYERS, OUTPUT_NORM = _S["TEAM"], _S["BLOCKS"], _S["LAYERS"], _S["OUTPUT_NORM"]
RESIDUAL, RESIDUAL_STRIDE = _S["RESIDUAL"], _S["RESIDUAL_STRIDE"]
PROJECTED, PROJECTED_STRIDE = _S["PROJECTED"], _S["PROJECTED_STRIDE"]
ATTENDED, ATTENDED_STRIDE = _S["ATTENDED"], _S["ATTENDED_STRIDE"]
HIDDEN, HIDDEN_STRIDE, UP_OFFSET = _S["HIDDEN"], _S["HIDDEN_STRIDE"], _S["UP_OFFSET"]
LOGITS, LOGITS_STRIDE = _S["LOGITS"], _S["LOGITS_STRIDE"]
ROWS, TOKENS_, WANTED, WANTED_ROWS = _S["ROWS"], _S["TOKENS"], _S["WANTED"], _S["WANTED_ROWS"]
EMBEDDING_WEIGHT, OUTPUT_WEIGHT = _S["EMBEDDING_WEIGHT"], _S["OUTPUT_WEIGHT"]


@device(inline=False)
def embed(p: int, thread: int) -> None:
    """The residual rows: the tokens' rows of the embedding matrix."""
    w, rows, team = p + EMBEDDING_WEIGHT, get_i64(p + ROWS), get_i64(p + TEAM)
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            token = get_i64(get_i64(p + TOKENS_) + 8 * row)
            call_gather(get_i64(w + GATHER), get_i64(w + ADDRESS), get_i64(w + COLUMNS), token,
                        get_i64(p + RESIDUAL) + row * get_i64(p + RESIDUAL_STRIDE))
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device(inline=False)
def project(p: int, layer: int, rows: int, thread: int) -> None:
    """Queries, keys and values of the normalised rows, beside each other."""
    team, x, norm = get_i64(p + TEAM), get_i64(p + RESIDUAL), get_i64(layer + ATTENTION_NORM)
    prepare(p, layer + QUERY, 3, x, get_i64(p + RESIDUAL_STRIDE), norm, rows, thread)
    total, w = 0, layer + QUERY
    for _ in range(3):
        total += units_of(w, unit_groups(w))
        w += WEIGHT_NBYTES
    grain = units_grain(layer + QUERY, 3, rows)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(p, layer + QUERY, 3, x, norm, 0, 1, thread)
    while first < last:
        offset, y, w = 0, get_i64(p + PROJECTED), layer + QUERY
        for _ in range(3):
            groups, unit = get_i64(w + GROUPS), unit_groups(w)
            multiply(p, w, activations_of(p, w, rows, thread), rows, y, get_i64(p + PROJECTED_STRIDE), 0,
                     max(first - offset, 0) * unit, min((last - offset) * unit, groups), thread)
            offset += units_of(w, unit)
            y += 64 * groups
            w += WEIGHT_NBYTES
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device(inline=False)
def project_back(p: int, w: int, x: int, stride: int, rows: int, thread: int) -> None:
    """Add weights * rows at `x` to the residual rows."""
    team, unit, groups = get_i64(p + TEAM), unit_groups(w), get_i64(w + GROUPS)
    prepare(p, w, 1, x, stride, 0, rows, thread)
    total, grain = units_of(w, unit), units_grain(w, 1, rows)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(p, w, 1, x, 0, 0, 1, thread)
    while first < last:
        multiply(p, w, activations_of(p, w, rows, thread), rows, get_i64(p + RESIDUAL), get_i64(p + RESIDUAL_STRIDE), 1,
                 first * unit, min(last * unit, groups), thread)
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device(inline=False)
def expand(p: int, layer: int, rows: int, thread: int) -> None:
    """The gated hidden rows of the feed-forward network."""
    team, w, x, norm = get_i64(p + TEAM), layer + GATE, get_i64(p + RESIDUAL), get_i64(layer + FEED_FORWARD_NORM)
    prepare(p, w, 2, x, get_i64(p + RESIDUAL_STRIDE), norm, rows, thread)
    unit, groups = max(unit_groups(w), unit_groups(layer + UP)), get_i64(w + GROUPS)
    total, grain = units_of(w, unit), units_grain(w, 2, rows)
    hidden, stride, up = get_i64(p + HIDDEN), get_i64(p + HIDDEN_STRIDE), get_i64(p + UP_OFFSET)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(p, w, 2, x, norm, 0, 1, thread)
    while first < last:
        low, high = first * unit, min(last * unit, groups)
        multiply(p, w, activations_of(p, w, rows, thread), rows, hidden, stride, 0, low, high, thread)
        multiply(p, layer + UP, activations_of(p, layer + UP, rows, thread), rows, hidden + up, stride, 0, low, high,
                 thread)
        for row in range(rows):
            gate = hidden + row * stride + 64 * low
            swiglu(gate, gate + up, 16 * (high - low))
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def prepare_answer(p: int, index: int, rows: int, thread: int) -> None:
    """Normalise and quantise the residual row of answer `index` of `rows`."""
    row = get_i64(get_i64(p + WANTED_ROWS) + 8 * index)
    prepare_row(p, p + OUTPUT_WEIGHT, 1, get_i64(p + RESIDUAL) + row * get_i64(p + RESIDUAL_STRIDE),
                get_i64(p + OUTPUT_NORM), index, rows, thread)


@device(inline=False)
def answer(p: int, thread: int) -> None:
    """Logits of the rows asked for."""
    rows, w, team = get_i64(p + WANTED), p + OUTPUT_WEIGHT, get_i64(p + TEAM)
    if rows > 1:
        first, last = claim(team, thread, rows, 1)
        while first < last:
            for index in range(first, last):
                prepare_answer(p, index, rows, thread)
            first, last = claim(team, thread, rows, 1)
        finish(team, thread, rows)
    unit, groups = unit_groups(w), get_i64(w + GROUPS)
    total, grain = units_of(w, unit), units_grain(w, 1, rows)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_answer(p, 0, 1, thread)
    while first < last:
        multiply(p, w, activations_of(p, w, rows, thread), rows, get_i64(p + LOGITS), get_i64(p + LOGITS_STRIDE), 0,
                 first * unit, min(last * unit, groups), thread)
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@kernel("step", "void(i8,i8,i8)")
def step(thread: int, threads: int, p: int) -> None:
    """One pass of all rows through the model; `p` is the table STEP of `step_layout`."""
    align_frame()
    rows = get_i64(p + ROWS)
    embed(p, thread)
    for index in range(get_i64(p + BLOCKS)):
        layer = get_i64(p + LAYERS) + LAYER_NBYTES * index
        project(p, layer, rows, thread)
        attend_rows(p, index, rows, thread)
        project_back(p, layer + OUTPUT, get_i64(p + ATTENDED), get_i64(p + ATTENDED_STRIDE), rows, thread)
        expand(p, layer, rows, thread)
        project_back(p, layer + DOWN, get_i64(p + HIDDEN), get_i64(p + HIDDEN_STRIDE), rows, thread)
    if get_i64(p + WANTED) > 0:
        answer(p, thread)
