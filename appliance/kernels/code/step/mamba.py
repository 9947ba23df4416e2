"""Mamba-2: what heads read of a state that each row of a text changes.

A head's state is a matrix with a row for each number of a group's key and a column for each element
of the head. A row of the text lets it fade, adds the product of its key and of the head's elements,
and reads what is then there for its query. Heads are independent of each other, and so are columns
of a state. A unit of work is a head of all rows of a slot, which come one after the other. A few
rows go through a state together, which changes no bit.

The state of a slot lies by heads and by LANES columns. At position 0 it is zeros, whatever is
there. Guesses change a copy. Their rows go into the slot's log, and the right ones come back from
there, before the rows of the next pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba.core import types

from appliance.kernels.code.attention.emit import variable
from appliance.kernels.code.rows.activation import LOG2E, exp2_f32, gated, softplus
from appliance.kernels.code.step.attention import private
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.compiler.emit import F32, I64, Code, Val
from appliance.kernels.compiler.guard import BUFFER, CACHE, allowed
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import (
    f32,
    fma_f32,
    get_f32,
    i64,
    load_f32,
    operation,
    set_f32,
    splat_f32,
    store_f32,
)
from appliance.kernels.layouts.attention import LANES
from appliance.kernels.layouts.step import LOG_ROWS, READ, WRITE, MambaLayer, Op, SlotRows, Step

ROWS = 16
"""Rows whose numbers are made together."""

CHAINS = 4
"""Chains of a sum over a state's rows: of each fourth of them."""


def _advancing(rows: int) -> Callable[..., Any]:
    """The operation that lets so many rows change LANES columns of a state. It leaves at `out` what
    each reads, LANES floats after the other."""
    def advance(code: Code, state: Val, size: Val, numbers: Val, x: Val, key: Val, query: Val, stride: Val,
                out: Val) -> None:
        keeps = [code.broadcast(numbers + (64 + 4 * row), F32, LANES) for row in range(rows)]
        feeds = [code.broadcast(numbers + 4 * row, F32, LANES) * code.load(x + stride * row, F32, LANES)
                 for row in range(rows)]
        keys, queries = ([place + stride * row for row in range(rows)] for place in (key, query))
        sums = [[variable(code, feeds[0].like(0.0)) for _ in range(CHAINS)] for _ in range(rows)]

        def body(index: Val) -> None:
            for chain in range(CHAINS):
                number = index * CHAINS + chain
                value = code.load(state + number * 64, F32, LANES)
                for row in range(rows):
                    factor = code.broadcast(keys[row] + number * 4, F32, LANES)
                    value = code.fma(feeds[row], factor, value * keeps[row])
                    asked, total = code.broadcast(queries[row] + number * 4, F32, LANES), sums[row][chain]
                    total.set(0, code.fma(value, asked, total.get(0)))
                code.store(state + number * 64, value)

        code.loop(size >> 2, body)
        for row, line in enumerate(sums):
            first, second, third, fourth = (total.get(0) for total in line)
            code.store(out + 64 * row, (first + third) + (second + fourth))
    advance.__name__ = f"advance_{rows}"
    advance.__doc__ = f"Let {rows} rows change a state."
    return operation(types.void, *[i64] * 8)(advance)


advance_1, advance_4 = _advancing(1), _advancing(4)


@operation(i64)
def together(code: Code) -> Val:
    """Rows that go through a state together, if there are as many: with 16 registers, one."""
    return code.constant(I64, 4 if code.target == "avx512vnni" else 1)


@device
def projected(step: Step, row: int, at: int) -> int:
    """The address of byte `at` of what a row was projected to."""
    return step.PROJECTED + row * step.PROJECTED_STRIDE + at


@device(inline=False)
def pace(step: Step, layer: MambaLayer, head: int, first: int, last: int, numbers: int) -> None:
    """How much of rows first..last-1, at most ROWS, goes into the state of a head; and 64 bytes
    behind that, the shares of the state that stay."""
    for row in range(first, last):
        set_f32(numbers + 4 * (row - first), get_f32(projected(step, row, layer.PACE + 4 * head)))
    feed = softplus(load_f32(numbers) + splat_f32(get_f32(layer.START + 4 * head)))
    store_f32(numbers, feed)
    store_f32(numbers + 64, exp2_f32(feed * splat_f32(get_f32(layer.DECAY + 4 * head)) * splat_f32(f32(LOG2E))))


@device
def log_nbytes(layer: MambaLayer) -> int:
    """Bytes of a row in the log of a head: what it gets, its key, and its numbers."""
    return 4 * (layer.HEAD_SIZE + layer.SIZE) + 128


@device(inline=False)
def recall(layer: MambaLayer, part: int, at: int, log: int, count: int, out: int) -> None:
    """Let so many rows of the log change the columns of a state that begin at byte `at` of a row.
    Nobody reads what is then asked, which is the key."""
    for index in range(count):
        row = log + index * log_nbytes(layer)
        key = row + 4 * layer.HEAD_SIZE
        advance_1(part, layer.SIZE, key + 4 * layer.SIZE, row + at, key, key, 0, out)


