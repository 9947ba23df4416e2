"""The forward pass of the llama architecture for a batch of rows, run by all threads in lock-step.

A row is a token at a position of a slot of the cache. All threads run `step` with the same table
Step (`layouts.step`) and claim units of work of each phase (`lockstep`); outside of claimed units
they write nothing. Which thread does what never changes a bit of any row. Read `step` downward; the
phases stand above it in the order of their use.
"""

from __future__ import annotations

from appliance.engine.kernels.code.rows.activation import swiglu
from appliance.engine.kernels.code.step.attention import attend_rows
from appliance.engine.kernels.code.step.lockstep import claim, finish
from appliance.engine.kernels.code.step.matrix import (
    Matrices,
    Result,
    Source,
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
from appliance.engine.kernels.compiler.vector import align_frame, clear_vectors, pointer_call
from appliance.engine.kernels.layouts.step import Layer, Step, Weight
from appliance.engine.kernels.runtime.registry import kernel

call_gather = pointer_call("void(i8,i8,i8,i8)")


@device(inline=False)
def embed(step: Step, thread: int) -> None:
    """The residual rows: the tokens' rows of the embedding matrix."""
    weight, rows, team = step.EMBEDDING_WEIGHT, step.ROWS, step.TEAM
    if weight.GATHER == 0:
        return
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            token = step.TOKENS[row]
            call_gather(weight.GATHER, weight.ADDRESS, weight.COLUMNS, token,
                        step.RESIDUAL + row * step.RESIDUAL_STRIDE)
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device(inline=False)
def multiply_rows(step: Step, matrices: Matrices, source: Source, result: Result, thread: int) -> None:
    """A phase or two: the weights of all matrices times rows, their results beside each other."""
    team, whole = step.TEAM, whole_tiles(matrices, source.rows)
    prepare(step, matrices, source, thread)
    total, grain = 0, units_grain(matrices, source.rows, whole)
    for index in range(matrices.number):
        weight = matrices.first[index]
        total += units_of(weight, unit_groups(weight, whole))
    first, last = claim(team, thread, total, grain)
    if source.rows == 1 and first < last:
        prepare_row(step, matrices, row_of(source, 0), source.norm, 0, 1, thread)
    while first < last:
        offset, out = 0, result.address
        for index in range(matrices.number):
            weight = matrices.first[index]
            groups, unit = weight.GROUPS, unit_groups(weight, whole)
            multiply(step, weight, activations_of(step, weight, source.rows, thread), source.rows,
                     Result(out, result.stride, result.accumulate),
                     max(first - offset, 0) * unit, min((last - offset) * unit, groups), thread)
            offset += units_of(weight, unit)
            out += 64 * groups
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def project(step: Step, layer: Layer, rows: int, thread: int) -> None:
    """Queries, keys and values of the normalised rows, beside each other."""
    multiply_rows(step, Matrices(layer.QUERY, 3),
                  Source(step.RESIDUAL, step.RESIDUAL_STRIDE, 0, layer.ATTENTION_NORM, rows),
                  Result(step.PROJECTED, step.PROJECTED_STRIDE, 0), thread)


@device
def project_back(step: Step, weight: Weight, x: int, stride: int, rows: int, thread: int) -> None:
    """Add weights * rows at `x` to the residual rows."""
    multiply_rows(step, Matrices(weight, 1), Source(x, stride, 0, 0, rows),
                  Result(step.RESIDUAL, step.RESIDUAL_STRIDE, 1), thread)


@device(inline=False)
def expand(step: Step, layer: Layer, rows: int, thread: int) -> None:
    """The gated hidden rows of the feed-forward network."""
    team, gate, up = step.TEAM, layer.GATE, layer.UP
    x, norm = step.RESIDUAL, layer.FEED_FORWARD_NORM
    both = Matrices(gate, 2)
    prepare(step, both, Source(x, step.RESIDUAL_STRIDE, 0, norm, rows), thread)
    whole, groups = whole_tiles(both, rows), gate.GROUPS
    unit, grain = max(unit_groups(gate, whole), unit_groups(up, whole)), units_grain(both, rows, whole)
    total = units_of(gate, unit)
    hidden, stride, beside = step.HIDDEN, step.HIDDEN_STRIDE, step.UP_OFFSET
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(step, both, x, norm, 0, 1, thread)
    while first < last:
        low, high = first * unit, min(last * unit, groups)
        multiply(step, gate, activations_of(step, gate, rows, thread), rows, Result(hidden, stride, 0), low, high,
                 thread)
        multiply(step, up, activations_of(step, up, rows, thread), rows, Result(hidden + beside, stride, 0), low, high,
                 thread)
        for row in range(rows):
            place = hidden + row * stride + 64 * low
            swiglu(place, place + beside, 16 * (high - low))
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def answer(step: Step, thread: int) -> None:
    """Logits of the rows asked for."""
    multiply_rows(step, Matrices(step.OUTPUT_WEIGHT, 1),
                  Source(step.RESIDUAL, step.RESIDUAL_STRIDE, step.LOGIT_ROWS, step.OUTPUT_NORM, step.LOGIT_COUNT),
                  Result(step.LOGITS, step.LOGITS_STRIDE, 0), thread)


@kernel("step", "void(i8,i8,i8)")
def step(thread: int, threads: int, address: int) -> None:
    """One pass of all rows through the model; the table Step is at `address`."""
    align_frame()
    step = Step(address)
    rows = step.ROWS
    embed(step, thread)
    for index in range(step.LAYER_COUNT):
        layer = step.LAYERS[index]
        project(step, layer, rows, thread)
        attend_rows(step, index, rows, thread)
        project_back(step, layer.OUTPUT, step.ATTENDED, step.ATTENDED_STRIDE, rows, thread)
        expand(step, layer, rows, thread)
        project_back(step, layer.DOWN, step.HIDDEN, step.HIDDEN_STRIDE, rows, thread)
    if step.LOGIT_COUNT > 0:
        answer(step, thread)
    clear_vectors()  # of weights and activations
