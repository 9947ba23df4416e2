"""Mamba-2: what heads read of a state that each row of a text changes.

A head's state is a matrix with a row for each number of a group's key and a column for each element
of the head. A row of the text lets it fade, adds the product of its key and of the head's elements,
and reads what is then there for its query. Heads are independent of each other, and so are columns
of a state. A unit of work is a head of all rows of a slot, which come one after the other. A few
rows go through a state together, which changes no bit.

The state of a slot lies by heads and by LANES columns. At position 0 it is zeros, whatever is
there.
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
from appliance.kernels.layouts.step import READ, WRITE, Bundle, MambaLayer, Op, Step

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


@device(inline=False)
def go_through(step: Step, op: Op, head: int, state: int, first: int, last: int, numbers: int) -> None:
    """Rows first..last-1, at most ROWS, of one head."""
    layer, stride = op.MAMBA, op.X_STRIDE
    size, start, own = layer.SIZE, 4 * layer.HEAD_SIZE * head, op.X + first * op.X_STRIDE
    key = own + layer.KEY + 4 * size * (head // layer.SHARED)
    skip, out = splat_f32(get_f32(layer.SKIP + 4 * head)), numbers + 128
    pace(step, layer, head, first, last, numbers)
    for at in range(0, 4 * layer.HEAD_SIZE, 64):
        row, part = first, state + size * at
        while row < last:
            count = together() if last - row >= together() else 1
            place, ahead = own + (row - first) * stride + start + at, (row - first) * stride
            if count == 1:
                advance_1(part, size, numbers + 4 * (row - first), place, key + ahead, key + ahead + layer.QUERY,
                          stride, out)
            else:
                advance_4(part, size, numbers + 4 * (row - first), place, key + ahead, key + ahead + layer.QUERY,
                          stride, out)
            for index in range(count):
                x = load_f32(place + index * stride)
                gate = load_f32(projected(step, row + index, start + at))
                store_f32(op.Y + (row + index) * op.Y_STRIDE + start + at,
                          gated(gate, fma_f32(skip, x, load_f32(out + 64 * index))))
            row += count


@device(inline=False)
def change_head(step: Step, op: Op, run: Bundle, head: int, numbers: int) -> None:
    """All rows of a run, of one head."""
    layer, first, end = op.MAMBA, run.FIRST_ROW, run.FIRST_ROW + run.COUNT
    nbytes = 4 * layer.SIZE * layer.HEAD_SIZE
    state = step.STATES + run.SLOT * step.STATES_STRIDE + layer.PLACE + head * nbytes
    if not (allowed(step, CACHE, state, nbytes, READ | WRITE)
            and allowed(step, BUFFER, op.Y + first * op.Y_STRIDE + 4 * layer.HEAD_SIZE * head,
                        (run.COUNT - 1) * op.Y_STRIDE + 4 * layer.HEAD_SIZE, WRITE)):
        return
    if run.POSITION == 0:
        for at in range(0, nbytes, 64):
            store_f32(state + at, splat_f32(f32(0.0)))
    for row in range(first, end, ROWS):
        go_through(step, op, head, state, row, min(row + ROWS, end), numbers)


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
