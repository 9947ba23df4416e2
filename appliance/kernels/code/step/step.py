"""The forward pass for a batch of rows: a program of operations, run by all threads in lock-step.

A row is a token at a position of a slot of the cache. All threads run `step` with the same table
Step (`layouts.step`) and claim units of work of each phase (`lockstep`); outside of claimed units
they write nothing. Which thread does what never changes a bit of any row. The program, a table of
Op, follows from the card of the model's family (`families`). Read `step` and `run` upward;
the operations stand above them.
"""

from __future__ import annotations

from appliance.kernels.code.rows.activation import activate, add_vector, finish_vector
from appliance.kernels.code.rows.norm import normalise, rms_norm
from appliance.kernels.code.step.attention import attend_rows, private
from appliance.kernels.code.step.convolution import convolve_rows
from appliance.kernels.code.step.delta import correct_rows
from appliance.kernels.code.step.experts import (
    Band,
    choose_rows,
    combine_rows,
    multiply_chosen,
    reads_pairs,
    scale_rows,
)
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.code.step.mamba import scan_rows
from appliance.kernels.code.step.matrix import (
    Job,
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
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    align_frame,
    clear_vectors,
    fma_f32,
    load_f32,
    pointer_call,
    splat_f32,
    store_f32,
)
from appliance.kernels.layouts.step import (
    ACTIVATE,
    ADD,
    ATTEND,
    CHOOSE,
    COMBINE,
    CONVOLVE,
    CORRECT,
    EXPAND,
    MULTIPLY,
    NORMALISE,
    SCALE,
    Op,
    Step,
)

call_gather = pointer_call("void(i8,i8,i8,i8)")

PIECE = 1024
"""Floats of a row that one unit of work is, where each is worked on by itself."""


@device
def embed_row(step: Step, row: int) -> None:
    """One residual row."""
    weight, x = step.EMBEDDING_WEIGHT, step.RESIDUAL + row * step.RESIDUAL_STRIDE
    if weight.GATHER != 0:
        call_gather(weight.GATHER, weight.ADDRESS, weight.COLUMNS, step.TOKENS[row], x)
    if step.EMBEDDING_SCALE != 1.0:
        finish_vector(x, weight.COLUMNS, step.EMBEDDING_SCALE, 0.0)
    if step.PLACES != 0:
        add_vector(x, step.PLACES + step.POSITIONS[row] * step.PLACES_STRIDE, weight.COLUMNS)


@device(inline=False)
def embed(step: Step, thread: int) -> None:
    """The residual rows: the tokens' rows of the embedding matrix, scaled, with those of their
    positions."""
    rows, team = step.ROWS, step.TEAM
    if step.EMBEDDING_WEIGHT.GATHER == 0 and step.EMBEDDING_SCALE == 1.0 and step.PLACES == 0:
        return
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            embed_row(step, row)
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
            multiply(step, weight, Job(activations_of(step, weight, source.rows, thread), source.rows, 0),
                     Result(out, result.stride, result.accumulate),
                     max(first - offset, 0) * unit, min((last - offset) * unit, groups), thread)
            offset += units_of(weight, unit)
            out += 64 * groups
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device
def project(step: Step, op: Op, rows: int, thread: int) -> None:
    """The products of matrices with rows, beside each other."""
    multiply_rows(step, Matrices(op.WEIGHTS, op.COUNT), Source(op.X, op.X_STRIDE, 0, op.NORM, rows),
                  Result(op.Y, op.Y_STRIDE, op.ACCUMULATE), thread)


