"""The short convolution of a layer, in place of its attention or before its recurrence.

A column of a row is the weighted sum of that column in the row and in the ones before it, a chain
from the oldest on. So columns are independent, and a unit of work is a piece of the columns of all
rows of a slot. The state of a slot is what its next row sees of earlier ones: the rows as they are
convolved, the oldest first. At position 0 it is zeros, whatever is there. Guesses change no state:
their rows go into the slot's log, and the right ones come back from there.
"""

from __future__ import annotations

from typing import Any

from appliance.kernels.code.rows.activation import silu
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.compiler.guard import BUFFER, CACHE, allowed
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import f32, fma_f32, load_f32, splat_f32, store_f32
from appliance.kernels.layouts.step import LOG_ROWS, READ, WRITE, ConvolutionLayer, Op, SlotRows, Step

PIECE = 64
"""Columns of a unit of work."""


@device
def convolved_input(layer: ConvolutionLayer, place: int) -> Any:
    """16 columns of what is convolved, of the row that has its first of them at `place`."""
    if layer.GATED != 0:
        return load_f32(place) * load_f32(place + 8 * layer.COLUMNS)
    return load_f32(place)


@device
def input_before(layer: ConvolutionLayer, run: SlotRows, x: int, stride: int, row: int, state: int) -> Any:
    """16 columns of row `row` of a run, or of the state where that is negative. Those of row 0 are
    at `x`, and those of the oldest row of the state at `state`."""
    if row >= 0:
        return convolved_input(layer, x + row * stride)
    if run.POSITION == 0:
        return splat_f32(f32(0.0))
    return load_f32(state + 4 * layer.COLUMNS * (row + layer.WIDTH - 1))


@device
def convolved(layer: ConvolutionLayer, run: SlotRows, x: int, stride: int, row: int, state: int, at: int) -> Any:
    """16 columns of the result of a row, from byte `at` of a row of weights on."""
    width = layer.WIDTH
    total = splat_f32(f32(0.0)) if layer.BIAS == 0 else load_f32(layer.BIAS + at)
    for tap in range(width):
        weights = load_f32(layer.WEIGHTS + 4 * layer.COLUMNS * tap + at)
        total = fma_f32(input_before(layer, run, x, stride, row + tap + 1 - width, state), weights, total)
    if layer.ACTIVATED != 0:
        total = silu(total)
    if layer.GATED != 0:
        total = load_f32(x + row * stride + 4 * layer.COLUMNS) * total
    return total


@device(inline=False)
def recall(layer: ConvolutionLayer, state: int, log: int, count: int, first: int, last: int) -> None:
    """Bring columns first..last-1 of a state on by so many rows of the log."""
    kept, width = layer.WIDTH - 1, 4 * layer.COLUMNS
    for index in range(kept):
        row = index + count - kept
        source = log + width * row if row >= 0 else state + width * (index + count)
        for at in range(4 * first, 4 * last, 64):
            store_f32(state + width * index + at, load_f32(source + at))


@device(inline=False)
def note_guesses(layer: ConvolutionLayer, run: SlotRows, x: int, stride: int, log: int, first: int, last: int) -> None:
    """Leave columns first..last-1 of guesses in the log."""
    sure = run.COUNT - run.GUESSES
    for index in range(run.GUESSES):
        for at in range(4 * first, 4 * last, 64):
            store_f32(log + 4 * layer.COLUMNS * index + at, convolved_input(layer, x + (sure + index) * stride + at))


@device(inline=False)
def convolve(step: Step, op: Op, run: SlotRows, first: int, last: int) -> None:
    """Columns first..last-1 of all rows of a run, and then of its state."""
    layer, x_stride, y_stride = op.CONVOLUTION, op.X_STRIDE, op.Y_STRIDE
    x, y = op.X + run.FIRST_ROW * x_stride, op.Y + run.FIRST_ROW * y_stride
    state, count, kept = step.STATES + run.SLOT * step.STATES_STRIDE + layer.PLACE, run.COUNT, layer.WIDTH - 1
    log, sure = run.LOG + layer.LOG, run.COUNT - run.GUESSES
    if not (allowed(step, CACHE, state, 4 * layer.COLUMNS * kept, READ | WRITE)
            and allowed(step, BUFFER, y, (count - 1) * y_stride + 4 * layer.COLUMNS, WRITE)
            and (run.LOG == 0 or allowed(step, CACHE, log, 4 * layer.COLUMNS * LOG_ROWS, READ | WRITE))):
        return
    if run.LOGGED != 0:
        recall(layer, state, log, run.LOGGED, first, last)
    for row in range(count):
        for at in range(4 * first, 4 * last, 64):
            store_f32(y + row * y_stride + at, convolved(layer, run, x + at, x_stride, row, state + at, at))
    for index in range(kept):  # a row of the state comes from rows behind it only
        for at in range(4 * first, 4 * last, 64):
            store_f32(state + 4 * layer.COLUMNS * index + at,
                      input_before(layer, run, x + at, x_stride, sure + index - kept, state + at))
    note_guesses(layer, run, x, x_stride, log, first, last)


@device(inline=False)
def convolve_rows(step: Step, op: Op, thread: int) -> None:
    """A phase: pieces of columns of each run."""
    team, columns = step.TEAM, op.CONVOLUTION.COLUMNS
    pieces = (columns + PIECE - 1) // PIECE
    total = step.RUN_COUNT * pieces
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            start = unit % pieces * PIECE
            convolve(step, op, step.RUNS[unit // pieces], start, min(start + PIECE, columns))
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)