@device(inline=False)
def note_guesses(layer: MambaLayer, log: int, count: int, key: int, stride: int, numbers: int) -> None:
    """Leave keys and numbers of guesses in the log."""
    for index in range(count):
        to = log + index * log_nbytes(layer) + 4 * layer.HEAD_SIZE
        for at in range(0, 4 * layer.SIZE, 64):
            store_f32(to + at, load_f32(key + index * stride + at))
        set_f32(to + 4 * layer.SIZE, get_f32(numbers + 4 * index))
        set_f32(to + 4 * layer.SIZE + 64, get_f32(numbers + 4 * index + 64))


@device(inline=False)
def advance(step: Step, op: Op, head: int, part: int, at: int, first: int, last: int, numbers: int, out: int) -> None:
    """Let rows first..last-1 change the columns of a state that begin at byte `at` of a row, and
    write what they read. `numbers` are those of the first row."""
    layer, stride = op.MAMBA, op.X_STRIDE
    size, start, row = layer.SIZE, 4 * layer.HEAD_SIZE * head + at, first
    key = op.X + layer.KEY + 4 * size * (head // layer.SHARED)
    skip = splat_f32(get_f32(layer.SKIP + 4 * head))
    while row < last:
        count, own = together() if last - row >= together() else 1, numbers + 4 * (row - first)
        place, asked = op.X + row * stride + start, key + row * stride
        if count == 1:
            advance_1(part, size, own, place, asked, asked + layer.QUERY, stride, out)
        else:
            advance_4(part, size, own, place, asked, asked + layer.QUERY, stride, out)
        for index in range(count):
            x = load_f32(place + index * stride)
            gate = load_f32(projected(step, row + index, start))
            store_f32(op.Y + (row + index) * op.Y_STRIDE + start,
                      gated(gate, fma_f32(skip, x, load_f32(out + 64 * index))))
        row += count


@device(inline=False)
def go_through(step: Step, op: Op, run: SlotRows, head: int, state: int, log: int, first: int, last: int,
               numbers: int) -> None:
    """Rows first..last-1, at most ROWS, of one head. Before the first row of a run, rows of the log
    come."""
    layer = op.MAMBA
    size, out, copy = layer.SIZE, numbers + 128, numbers + 384
    before = run.LOGGED if first == run.FIRST_ROW else 0
    sure = min(last, run.FIRST_ROW + run.COUNT - run.GUESSES)
    pace(step, layer, head, first, last, numbers)
    for at in range(0, 4 * layer.HEAD_SIZE, 64):
        part = state + size * at
        recall(layer, part, at, log, before, out)
        advance(step, op, head, part, at, first, sure, numbers, out)
        if sure < last:
            for row in range(sure, last):  # before what they read takes its place
                store_f32(log + (row - sure) * log_nbytes(layer) + at,
                          load_f32(op.X + row * op.X_STRIDE + 4 * layer.HEAD_SIZE * head + at))
            for place in range(0, 64 * size, 64):
                store_f32(copy + place, load_f32(part + place))
            advance(step, op, head, copy, at, sure, last, numbers + 4 * (sure - first), out)
    if sure < last:
        key = op.X + sure * op.X_STRIDE + layer.KEY + 4 * size * (head // layer.SHARED)
        note_guesses(layer, log, last - sure, key, op.X_STRIDE, numbers + 4 * (sure - first))


@device(inline=False)
def change_head(step: Step, op: Op, run: SlotRows, head: int, numbers: int) -> None:
    """All rows of a run, of one head."""
    layer, first, end = op.MAMBA, run.FIRST_ROW, run.FIRST_ROW + run.COUNT
    nbytes, logged = 4 * layer.SIZE * layer.HEAD_SIZE, LOG_ROWS * log_nbytes(layer)
    state = step.STATES + run.SLOT * step.STATES_STRIDE + layer.PLACE + head * nbytes
    log = run.LOG + layer.LOG + head * logged
    if not (allowed(step, CACHE, state, nbytes, READ | WRITE)
            and allowed(step, BUFFER, op.Y + first * op.Y_STRIDE + 4 * layer.HEAD_SIZE * head,
                        (run.COUNT - 1) * op.Y_STRIDE + 4 * layer.HEAD_SIZE, WRITE)
            and (run.LOG == 0 or allowed(step, CACHE, log, logged, READ | WRITE))):
        return
    if run.POSITION == 0:
        for at in range(0, nbytes, 64):
            store_f32(state + at, splat_f32(f32(0.0)))
    for row in range(first, end, ROWS):
        go_through(step, op, run, head, state, log, row, min(row + ROWS, end), numbers)


@device(inline=False)
def scan_rows(step: Step, op: Op, thread: int) -> None:
    """A phase: the heads of each run."""
    team, heads = step.TEAM, op.MAMBA.HEADS
    total, numbers = step.RUN_COUNT * heads, private(step, thread) + step.PRIVATE_MAMBA
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            change_head(step, op, step.RUNS[unit // heads], unit % heads, numbers)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)
