"""Attention within the forward pass: keys and values into the cache; queries over it, by bundles of
rows or by spans.

The phases of `step` between the projections of a layer; see there. The parts that depend on the
cache's format are in kernels of their own, called by address: `remember`, `attend` and, where
queries have 8 bits, `query`.
"""

from __future__ import annotations

import numpy as np

from appliance.kernels.code.attention import attention
from appliance.kernels.code.rows.norm import normalise
from appliance.kernels.code.rows.rope import scale_of, turn_head
from appliance.kernels.code.rows.scores import sigmoid
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.compiler import atomic
from appliance.kernels.compiler.guard import CACHE, allowed
from appliance.kernels.compiler.jit import DEBUG, device
from appliance.kernels.compiler.vector import get_f32, load_f32, pointer_call, set_i32, store_f32
from appliance.kernels.layouts.attention import FIRST, PAGE, POSITION, SPAN, VALUES
from appliance.kernels.layouts.step import COUNTER_NBYTES, READ, WRITE, Attention, Bundle, Norm, Step
from appliance.kernels.layouts.tables import Numbers

call_remember = pointer_call("void(i8,i8,i8,i8,i8,i8)")
call_query = pointer_call("void(i8,i8,i8)")
call_attend = pointer_call(attention.SIGNATURE)


@device
def private(step: Step, thread: int) -> int:
    """This thread's own memory."""
    return step.PRIVATE + thread * step.PRIVATE_STRIDE


@device
def head_place(layer: Attention, head: int) -> int:
    """Byte offset of a head's keys in a page."""
    return layer.PLACE + head * layer.HEAD_STRIDE


@device
def value_place(layer: Attention, head: int) -> int:
    """Byte offset of a head's values among those of a page."""
    return layer.VALUE_PLACE + head * layer.VALUE_STRIDE


@device
def pages_of(step: Step, slot: int) -> Numbers:
    """The byte offset of each page of a slot in the cache, in order of positions."""
    return Numbers(step.PAGES + slot * step.PAGES_STRIDE)


@device
def shape_head(step: Step, layer: Attention, norm: Norm, x: int, to: int, position: int, scale: float,
               own: int) -> None:
    """A head of a query or key at `x`: normalised, turned and scaled, to `to`."""
    if norm.KIND != 0:
        normalise(x, norm, own + step.PRIVATE_ROW, layer.HEAD_SIZE, step.EPSILON)
        x = own + step.PRIVATE_ROW
    turn_head(layer, x, to, position, scale)


