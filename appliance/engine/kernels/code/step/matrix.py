"""What the phases of `step` do with one matrix of weights: prepare rows for it, and multiply them with it."""

from __future__ import annotations

from appliance.engine.kernels.code.rows.activation import add_vector
from appliance.engine.kernels.code.rows.norm import rms_norm
from appliance.engine.kernels.code.step.attention import private
from appliance.engine.kernels.code.step.lockstep import claim, finish
from appliance.engine.kernels.compiler.guard import BUFFER, WEIGHT, allowed
from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import get_f32, get_i64, pointer_call
from appliance.engine.kernels.layouts.step import READ, WEIGHT_NBYTES, WRITE, S, W

call_product = pointer_call("void(i8,i8,i8,i8,i8,i8,i4,i8,i8)")
call_quantise = pointer_call("void(i8,i8,i8,i8,i8,i8,i8)")
call_fetch = pointer_call("i8(i8,i8,i8)")


GRAIN = 3072
"""Columns times rows of activations that make it worth the while to claim a group of weights: some 2 µs of work."""


TILE_ROWS = 32
"""From this many rows of activations on, threads may share a tile that has to be fetched, and fetch it each for itself:
its multiplication then takes much longer than its decryption, and a thread without a tile would wait for that long. Not
where a disk brings tiles, in their order, for the first who wants one."""


FEW_ROWS = 32
"""With more rows of activations a group is so much work that threads end together if it is claimed in small pieces."""


BESIDE_TILES = 8
"""Groups of a matrix in memory that one unit of work is, where other units of the phase are tiles."""


@device
def whole_tiles(w: int, count: int, rows: int) -> bool:
    """Whether tiles, each for one thread to fetch, are units of work on `count` matrices from `w` on."""
    for index in range(count):
        each = w + WEIGHT_NBYTES * index
        if get_i64(each + W.FETCH) != 0 and (rows < TILE_ROWS or get_i64(each + W.IN_ORDER) != 0):
            return True
    return False


@device
def unit_groups(w: int, whole: bool) -> int:
    """Groups of matrix `w` that one unit of work is."""
    if not whole:
        return 1
    return get_i64(w + W.TILE_GROUPS) if get_i64(w + W.FETCH) != 0 else BESIDE_TILES


@device
def units_of(w: int, unit: int) -> int:
    """Units of `unit` groups that matrix `w` has."""
    return (get_i64(w + W.GROUPS) + unit - 1) // unit


@device
def units_grain(w: int, count: int, rows: int, whole: bool) -> int:
    """Units of `count` matrices from `w` on that are claimed together at least: without tiles, as many groups as
    `product` multiplies at once where rows are many, so that threads end together, more where they are few, and for a
    single one more of small groups; whole tiles one after the other (0), and half of one where it is shared: of smaller
    parts, more tiles would be fetched twice than threads would wait for each other without."""
    if whole:
        return 0
    grain = 2 if rows > FEW_ROWS else 4 if rows > 1 else max(1, GRAIN // get_i64(w + W.COLUMNS))
    for index in range(count):
        each = w + WEIGHT_NBYTES * index
        if get_i64(each + W.FETCH) != 0:
            grain = max(grain, get_i64(each + W.TILE_GROUPS) // 2)
    return grain


@device(inline=False)
def multiply(p: int, w: int, activations: int, rows: int, y: int, stride: int, accumulate: int, first: int,
             last: int, thread: int) -> None:
    """y = (accumulate: y +) weights * activations, for groups first..last-1 of 16 rows of the matrix `w`."""
    if first >= last:
        return
    product, columns, fetch = get_i64(w + W.PRODUCT), get_i64(w + W.COLUMNS), get_i64(w + W.FETCH)
    each = get_i64(w + W.GROUP_NBYTES)
    if not (allowed(p, BUFFER, y + 64 * first, (rows - 1) * stride + 64 * (last - first), WRITE)
            and allowed(p, BUFFER, activations, rows * get_i64(w + W.TOKEN_NBYTES), READ)):
        return
    if fetch == 0:
        packed = get_i64(w + W.ADDRESS)
        if allowed(p, WEIGHT, packed + first * each, (last - first) * each, READ):
            call_product(product, packed, columns, activations, rows, y, stride, accumulate, first, last)
    else:
        size = get_i64(w + W.TILE_GROUPS)
        for tile in range(first // size, (last + size - 1) // size):
            start = tile * size
            packed = call_fetch(fetch, get_i64(w + W.FETCH_CONTEXT), tile, thread)
            low, high = max(first, start) - start, min(last, start + size) - start
            if allowed(p, WEIGHT, packed + low * each, (high - low) * each, READ):
                call_product(product, packed, columns, activations, rows, y + 64 * start, stride, accumulate, low, high)
    bias = get_i64(w + W.BIAS)
    if bias != 0:
        for row in range(rows):
            add_vector(y + row * stride + 64 * first, bias + 64 * first, 16 * (last - first))


@device
def quantise_row(w: int, count: int, x: int, row: int, rows: int, own: int) -> None:
    """Quantise row `row` of `rows`, at `x`, once for each kind of activation that `count` matrices from `w` need."""
    for _ in range(count):
        quantise = get_i64(w + W.QUANTISE)
        if quantise != 0:
            to = own + get_i64(w + W.PRIVATE_ACTIVATIONS) if rows == 1 else get_i64(w + W.ACTIVATIONS)
            call_quantise(quantise, x, 0, get_i64(w + W.COLUMNS), to, row, row + 1, rows)
        w += WEIGHT_NBYTES


@device(inline=False)
def prepare_row(p: int, w: int, count: int, x: int, norm: int, row: int, rows: int, thread: int) -> None:
    """Normalise (`norm` != 0) and quantise the row at `x` for the `count` matrices from `w` on."""
    own = private(p, thread)
    if norm != 0:
        rms_norm(x, norm, own + get_i64(p + S.PRIVATE_ROW), get_i64(w + W.COLUMNS), get_f32(p + S.EPSILON))
        x = own + get_i64(p + S.PRIVATE_ROW)
    quantise_row(w, count, x, row, rows, own)


@device
def row_of(x: int, stride: int, chosen: int, row: int) -> int:
    """Row `row` of those at `x`; with `chosen`, a table of numbers, the one whose number stands there."""
    return x + stride * (row if chosen == 0 else get_i64(chosen + 8 * row))


@device(inline=False)
def prepare(p: int, w: int, count: int, x: int, stride: int, chosen: int, norm: int, rows: int, thread: int) -> None:
    """A phase: `prepare_row` for each of many rows (see `row_of`). A single row is no phase of its own: every thread
    that claims groups does it for itself, which costs less than to wait for another."""
    if rows > 1:
        team = get_i64(p + S.TEAM)
        first, last = claim(team, thread, rows, 1)
        while first < last:
            for row in range(first, last):
                prepare_row(p, w, count, row_of(x, stride, chosen, row), norm, row, rows, thread)
            first, last = claim(team, thread, rows, 1)
        finish(team, thread, rows)


@device
def activations_of(p: int, w: int, rows: int, thread: int) -> int:
    """Where `prepare` put the activations of matrix `w`."""
    return private(p, thread) + get_i64(w + W.PRIVATE_ACTIVATIONS) if rows == 1 else get_i64(w + W.ACTIVATIONS)
