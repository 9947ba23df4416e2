"""The gated delta rule of a layer: what heads read of a state that each row of a text changes.

A head's state is a matrix with a row for each element of a key and a column for each of a value. A
row of the text lets it fade, corrects its answer to the row's key, and reads its answer to the
row's query. Heads and columns are independent. A unit of work is a head of all rows of a slot,
which come one after the other. While a row changes the state, the state's answers to the next row
are summed up.

The state of a slot lies by heads and by BAND columns. At position 0 it is zeros, whatever is there.
Guesses change a copy of a band. Their rows go into the slot's log, and the right ones come back
from there, before the rows of the next pass.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.kernels.code.rows.activation import LOG2E, exp2_f32, silu, softplus
from appliance.kernels.code.rows.norm import normalise, square_sum
from appliance.kernels.code.rows.scores import dot, sigmoid_of
from appliance.kernels.code.step.attention import private
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.compiler.emit import Code, Val
from appliance.kernels.compiler.guard import BUFFER, CACHE, allowed
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.records import record
from appliance.kernels.compiler.vector import (
    f32,
    fma_f32,
    get_f32,
    largest_f32,
    load_f32,
    operation,
    set_f32,
    splat_f32,
    store_f32,
)
from appliance.kernels.layouts.step import (
    DELTA_ROWS,
    LOG_ROWS,
    READ,
    WRITE,
    DeltaLayer,
    Op,
    SlotRows,
    Step,
)

BAND = 32
"""Columns of a state that are worked on together: two vectors, so that chains hide each other's waits."""

LEAST = 1e-6
"""An addend of the sum of squares of a query or key, which is then made as long as 1."""

KEEP, RATE, MEETS = 0, 4, 8
"""Places among the numbers of a row, behind its query and key: the share of a state that stays, the share of an error
that goes into it, and the product of query and key."""


@record
@dataclass(frozen=True)
class Head:
    """A value head of a run of rows."""

    number: int
    state: int  # address of its state
    rows: int  # address of rows as `prepare` makes them
    log: int  # address of its rows in the slot's log


@operation(f32, f32)
def root(code: Code, x: Val) -> Val:
    """The square root, correctly rounded."""
    return code.call("llvm.sqrt.f32", x.type, x)


@device
def row_nbytes(layer: DeltaLayer) -> int:
    """Bytes of a row as `prepare` makes it."""
    return 8 * layer.SIZE + 64


@device
def log_nbytes(layer: DeltaLayer) -> int:
    """Bytes of a row in the log of a head: as `prepare` makes it, and its value."""
    return 12 * layer.SIZE + 64


@device
def numbers_of(layer: DeltaLayer, row: int) -> int:
    """Where the numbers of a row are."""
    return row + 8 * layer.SIZE


@device
def shape_vector(x: int, to: int, size: int, scale: float) -> None:
    """Make a query or key as long as `scale`."""
    length, factor = splat_f32(f32(1.0) / root(square_sum(x, size) + f32(LEAST))), splat_f32(scale)
    for at in range(0, 4 * size, 64):
        store_f32(to + at, load_f32(x + at) * length * factor)


@device
def kept_share(pace: float, start: float, decay: float) -> float:
    """The share of a state that stays at a row."""
    return largest_f32(exp2_f32(softplus(splat_f32(pace + start)) * splat_f32(decay) * splat_f32(f32(LOG2E))))


