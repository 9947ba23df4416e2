"""The forward pass of the llama architecture for a batch of rows, run by all threads in lock-step.

A row is a token at a position of a slot of the cache. All threads run `step` with the same table of words
(`step_layout`) and claim units of work of each phase (`lockstep`); outside of claimed units they write nothing. Which
thread does what never changes a bit of any row. Read `step` downward; the phases stand above it in the order of their
use.
"""

from __future__ import annotations

from appliance.engine.kernels.code.rows.activation import swiglu
from appliance.engine.kernels.code.step.attention import attend_rows
from appliance.engine.kernels.code.step.lockstep import claim, finish
from appliance.engine.kernels.code.step.matrix import (
    activations_of,
    multiply,
    prepare,
    prepare_row,
    row_of,
    unit_groups,
    units_grain,
    units_of,
    whole_tiles,
)
from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import align_frame, clear_vectors, get_i64, pointer_call
from appliance.engine.kernels.layouts.step import LAYER_NBYTES, WEIGHT_NBYTES, L, S, W
from appliance.engine.kernels.runtime.registry import kernel

call_gather = pointer_call("void(i8,i8,i8,i8)")


@device(inline=False)
def embed(p: int, thread: int) -> None:
    """The residual rows: the tokens' rows of the embedding matrix."""
    w, rows, team = p + S.EMBEDDING_WEIGHT, get_i64(p + S.ROWS), get_i64(p + S.TEAM)
    if get_i64(w + W.GATHER) == 0:
        return
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            token = get_i64(get_i64(p + S.TOKENS) + 8 * row)
            call_gather(get_i64(w + W.GATHER), get_i64(w + W.ADDRESS), get_i64(w + W.COLUMNS), token,
                        get_i64(p + S.RESIDUAL) + row * get_i64(p + S.RESIDUAL_STRIDE))
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device(inline=False)
def multiply_rows(p: int, w: int, count: int, x: int, stride: int, chosen: int, norm: int, rows: int, y: int,
                  y_stride: int, accumulate: int, thread: int) -> None:
    """y = (accumulate: y +) weights * rows at `x` (see `row_of`), normalised where `norm` is not 0; of `count` matrices
    from `w` on, whose results are beside each other."""
    team, whole = get_i64(p + S.TEAM), whole_tiles(w, count, rows)
    prepare(p, w, count, x, stride, chosen, norm, rows, thread)
    total, grain = 0, units_grain(w, count, rows, whole)
    for index in range(count):
        each = w + WEIGHT_NBYTES * index
        total += units_of(each, unit_groups(each, whole))
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(p, w, count, row_of(x, stride, chosen, 0), norm, 0, 1, thread)
    while first < last:
        offset, out = 0, y
        for index in range(count):
            each = w + WEIGHT_NBYTES * index
            groups, unit = get_i64(each + W.GROUPS), unit_groups(each, whole)
            multiply(p, each, activations_of(p, each, rows, thread), rows, out, y_stride, accumulate,
                     max(first - offset, 0) * unit, min((last - offset) * unit, groups), thread)
            offset += units_of(each, unit)
            out += 64 * groups
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def project(p: int, layer: int, rows: int, thread: int) -> None:
    """Queries, keys and values of the normalised rows, beside each other."""
    multiply_rows(p, layer + L.QUERY, 3, get_i64(p + S.RESIDUAL), get_i64(p + S.RESIDUAL_STRIDE), 0,
                  get_i64(layer + L.ATTENTION_NORM), rows, get_i64(p + S.PROJECTED), get_i64(p + S.PROJECTED_STRIDE), 0,
                  thread)


@device
def project_back(p: int, w: int, x: int, stride: int, rows: int, thread: int) -> None:
    """Add weights * rows at `x` to the residual rows."""
    multiply_rows(p, w, 1, x, stride, 0, 0, rows, get_i64(p + S.RESIDUAL), get_i64(p + S.RESIDUAL_STRIDE), 1, thread)


@device(inline=False)
def expand(p: int, layer: int, rows: int, thread: int) -> None:
    """The gated hidden rows of the feed-forward network."""
    team, w, second = get_i64(p + S.TEAM), layer + L.GATE, layer + L.UP
    x, norm = get_i64(p + S.RESIDUAL), get_i64(layer + L.FEED_FORWARD_NORM)
    prepare(p, w, 2, x, get_i64(p + S.RESIDUAL_STRIDE), 0, norm, rows, thread)
    whole, groups = whole_tiles(w, 2, rows), get_i64(w + W.GROUPS)
    unit, grain = max(unit_groups(w, whole), unit_groups(second, whole)), units_grain(w, 2, rows, whole)
    total = units_of(w, unit)
    hidden, stride, up = get_i64(p + S.HIDDEN), get_i64(p + S.HIDDEN_STRIDE), get_i64(p + S.UP_OFFSET)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(p, w, 2, x, norm, 0, 1, thread)
    while first < last:
        low, high = first * unit, min(last * unit, groups)
        multiply(p, w, activations_of(p, w, rows, thread), rows, hidden, stride, 0, low, high, thread)
        multiply(p, second, activations_of(p, second, rows, thread), rows, hidden + up, stride, 0, low, high, thread)
        for row in range(rows):
            gate = hidden + row * stride + 64 * low
            swiglu(gate, gate + up, 16 * (high - low))
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def answer(p: int, thread: int) -> None:
    """Logits of the rows asked for."""
    multiply_rows(p, p + S.OUTPUT_WEIGHT, 1, get_i64(p + S.RESIDUAL), get_i64(p + S.RESIDUAL_STRIDE),
                  get_i64(p + S.WANTED_ROWS), get_i64(p + S.OUTPUT_NORM), get_i64(p + S.WANTED), get_i64(p + S.LOGITS),
                  get_i64(p + S.LOGITS_STRIDE), 0, thread)


@kernel("step", "void(i8,i8,i8)")
def step(thread: int, threads: int, p: int) -> None:
    """One pass of all rows through the model; `p` is the table STEP of `step_layout`."""
    align_frame()
    rows = get_i64(p + S.ROWS)
    embed(p, thread)
    for index in range(get_i64(p + S.BLOCKS)):
        layer = get_i64(p + S.LAYERS) + LAYER_NBYTES * index
        project(p, layer, rows, thread)
        attend_rows(p, index, rows, thread)
        project_back(p, layer + L.OUTPUT, get_i64(p + S.ATTENDED), get_i64(p + S.ATTENDED_STRIDE), rows, thread)
        expand(p, layer, rows, thread)
        project_back(p, layer + L.DOWN, get_i64(p + S.HIDDEN), get_i64(p + S.HIDDEN_STRIDE), rows, thread)
    if get_i64(p + S.WANTED) > 0:
        answer(p, thread)
    clear_vectors()  # of weights and activations
