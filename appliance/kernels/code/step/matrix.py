"""The work of the phases of `step` on one matrix of weights: prepare rows for it, and multiply them
with it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.kernels.code.rows.activation import add_vector
from appliance.kernels.code.rows.norm import normalise
from appliance.kernels.code.step.attention import private
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.compiler.guard import BUFFER, WEIGHT, allowed
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.records import record
from appliance.kernels.compiler.vector import pointer_call
from appliance.kernels.layouts.step import READ, WRITE, Norm, Step, Weight
from appliance.kernels.layouts.tables import Numbers

call_product = pointer_call("void(i8,i8,i8,i8,i8,i8,i4,i8,i8)")
call_quantise = pointer_call("void(i8,i8,i8,i8,i8,i8,i8)")
call_fetch = pointer_call("i8(i8,i8,i8)")


GRAIN = 3072
"""Columns times rows of activations that make it worth the while to claim a group of weights: some 2 µs of work."""


TILE_ROWS = 32
"""From this many rows of activations on, threads may share a tile that has to be fetched, and fetch it
each for itself. Its multiplication then takes much longer than its decryption, and a thread without a
tile would wait for that long. Not where a disk brings tiles, in their order, for the first who wants
one."""


FEW_ROWS = 32
"""With more rows of activations a group is so much work that threads end together if it is claimed in small pieces."""


BESIDE_TILES = 8
"""Groups of a matrix in memory that one unit of work is, where other units of the phase are tiles."""


@record
@dataclass(frozen=True)
class Matrices:
    """Matrices that are multiplied with the same rows, one table after the other."""

    first: Weight
    number: int


@record
@dataclass(frozen=True)
class Source:
    """Rows of float32 to multiply matrices with."""

    address: int
    stride: int  # bytes between rows
    chosen: int  # address of the numbers of the rows to take, int64 each; 0: all, in their order
    norm: Norm  # what to normalise each row by
    rows: int  # how many


@record
@dataclass(frozen=True)
class Job:
    """Rows of activations, and which matrix of a run they are multiplied with."""

    activations: int  # address
    rows: int
    matrix: int  # 0 where there is one matrix


@record
@dataclass(frozen=True)
class Result:
    """Where products go, float32."""

    address: int
    stride: int  # bytes between rows
    accumulate: int  # 1 to add them to what is there


@device
def whole_tiles(matrices: Matrices, rows: int) -> bool:
    """Whether tiles, each for one thread to fetch, are units of work."""
    for index in range(matrices.number):
        weight = matrices.first[index]
        if weight.FETCH != 0 and (rows < TILE_ROWS or weight.IN_ORDER != 0):
            return True
    return False


@device
def unit_groups(weight: Weight, whole: bool) -> int:
    """Groups of a matrix that one unit of work is."""
    if not whole:
        return 1
    return weight.TILE_GROUPS if weight.FETCH != 0 else BESIDE_TILES


@device
def units_of(weight: Weight, unit: int) -> int:
    """Units of `unit` groups that a matrix has."""
    return (weight.GROUPS + unit - 1) // unit


@device
def units_grain(matrices: Matrices, rows: int, whole: bool) -> int:
    """Units that are claimed together at least, by what the matrices are:

    whole tiles      one after the other (0)
    shared tiles     half a tile: of less, more tiles would be fetched twice than threads would wait for each other
    many rows        as many groups as `product` multiplies at once, so that threads end together
    few rows         twice as many
    one row          more of small groups
    """
    if whole:
        return 0
    grain = 2 if rows > FEW_ROWS else 4 if rows > 1 else max(1, GRAIN // matrices.first.COLUMNS)
    for index in range(matrices.number):
        weight = matrices.first[index]
        if weight.FETCH != 0:
            grain = max(grain, weight.TILE_GROUPS // 2)
    return grain


@device(inline=False)
def multiply(step: Step, weight: Weight, job: Job, result: Result, first: int, last: int, thread: int) -> None:
    """Weights times activations, for groups first..last-1 of 16 rows of the matrix."""
    if first >= last:
        return
    activations, rows = job.activations, job.rows
    y, stride, accumulate = result.address, result.stride, result.accumulate
    product, columns, fetch = weight.PRODUCT, weight.COLUMNS, weight.FETCH
    each = weight.GROUP_NBYTES
    if not (allowed(step, BUFFER, y + 64 * first, (rows - 1) * stride + 64 * (last - first), WRITE)
            and allowed(step, BUFFER, activations, rows * weight.TOKEN_NBYTES, READ)):
        return
    if fetch == 0:
        packed = weight.ADDRESS + job.matrix * weight.RUN_NBYTES
        if allowed(step, WEIGHT, packed + first * each, (last - first) * each, READ):
            call_product(product, packed, columns, activations, rows, y, stride, accumulate, first, last)
    else:
        size, number = weight.TILE_GROUPS, job.matrix * weight.RUN_TILES
        for tile in range(first // size, (last + size - 1) // size):
            start = tile * size
            packed = call_fetch(fetch, weight.FETCH_CONTEXT, number + tile, thread)
            low, high = max(first, start) - start, min(last, start + size) - start
            if allowed(step, WEIGHT, packed + low * each, (high - low) * each, READ):
                call_product(product, packed, columns, activations, rows, y + 64 * start, stride, accumulate, low, high)
    bias = weight.BIAS
    if bias != 0:
        bias += job.matrix * (64 * weight.GROUPS)
        for row in range(rows):
            add_vector(y + row * stride + 64 * first, bias + 64 * first, 16 * (last - first))


@device
def quantise_row(matrices: Matrices, x: int, row: int, rows: int, own: int) -> None:
    """Quantise row `row` of `rows`, at `x`, once for each kind of activation that the matrices
    need."""
    for index in range(matrices.number):
        weight = matrices.first[index]
        quantise = weight.QUANTISE
        if quantise != 0:
            to = own + weight.PRIVATE_ACTIVATIONS if rows == 1 else weight.ACTIVATIONS
            call_quantise(quantise, x, 0, weight.COLUMNS, to, row, row + 1, rows)


@device(inline=False)
def prepare_row(step: Step, matrices: Matrices, x: int, norm: Norm, row: int, rows: int,
                thread: int) -> None:
    """Normalise and quantise the row at `x` for the matrices."""
    own = private(step, thread)
    if norm.KIND != 0:
        normalise(x, norm, own + step.PRIVATE_ROW, matrices.first.COLUMNS, step.EPSILON)
        x = own + step.PRIVATE_ROW
    quantise_row(matrices, x, row, rows, own)


@device
def row_of(source: Source, row: int) -> int:
    """The address of a row."""
    return source.address + source.stride * (row if source.chosen == 0 else Numbers(source.chosen)[row])


@device(inline=False)
def prepare(step: Step, matrices: Matrices, source: Source, thread: int) -> None:
    """A phase: `prepare_row` for each of many rows. A single row is no phase of its own: every
    thread that claims groups does it for itself, which costs less than to wait for another."""
    rows = source.rows
    if rows > 1:
        team = step.TEAM
        first, last = claim(team, thread, rows, 1)
        while first < last:
            for row in range(first, last):
                prepare_row(step, matrices, row_of(source, row), source.norm, row, rows, thread)
            first, last = claim(team, thread, rows, 1)
        finish(team, thread, rows)


@device
def activations_of(step: Step, weight: Weight, rows: int, thread: int) -> int:
    """Where `prepare` put the activations of a matrix."""
    return private(step, thread) + weight.PRIVATE_ACTIVATIONS if rows == 1 else weight.ACTIVATIONS