@device(inline=False)
def prepare(step: Step, op: Op, head: int, row: int, to: int) -> None:
    """The query, the key and the numbers of a row and value head."""
    layer = op.DELTA
    size, each = layer.SIZE, layer.TOGETHER
    key_head = head % layer.KEY_HEADS if each == layer.HEADS else head // each
    query = op.X + row * op.X_STRIDE + 4 * size * key_head
    shape_vector(query, to, size, layer.QUERY_SCALE)
    shape_vector(query + 4 * size * layer.KEY_HEADS, to + 4 * size, size, f32(1.0))
    rate = step.PROJECTED + row * step.PROJECTED_STRIDE + layer.RATE + 4 * (head // each * each + head)
    numbers = numbers_of(layer, to)
    set_f32(numbers + KEEP, kept_share(get_f32(rate + layer.PACE), get_f32(layer.START + 4 * head),
                                       get_f32(layer.DECAY + 4 * head)))
    set_f32(numbers + RATE, sigmoid_of(get_f32(rate)))
    set_f32(numbers + MEETS, dot(to + 4 * size, to, size))


@device(inline=False)
def read_first(layer: DeltaLayer, state: int, row: int, asked: int) -> None:
    """Write the answers of BAND columns of a state to a row's key, and then to its query."""
    size = layer.SIZE
    zero = splat_f32(f32(0.0))
    key_low, key_high, query_low, query_high = zero, zero, zero, zero
    for i in range(size):
        low, high = load_f32(state + 128 * i), load_f32(state + 128 * i + 64)
        query, key = splat_f32(get_f32(row + 4 * i)), splat_f32(get_f32(row + 4 * size + 4 * i))
        key_low, key_high = fma_f32(low, key, key_low), fma_f32(high, key, key_high)
        query_low, query_high = fma_f32(low, query, query_low), fma_f32(high, query, query_high)
    store_f32(asked, key_low)
    store_f32(asked + 64, key_high)
    store_f32(asked + 128, query_low)
    store_f32(asked + 192, query_high)


@device(inline=False)
def change(layer: DeltaLayer, state: int, to: int, row: int, value: int, out: int, asked: int) -> None:
    """Write BAND columns of a state, as a row changes them, and the row's own result. Their answers
    to the row behind it, whatever that is, replace those to this one."""
    size, numbers = layer.SIZE, numbers_of(layer, row)
    keep, rate, meets = (splat_f32(get_f32(numbers + KEEP)), splat_f32(get_f32(numbers + RATE)),
                         splat_f32(get_f32(numbers + MEETS)))
    error_low = (load_f32(value) - load_f32(asked) * keep) * rate
    error_high = (load_f32(value + 64) - load_f32(asked + 64) * keep) * rate
    store_f32(out, fma_f32(meets, error_low, load_f32(asked + 128) * keep))
    store_f32(out + 64, fma_f32(meets, error_high, load_f32(asked + 192) * keep))
    zero, behind = splat_f32(f32(0.0)), row + row_nbytes(layer)
    key_low, key_high, query_low, query_high = zero, zero, zero, zero
    for i in range(size):
        own = splat_f32(get_f32(row + 4 * size + 4 * i))
        low = fma_f32(own, error_low, load_f32(state + 128 * i) * keep)
        high = fma_f32(own, error_high, load_f32(state + 128 * i + 64) * keep)
        store_f32(to + 128 * i, low)
        store_f32(to + 128 * i + 64, high)
        query, key = splat_f32(get_f32(behind + 4 * i)), splat_f32(get_f32(behind + 4 * size + 4 * i))
        key_low, key_high = fma_f32(low, key, key_low), fma_f32(high, key, key_high)
        query_low, query_high = fma_f32(low, query, query_low), fma_f32(high, query, query_high)
    store_f32(asked, key_low)
    store_f32(asked + 64, key_high)
    store_f32(asked + 128, query_low)
    store_f32(asked + 192, query_high)


@device(inline=False)
def finish_row(step: Step, op: Op, head: int, row: int) -> None:
    """Normalise the result of a head for a row, and multiply it by its gate."""
    layer = op.DELTA
    size = layer.SIZE
    out = op.Y + row * op.Y_STRIDE + 4 * size * head
    gate = step.PROJECTED + row * step.PROJECTED_STRIDE + layer.GATE + 4 * size * head
    normalise(out, op.NORM, out, size, step.EPSILON)
    for at in range(0, 4 * size, 64):
        store_f32(out + at, load_f32(out + at) * silu(load_f32(gate + at)))


@device
def copy_floats(source: int, to: int, nbytes: int) -> None:
    """Copy whole vectors."""
    for at in range(0, nbytes, 64):
        store_f32(to + at, load_f32(source + at))


@device(inline=False)
def note_guesses(layer: DeltaLayer, head: Head, count: int, rows: int, value: int, stride: int) -> None:
    """Leave guesses in the log: as they were prepared at `rows`, and their values."""
    each = row_nbytes(layer)
    for index in range(count):
        to = head.log + index * log_nbytes(layer)
        copy_floats(rows + index * each, to, each)
        copy_floats(value + index * stride, to + each, 4 * layer.SIZE)


@device(inline=False)
def go_through(step: Step, op: Op, run: SlotRows, head: Head, first: int, last: int) -> None:
    """Rows first..last-1, at most DELTA_ROWS, of one head. Rows of the log come before the first
    row of a run."""
    layer, x_stride, y_stride = op.DELTA, op.X_STRIDE, op.Y_STRIDE
    size, each, noted = layer.SIZE, row_nbytes(layer), log_nbytes(layer)
    before = run.LOGGED if first == run.FIRST_ROW else 0
    rows, asked = head.rows + before * each, head.rows + (DELTA_ROWS + 1) * each
    unread, copy = asked + 256, asked + 256 + 128
    for index in range(before):
        copy_floats(head.log + index * noted, head.rows + index * each, each)
    for row in range(first, last):
        prepare(step, op, head.number, row, rows + (row - first) * each)
    sure = min(last, run.FIRST_ROW + run.COUNT - run.GUESSES)
    place = op.X + 4 * (2 * layer.SIZE * layer.KEY_HEADS + size * head.number)
    for band in range(size // BAND):
        state, at = head.state + 4 * BAND * layer.SIZE * band, 4 * BAND * band
        out = op.Y + 4 * size * head.number + at
        read_first(layer, state, head.rows, asked)
        for index in range(before):
            change(layer, state, state, head.rows + index * each, head.log + index * noted + each + at, unread, asked)
        for row in range(first, last):
            change(layer, state if row <= sure else copy, state if row < sure else copy, rows + (row - first) * each,
                   place + at + row * x_stride, out + row * y_stride, asked)
    if sure < last:
        note_guesses(layer, head, last - sure, rows + (sure - first) * each, place + sure * x_stride, x_stride)
    for row in range(first, last):
        finish_row(step, op, head.number, row)


@device(inline=False)
def change_head(step: Step, op: Op, run: SlotRows, number: int, thread: int) -> None:
    """All rows of a run, of one value head."""
    layer, first, end = op.DELTA, run.FIRST_ROW, run.FIRST_ROW + run.COUNT
    nbytes, logged = 4 * layer.SIZE * layer.SIZE, LOG_ROWS * log_nbytes(layer)
    state = step.STATES + run.SLOT * step.STATES_STRIDE + layer.PLACE + number * nbytes
    log = run.LOG + layer.LOG + number * logged
    if not (allowed(step, CACHE, state, nbytes, READ | WRITE)
            and allowed(step, BUFFER, op.Y + first * op.Y_STRIDE + 4 * layer.SIZE * number,
                        (run.COUNT - 1) * op.Y_STRIDE + 4 * layer.SIZE, WRITE)
            and (run.LOG == 0 or allowed(step, CACHE, log, logged, READ | WRITE))):
        return
    if run.POSITION == 0:
        for at in range(0, nbytes, 64):
            store_f32(state + at, splat_f32(f32(0.0)))
    head = Head(number, state, private(step, thread) + step.PRIVATE_DELTA, log)
    row, most = first, DELTA_ROWS - run.LOGGED
    while row < end:
        go_through(step, op, run, head, row, min(row + most, end))
        row += most


@device(inline=False)
def correct_rows(step: Step, op: Op, thread: int) -> None:
    """A phase: the value heads of each run."""
    team, heads = step.TEAM, op.DELTA.HEADS
    total = step.RUN_COUNT * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            change_head(step, op, step.RUNS[unit // heads], unit % heads, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)