@device(inline=False)
def expand(step: Step, op: Op, rows: int, thread: int) -> None:
    """The gated hidden rows of the feed-forward network."""
    team, gate, up = step.TEAM, op.WEIGHTS, op.WEIGHTS[1]
    x, norm = op.X, op.NORM
    both = Matrices(gate, 2)
    prepare(step, both, Source(x, op.X_STRIDE, 0, norm, rows), thread)
    whole, groups = whole_tiles(both, rows), gate.GROUPS
    unit, grain = max(unit_groups(gate, whole), unit_groups(up, whole)), units_grain(both, rows, whole)
    total = units_of(gate, unit)
    hidden, stride, beside = op.Y, op.Y_STRIDE, op.UP
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(step, both, x, norm, 0, 1, thread)
    while first < last:
        low, high = first * unit, min(last * unit, groups)
        multiply(step, gate, Job(activations_of(step, gate, rows, thread), rows, 0), Result(hidden, stride, 0),
                 low, high, thread)
        multiply(step, up, Job(activations_of(step, up, rows, thread), rows, 0), Result(hidden + beside, stride, 0),
                 low, high, thread)
        for row in range(rows):
            place = hidden + row * stride + 64 * low
            activate(op.ACTIVATION, place, place + beside, 16 * (high - low))
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device(inline=False)
def activate_rows(step: Step, op: Op, band: Band, thread: int) -> None:
    """A phase: activations of rows where they are, with a gate beside them or without."""
    rows = band.rows
    if reads_pairs(step, op):
        rows *= band.count if band.count > 0 else op.EXPERTS.USED
    team, width, beside = step.TEAM, op.COLUMNS, op.UP
    pieces = (width + PIECE - 1) // PIECE
    total = rows * pieces
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            start = unit % pieces * PIECE
            place = op.X + unit // pieces * op.X_STRIDE + 4 * start
            activate(op.ACTIVATION, place, 0 if beside == 0 else place + beside, min(PIECE, width - start))
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def add_rows(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase: add rows, normalised and scaled, to the residual rows, and scale those."""
    team, size, own = step.TEAM, op.COLUMNS, private(step, thread)
    scale, last_scale = splat_f32(op.SCALE), splat_f32(op.FINAL)
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            x, y = op.X + row * op.X_STRIDE, op.Y + row * op.Y_STRIDE
            if op.NORM.KIND != 0:
                normalise(x, op.NORM, own + step.PRIVATE_ROW, size, step.EPSILON)
                x = own + step.PRIVATE_ROW
            for i in range(size // 16):
                store_f32(y + 64 * i, fma_f32(scale, load_f32(x + 64 * i), load_f32(y + 64 * i)) * last_scale)
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device(inline=False)
def normalise_rows(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase: normalise rows where they are, or each of several parts of a row (by RMS)."""
    team, size = step.TEAM, op.COLUMNS
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            x = op.X + row * op.X_STRIDE
            if op.PARTS == 1:
                normalise(x, op.NORM, x, size, step.EPSILON)
            else:
                for part in range(op.PARTS):
                    at = 4 * size * part
                    rms_norm(x + at, op.NORM.WEIGHT + at, x + at, size, step.EPSILON)
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device(inline=False)
def finish_logits(step: Step, thread: int) -> None:
    """A phase: scale logits, and bend them."""
    team, width = step.TEAM, 16 * step.OUTPUT_WEIGHT.GROUPS
    pieces = (width + PIECE - 1) // PIECE
    total = step.LOGIT_COUNT * pieces
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            start = unit % pieces * PIECE
            finish_vector(step.LOGITS + unit // pieces * step.LOGITS_STRIDE + 4 * start, min(PIECE, width - start),
                          step.LOGIT_SCALE, step.LOGIT_CAP)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device
def answer(step: Step, thread: int) -> None:
    """Logits of the rows asked for."""
    multiply_rows(step, Matrices(step.OUTPUT_WEIGHT, 1),
                  Source(step.RESIDUAL, step.RESIDUAL_STRIDE, step.LOGIT_ROWS, step.OUTPUT_NORM, step.LOGIT_COUNT),
                  Result(step.LOGITS, step.LOGITS_STRIDE, 0), thread)
    if step.LOGIT_SCALE != 1.0 or step.LOGIT_CAP != 0.0:
        finish_logits(step, thread)


@device(inline=False)
def run_experts(step: Step, op: Op, band: Band, thread: int) -> None:
    """One operation of a layer with experts."""
    kind = op.KIND
    if kind == CHOOSE:
        choose_rows(step, op, band, thread)
    elif kind == COMBINE:
        combine_rows(step, op, band, thread)
    elif kind == SCALE:
        scale_rows(step, op, band.rows, thread)
    else:
        multiply_chosen(step, op, band, thread)


@device(inline=False)
def run(step: Step, op: Op, band: Band, thread: int) -> None:
    """One operation."""
    kind, rows = op.KIND, band.rows
    if kind == MULTIPLY:
        project(step, op, rows, thread)
    elif kind == ATTEND:
        attend_rows(step, op.ATTENTION, rows, thread)
    elif kind == EXPAND:
        expand(step, op, rows, thread)
    elif kind == ACTIVATE:
        activate_rows(step, op, band, thread)
    elif kind == ADD:
        add_rows(step, op, rows, thread)
    elif kind == NORMALISE:
        normalise_rows(step, op, rows, thread)
    elif kind < CONVOLVE:
        run_experts(step, op, band, thread)
    elif kind == CORRECT:
        correct_rows(step, op, thread)
    elif kind == CONVOLVE:
        convolve_rows(step, op, thread)
    else:
        scan_rows(step, op, thread)


@device
def experts_at_once(step: Step, count: int, rows: int) -> int:
    """How many of `count` experts all rows go through at a time: what EXPANDED and MIXED have room
    for, in parts that are about even."""
    parts = (count * rows + step.PAIRS - 1) // step.PAIRS
    return min((count + parts - 1) // parts, step.PAIRS // rows)


@device(inline=False)
def run_from(step: Step, index: int, rows: int, thread: int) -> int:
    """One operation; or those from CHOOSE to COMBINE, for some experts after the other, where rows
    go through all. Returns the number of the next operation."""
    op, end, parts, each, count = step.PROGRAM[index], index + 1, 1, 0, 0
    if op.KIND == CHOOSE and op.EXPERTS.ALL != 0:
        count = op.EXPERTS.COUNT
        each = experts_at_once(step, count, rows)
        parts = (count + each - 1) // each
        while step.PROGRAM[end - 1].KIND != COMBINE:
            end += 1
    for part in range(parts):
        for number in range(index, end):
            run(step, step.PROGRAM[number], Band(rows, part * each, min(each, count - part * each)), thread)
    return end


@kernel("step", "void(i8,i8,i8)")
def step(thread: int, threads: int, address: int) -> None:
    """One pass of all rows through the model; the table Step is at `address`."""
    align_frame()
    step = Step(address)
    rows = step.ROWS
    embed(step, thread)
    index = 0
    while index < step.OP_COUNT:
        index = run_from(step, index, rows, thread)
    if step.LOGIT_COUNT > 0:
        answer(step, thread)
    clear_vectors()  # of weights and activations
