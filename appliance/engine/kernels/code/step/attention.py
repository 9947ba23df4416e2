"""Attention within the forward pass: keys and values into the cache, queries over it, by tiles or spans of tiles.

The phases of `step` between the projections of a block of the model; see there. What depends on the cache's format
is in kernels of its own, called by address: `remember`, `attend` and, where queries have 8 bits, `query`.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.kernels.code.attention import attention
from appliance.engine.kernels.code.rows.rope import rotate
from appliance.engine.kernels.code.step.lockstep import claim, finish
from appliance.engine.kernels.compiler import atomic
from appliance.engine.kernels.compiler.guard import CACHE, allowed
from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import (
    get_f32,
    get_i64,
    load_f32,
    pointer_call,
    set_i32,
    splat_f32,
    store_f32,
)
from appliance.engine.kernels.layouts.attention import BLOCK, SPAN, VALUES
from appliance.engine.kernels.layouts.step import COUNTER_NBYTES, READ, TILE_NBYTES, UNIT_NBYTES, WRITE, S, T, U

call_remember = pointer_call("void(i8,i8,i8,i8,i8,i8,i8)")
call_query = pointer_call("void(i8,i8,i8)")
call_attend = pointer_call(attention.SIGNATURE)


@device
def private(p: int, thread: int) -> int:
    """This thread's own memory."""
    return get_i64(p + S.PRIVATE) + thread * get_i64(p + S.PRIVATE_STRIDE)


@device
def cache_place(p: int, slot: int, layer: int, head: int) -> int:
    """Byte offset of a key-value head in the cache."""
    return slot * get_i64(p + S.SLOT_STRIDE) + layer * get_i64(p + S.LAYER_STRIDE) + head * get_i64(p + S.HEAD_STRIDE)


@device(inline=False)
def remember(p: int, layer: int, row: int, head: int) -> None:
    """Store the turned key and the value of one row and key-value head in the cache."""
    size = get_i64(p + S.HEAD_SIZE)
    position = get_i64(get_i64(p + S.POSITIONS) + 8 * row)
    place = cache_place(p, get_i64(get_i64(p + S.SLOTS) + 8 * row), layer, head)
    place += position // BLOCK * get_i64(p + S.BLOCK_STRIDE)
    key = get_i64(p + S.PROJECTED) + row * get_i64(p + S.PROJECTED_STRIDE) + 4 * size * (get_i64(p + S.HEADS) + head)
    value = key + 4 * size * get_i64(p + S.KV_HEADS)
    each = get_i64(p + S.HEAD_STRIDE)
    if not (allowed(p, CACHE, get_i64(p + S.KEYS) + place, each, WRITE)
            and allowed(p, CACHE, get_i64(p + S.VALUES) + place, each, WRITE)):
        return
    call_remember(get_i64(p + S.REMEMBER), key, value, get_i64(p + S.TURNS) + 4 * size * position,
                  get_i64(p + S.KEYS) + place, get_i64(p + S.VALUES) + place, position % BLOCK, size)


@device(inline=False)
def attend(p: int, query: int, state: int, rows: int, place: int, first: int, last: int, scratch: int,
           follow: int) -> None:
    """Add positions first..last-1 of the keys and values at `place` to the states of `rows` query rows. `follow`: bytes
    from the last of their blocks to the one that is wanted next; 0: not known."""
    stride = get_i64(p + S.BLOCK_STRIDE)
    reach = (last - 1) // BLOCK * stride + get_i64(p + S.HEAD_STRIDE)
    if (allowed(p, CACHE, get_i64(p + S.KEYS) + place, reach, READ)
            and allowed(p, CACHE, get_i64(p + S.VALUES) + place, reach, READ)):
        call_attend(get_i64(p + S.ATTEND), query, state, rows, get_i64(p + S.HEAD_SIZE), get_i64(p + S.KEYS) + place,
                    get_i64(p + S.VALUES) + place, stride, first, last, scratch, follow)