@device(inline=False)
def remember(step: Step, layer: Attention, row: int, head: int, own: int) -> None:
    """Store the key and the value of one row and key-value head in the cache."""
    size = layer.HEAD_SIZE
    position = step.POSITIONS[row]
    page = pages_of(step, step.SLOTS[row])[position // PAGE]
    to_key, to_value = step.KEYS + page + head_place(layer, head), step.VALUES + page + value_place(layer, head)
    key = step.PROJECTED + row * step.PROJECTED_STRIDE + layer.KEY + 4 * size * head
    value = key + layer.VALUE
    if not (allowed(step, CACHE, to_key, layer.HEAD_STRIDE, WRITE)
            and allowed(step, CACHE, to_value, layer.VALUE_STRIDE, WRITE)):
        return
    to = own + step.PRIVATE_HEAD
    shape_head(step, layer, layer.KEY_NORM, key, to, position, np.float32(1.0), own)
    if layer.VALUE_NORM.KIND != 0:
        normalise(value, layer.VALUE_NORM, to + 4 * size, size, step.EPSILON)
        value = to + 4 * size
    call_remember(step.REMEMBER, to, value, to_key, to_value, position % PAGE, size)


@device
def readable(step: Step, layer: Attention, pages: Numbers, keys: int, values: int, first: int, last: int) -> bool:
    """Whether a head's keys and values of positions first..last-1 may be read; a debug build asks.
    """
    if DEBUG:
        for page in range(first // PAGE, (last + PAGE - 1) // PAGE):
            if not (allowed(step, CACHE, keys + pages[page], layer.HEAD_STRIDE, READ)
                    and allowed(step, CACHE, values + pages[page], layer.VALUE_STRIDE, READ)):
                return False
    return True


@device(inline=False)
def attend(step: Step, layer: Attention, query: int, state: int, rows: int, pages: Numbers, head: int, first: int,
           last: int, scratch: int, follow: int) -> None:
    """Add positions first..last-1 of the keys and values of `head` in `pages` to the states of
    `rows` query rows. `follow`: bytes from the last of their pages to the one that is read next; 0:
    not known."""
    keys, values = step.KEYS + head_place(layer, head), step.VALUES + value_place(layer, head)
    if readable(step, layer, pages, keys, values, first, last):
        call_attend(step.ATTEND, query, state, rows, layer.HEAD_SIZE, keys, values, pages, first, last, scratch, follow)


@device
def first_seen(layer: Attention, position: int) -> int:
    """The first position that a row at `position` sees."""
    window = layer.WINDOW
    return 0 if window == 0 else max(0, position + 1 - window)


@device
def group_of(layer: Attention) -> int:
    """Query heads that share a key-value head."""
    return layer.HEADS // layer.KV_HEADS


@device
def query_nbytes(layer: Attention) -> int:
    """Bytes of a head of a query, with its gate if there is one."""
    return 4 * layer.HEAD_SIZE * (1 + layer.GATED)


@device
def query_place(step: Step, layer: Attention, row: int, head: int) -> int:
    """Where a head of a row's query is."""
    return step.PROJECTED + row * step.PROJECTED_STRIDE + query_nbytes(layer) * head


@device(inline=False)
def pack_queries(step: Step, layer: Attention, bundle: Bundle, head: int, query: int, state: int, own: int) -> int:
    """Shape the query rows of a bundle and key-value head into `query`; start their states. Returns
    rows."""
    size, group, count = layer.HEAD_SIZE, group_of(layer), bundle.COUNT
    for token in range(count):
        row, position = bundle.FIRST_ROW + token, bundle.POSITION + token
        source = query_place(step, layer, row, group * head)
        scale = scale_of(layer, position)
        for member in range(group):
            number = token * group + member
            shape_head(step, layer, layer.QUERY_NORM, source + query_nbytes(layer) * member, query + 4 * size * number,
                       position, scale, own)
            place = state + (4 * size + VALUES) * number
            set_i32(place + POSITION, position)
            set_i32(place + FIRST, first_seen(layer, position))
    quantise = step.QUERY_KERNEL
    if quantise != 0:
        call_query(quantise, query, count * group, size)
    return count * group


@device(inline=False)
def remember_bundle(step: Step, layer: Attention, bundle: Bundle, head: int, first: int, last: int,
                    own: int) -> None:
    """Where no other bundle has this bundle's slot: store what the bundle adds to positions
    first..last-1 of a head."""
    if step.APART == 0:
        return
    position, row = bundle.POSITION, bundle.FIRST_ROW
    for token in range(max(first - position, 0), min(last - position, bundle.COUNT)):
        remember(step, layer, row + token, head, own)


@device
def start_total(layer: Attention, head: int, number: int, total: int) -> None:
    """Start the total of query row `number` of a bundle and key-value head: from nothing, or from
    the sink of its query head."""
    attention.start(total, 1, layer.HEAD_SIZE)
    if layer.SINKS != 0:
        group = group_of(layer)
        attention.sink(total, get_f32(layer.SINKS + 4 * (head * group + number % group)))


@device
def write_attended(step: Step, layer: Attention, row: int, head: int, state: int) -> None:
    """Write one finished query row, as much of it as its gate lets through."""
    size = layer.HEAD_SIZE
    to = step.ATTENDED + row * step.ATTENDED_STRIDE + 4 * size * head
    attention.finish(state, to, size)
    if layer.GATED != 0:
        gate = query_place(step, layer, row, head) + 4 * size
        for at in range(0, 4 * size, 64):
            store_f32(to + at, load_f32(to + at) * sigmoid(load_f32(gate + at)))


@device(inline=False)
def attend_bundle(step: Step, layer: Attention, bundle: Bundle, head: int, thread: int) -> None:
    """All spans of one bundle and key-value head, merged as they come. Spans and pages that none of
    its rows sees are left out, which changes no bit."""
    own, size = private(step, thread), layer.HEAD_SIZE
    group, spread = group_of(layer), 4 * size + VALUES
    query, part, total = own + step.PRIVATE_QUERY, own + step.PRIVATE_PART, own + step.PRIVATE_TOTAL
    rows = pack_queries(step, layer, bundle, head, query, part, own)
    for row in range(rows):
        start_total(layer, head, row, total + spread * row)
    end, begin = bundle.POSITION + bundle.COUNT, first_seen(layer, bundle.POSITION) // PAGE * PAGE
    pages = pages_of(step, bundle.SLOT)
    remember_bundle(step, layer, bundle, head, 0, end, own)
    for first in range(begin // SPAN * SPAN, end, SPAN):
        attention.start(part, rows, size)
        last, follow = min(first + SPAN, end), 0
        if last < end:
            follow = pages[last // PAGE] - pages[last // PAGE - 1]
        attend(step, layer, query, part, rows, pages, head, max(first, begin), last, own + step.PRIVATE_SCRATCH,
               follow)
        for row in range(rows):
            attention.merge(total + spread * row, part + spread * row, size)
    for row in range(rows):
        write_attended(step, layer, bundle.FIRST_ROW + row // group, head * group + row % group, total + spread * row)


@device(inline=False)
def attend_span(step: Step, layer: Attention, bundle: Bundle, head: int, span: int, more: bool, thread: int) -> None:
    """One span of one bundle and key-value head; its states stay in PARTS until `merge_bundle`.
    `more`: the thread goes on with the next head, or the first one of the next span."""
    own, size = private(step, thread), layer.HEAD_SIZE
    remember_bundle(step, layer, bundle, head, span * SPAN, span * SPAN + SPAN, own)
    query, part = own + step.PRIVATE_QUERY, part_place(step, layer, bundle, head, span)
    rows = pack_queries(step, layer, bundle, head, query, part, own)
    attention.start(part, rows, size)
    end, begin = bundle.POSITION + bundle.COUNT, first_seen(layer, bundle.POSITION) // PAGE * PAGE
    pages = pages_of(step, bundle.SLOT)
    first, last, follow = max(span * SPAN, begin), min(span * SPAN + SPAN, end), 0
    if first >= last:
        return
    if more:
        page = (last - 1) // PAGE
        if head + 1 < layer.KV_HEADS:
            follow = pages[first // PAGE] - pages[page] + layer.HEAD_STRIDE
        elif last < end:
            follow = pages[page + 1] - pages[page] - head * layer.HEAD_STRIDE
    attend(step, layer, query, part, rows, pages, head, first, last, own + step.PRIVATE_SCRATCH, follow)


@device
def part_place(step: Step, layer: Attention, bundle: Bundle, head: int, span: int) -> int:
    """Where the states of a bundle's span and key-value head are kept."""
    heads = layer.KV_HEADS
    rows = bundle.COUNT * group_of(layer)
    each = 4 * layer.HEAD_SIZE + VALUES
    return step.PARTS + each * (bundle.FIRST_PART + rows * (span * heads + head))


@device(inline=False)
def merge_bundle(step: Step, layer: Attention, bundle: Bundle, head: int, thread: int) -> None:
    """Merge the spans of one bundle and key-value head, row by row."""
    size = layer.HEAD_SIZE
    group, spread = group_of(layer), 4 * size + VALUES
    total = private(step, thread) + step.PRIVATE_TOTAL
    count = bundle.COUNT
    for row in range(count * group):
        start_total(layer, head, row, total)
        for span in range(spans_of(bundle)):
            attention.merge(total, part_place(step, layer, bundle, head, span) + spread * row, size)
        write_attended(step, layer, bundle.FIRST_ROW + row // group, head * group + row % group, total)


@device
def spans_of(bundle: Bundle) -> int:
    """Spans that a bundle reads."""
    return (bundle.POSITION + bundle.COUNT + SPAN - 1) // SPAN


@device
def is_last_span(step: Step, layer: Attention, bundle: Bundle, number: int, head: int) -> bool:
    """Count a finished span of bundle `number` and a head: whether it was the last. The counter is
    zero again then."""
    counter = step.COUNTERS + COUNTER_NBYTES * (number * layer.KV_HEADS + head)
    if atomic.add(counter, np.int32(1)) + 1 < spans_of(bundle):
        return False
    atomic.store(counter, 0)
    return True


@device
def remember_rows(step: Step, layer: Attention, rows: int, thread: int) -> None:
    """A phase: store keys and values of all rows."""
    team, heads, own = step.TEAM, layer.KV_HEADS, private(step, thread)
    first, last = claim(team, thread, rows * heads, 4)
    while first < last:
        for unit in range(first, last):
            remember(step, layer, unit // heads, unit % heads, own)
        first, last = claim(team, thread, rows * heads, 4)
    finish(team, thread, rows * heads)


@device
def attend_bundles(step: Step, layer: Attention, thread: int) -> None:
    """A phase: whole bundles."""
    team, heads, table = step.TEAM, layer.KV_HEADS, step.BUNDLES
    total = step.BUNDLE_COUNT * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            attend_bundle(step, layer, table[unit // heads], unit % heads, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device
def attend_spans(step: Step, layer: Attention, thread: int) -> None:
    """A phase: spans of bundles; whoever does the last one of a bundle and head merges them."""
    team, heads, table = step.TEAM, layer.KV_HEADS, step.BUNDLES
    total = step.UNIT_COUNT * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for job in range(first, last):
            unit, head = step.UNITS[job // heads], job % heads
            number = unit.BUNDLE
            bundle = table[number]
            attend_span(step, layer, bundle, head, unit.SPAN, job + 1 < last, thread)
            if is_last_span(step, layer, bundle, number, head):
                merge_bundle(step, layer, bundle, head, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def attend_rows(step: Step, layer: Attention, rows: int, thread: int) -> None:
    """Store keys and values, then attend: whole bundles where there are many, spans of bundles
    where there are few.

    Where every bundle has a slot of its own, who attends stores too: nobody else reads there in
    this pass."""
    if step.APART == 0:
        remember_rows(step, layer, rows, thread)
    if step.SPREAD == 0:
        attend_bundles(step, layer, thread)
    else:
        attend_spans(step, layer, thread)