@device(inline=False)
def pack_queries(p: int, tile: int, head: int, query: int, state: int) -> int:
    """Turn and scale the query rows of a tile and key-value head into `query`; start their states. Returns rows."""
    size, group = get_i64(p + S.HEAD_SIZE), get_i64(p + S.HEADS) // get_i64(p + S.KV_HEADS)
    count, position = get_i64(tile + T.COUNT), get_i64(tile + T.POSITION)
    scale = splat_f32(get_f32(p + S.SCALE))
    for token in range(count):
        row = get_i64(tile + T.FIRST_ROW) + token
        source = get_i64(p + S.PROJECTED) + row * get_i64(p + S.PROJECTED_STRIDE) + 4 * size * group * head
        angles = get_i64(p + S.TURNS) + 4 * size * (position + token)
        for member in range(group):
            to = query + 4 * size * (token * group + member)
            for i in range(size // 16):
                x = load_f32(source + 4 * size * member + 64 * i)
                store_f32(to + 64 * i, rotate(x, load_f32(angles + 64 * i)) * scale)
            set_i32(state + (4 * size + VALUES) * (token * group + member) + 4, position + token)
    quantise = get_i64(p + S.QUERY_KERNEL)
    if quantise != 0:
        call_query(quantise, query, count * group, size)
    return count * group


@device(inline=False)
def remember_tile(p: int, layer: int, tile: int, head: int, first: int, last: int) -> None:
    """Where no other tile has this tile's slot: store what the tile adds to positions first..last-1 of a head."""
    if get_i64(p + S.APART) == 0:
        return
    position, row = get_i64(tile + T.POSITION), get_i64(tile + T.FIRST_ROW)
    for token in range(max(first - position, 0), min(last - position, get_i64(tile + T.COUNT))):
        remember(p, layer, row + token, head)


@device
def write_attended(p: int, row: int, head: int, state: int, size: int) -> None:
    """Write one finished query row."""
    to = get_i64(p + S.ATTENDED) + row * get_i64(p + S.ATTENDED_STRIDE) + 4 * size * head
    attention.finish(state, to, size)


@device(inline=False)
def attend_tile(p: int, layer: int, tile: int, head: int, thread: int) -> None:
    """All spans of one tile and key-value head, merged as they come."""
    own, size = private(p, thread), get_i64(p + S.HEAD_SIZE)
    group, spread = get_i64(p + S.HEADS) // get_i64(p + S.KV_HEADS), 4 * size + VALUES
    query, part, total = own + get_i64(p + S.PRIVATE_QUERY), own + get_i64(p + S.PRIVATE_PART), own + get_i64(
        p + S.PRIVATE_TOTAL)
    rows = pack_queries(p, tile, head, query, part)
    attention.start(total, rows, size)
    end = get_i64(tile + T.POSITION) + get_i64(tile + T.COUNT)
    place = cache_place(p, get_i64(tile + T.SLOT), layer, head)
    remember_tile(p, layer, tile, head, 0, end)
    for first in range(0, end, SPAN):
        attention.start(part, rows, size)
        attend(p, query, part, rows, place, first, min(first + SPAN, end), own + get_i64(p + S.PRIVATE_SCRATCH),
               get_i64(p + S.BLOCK_STRIDE) if first + SPAN < end else 0)
        for row in range(rows):
            attention.merge(total + spread * row, part + spread * row, size)
    for row in range(rows):
        write_attended(p, get_i64(tile + T.FIRST_ROW) + row // group, head * group + row % group,
                       total + spread * row, size)


@device(inline=False)
def attend_span(p: int, layer: int, tile: int, head: int, span: int, more: bool, thread: int) -> None:
    """One span of one tile and key-value head; its states stay in PARTS until `merge_tile`. `more`: the thread goes on
    with the next head, or the first one of the next span."""
    remember_tile(p, layer, tile, head, span * SPAN, span * SPAN + SPAN)
    own, size = private(p, thread), get_i64(p + S.HEAD_SIZE)
    query, part = own + get_i64(p + S.PRIVATE_QUERY), part_place(p, tile, head, span)
    rows = pack_queries(p, tile, head, query, part)
    attention.start(part, rows, size)
    end = get_i64(tile + T.POSITION) + get_i64(tile + T.COUNT)
    place = cache_place(p, get_i64(tile + T.SLOT), layer, head)
    last, follow = min(span * SPAN + SPAN, end), 0
    if more:
        heads, each, stride = get_i64(p + S.KV_HEADS), get_i64(p + S.HEAD_STRIDE), get_i64(p + S.BLOCK_STRIDE)
        blocks = (last - span * SPAN - 1) // BLOCK
        follow = each - blocks * stride if head + 1 < heads else stride - head * each
    attend(p, query, part, rows, place, span * SPAN, last, own + get_i64(p + S.PRIVATE_SCRATCH), follow)


@device
def part_place(p: int, tile: int, head: int, span: int) -> int:
    """Where the states of a tile's span and key-value head are kept."""
    heads = get_i64(p + S.KV_HEADS)
    rows = get_i64(tile + T.COUNT) * (get_i64(p + S.HEADS) // heads)
    each = 4 * get_i64(p + S.HEAD_SIZE) + VALUES
    return get_i64(p + S.PARTS) + each * (get_i64(tile + T.FIRST_PART) + rows * (span * heads + head))


@device(inline=False)
def merge_tile(p: int, tile: int, head: int, thread: int) -> None:
    """Merge the spans of one tile and key-value head, row by row."""
    size = get_i64(p + S.HEAD_SIZE)
    group, spread = get_i64(p + S.HEADS) // get_i64(p + S.KV_HEADS), 4 * size + VALUES
    total = private(p, thread) + get_i64(p + S.PRIVATE_TOTAL)
    count = get_i64(tile + T.COUNT)
    for row in range(count * group):
        attention.start(total, 1, size)
        for span in range(spans_of(tile)):
            attention.merge(total, part_place(p, tile, head, span) + spread * row, size)
        write_attended(p, get_i64(tile + T.FIRST_ROW) + row // group, head * group + row % group, total, size)


@device
def spans_of(tile: int) -> int:
    """Spans that a tile reads."""
    return (get_i64(tile + T.POSITION) + get_i64(tile + T.COUNT) + SPAN - 1) // SPAN


@device
def is_last_span(p: int, tile: int, number: int, head: int) -> bool:
    """Count a finished span of tile `number` and a head: whether it was the last. The counter is zero again then."""
    counter = get_i64(p + S.COUNTERS) + COUNTER_NBYTES * (number * get_i64(p + S.KV_HEADS) + head)
    if atomic.add(counter, np.int32(1)) + 1 < spans_of(tile):
        return False
    atomic.store(counter, 0)
    return True


@device
def remember_rows(p: int, layer: int, rows: int, thread: int) -> None:
    """A phase: store keys and values of all rows."""
    team, heads = get_i64(p + S.TEAM), get_i64(p + S.KV_HEADS)
    first, last = claim(team, thread, rows * heads, 4)
    while first < last:
        for unit in range(first, last):
            remember(p, layer, unit // heads, unit % heads)
        first, last = claim(team, thread, rows * heads, 4)
    finish(team, thread, rows * heads)


@device
def attend_tiles(p: int, layer: int, thread: int) -> None:
    """A phase: whole tiles."""
    team, heads, table = get_i64(p + S.TEAM), get_i64(p + S.KV_HEADS), get_i64(p + S.TILE_TABLE)
    total = get_i64(p + S.TILES) * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            attend_tile(p, layer, table + TILE_NBYTES * (unit // heads), unit % heads, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device
def attend_spans(p: int, layer: int, thread: int) -> None:
    """A phase: spans of tiles; whoever does the last one of a tile and head merges them."""
    team, heads, table = get_i64(p + S.TEAM), get_i64(p + S.KV_HEADS), get_i64(p + S.TILE_TABLE)
    total = get_i64(p + S.UNITS) * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for job in range(first, last):
            unit, head = get_i64(p + S.UNIT_TABLE) + UNIT_NBYTES * (job // heads), job % heads
            number = get_i64(unit + U.UNIT_TILE)
            tile = table + TILE_NBYTES * number
            attend_span(p, layer, tile, head, get_i64(unit + U.UNIT_SPAN), job + 1 < last, thread)
            if is_last_span(p, tile, number, head):
                merge_tile(p, tile, head, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def attend_rows(p: int, layer: int, rows: int, thread: int) -> None:
    """Store keys and values, then attend: whole tiles where there are many, spans of tiles where there are few.

    Where every tile has a slot of its own, who attends stores too: nobody else reads there in this pass."""
    if get_i64(p + S.APART) == 0:
        remember_rows(p, layer, rows, thread)
    if get_i64(p + S.SPREAD) == 0:
        attend_tiles(p, layer, thread)
    else:
        attend_spans(p, layer, thread)
