"""Attention within the forward pass: keys and values into the cache; queries over it, by bundles of
rows or by spans.

The phases of `step` between the projections of a layer; see there. The parts that depend on the
cache's format are in kernels of their own, called by address: `remember`, `attend` and, where
queries have 8 bits, `query`.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.kernels.code.attention import attention
from appliance.engine.kernels.code.rows.rope import rotate
from appliance.engine.kernels.code.step.lockstep import claim, finish
from appliance.engine.kernels.compiler import atomic
from appliance.engine.kernels.compiler.guard import CACHE, allowed
from appliance.engine.kernels.compiler.jit import DEBUG, device
from appliance.engine.kernels.compiler.vector import (
    load_f32,
    pointer_call,
    set_i32,
    splat_f32,
    store_f32,
)
from appliance.engine.kernels.layouts.attention import PAGE, SPAN, VALUES
from appliance.engine.kernels.layouts.step import COUNTER_NBYTES, READ, WRITE, Bundle, Step
from appliance.engine.kernels.layouts.tables import Numbers

call_remember = pointer_call("void(i8,i8,i8,i8,i8,i8,i8)")
call_query = pointer_call("void(i8,i8,i8)")
call_attend = pointer_call(attention.SIGNATURE)


@device
def private(step: Step, thread: int) -> int:
    """This thread's own memory."""
    return step.PRIVATE + thread * step.PRIVATE_STRIDE


@device
def head_place(step: Step, layer: int, head: int) -> int:
    """Byte offset of a key-value head in a page."""
    return layer * step.LAYER_STRIDE + head * step.HEAD_STRIDE


@device
def pages_of(step: Step, slot: int) -> Numbers:
    """The byte offset of each page of a slot in the cache, in order of positions."""
    return Numbers(step.PAGES + slot * step.PAGES_STRIDE)


@device(inline=False)
def remember(step: Step, layer: int, row: int, head: int) -> None:
    """Store the turned key and the value of one row and key-value head in the cache."""
    size = step.HEAD_SIZE
    position = step.POSITIONS[row]
    place = pages_of(step, step.SLOTS[row])[position // PAGE] + head_place(step, layer, head)
    key = step.PROJECTED + row * step.PROJECTED_STRIDE + 4 * size * (step.HEADS + head)
    value = key + 4 * size * step.KV_HEADS
    each = step.HEAD_STRIDE
    if not (allowed(step, CACHE, step.KEYS + place, each, WRITE)
            and allowed(step, CACHE, step.VALUES + place, each, WRITE)):
        return
    call_remember(step.REMEMBER, key, value, step.TURNS + 4 * size * position,
                  step.KEYS + place, step.VALUES + place, position % PAGE, size)


@device
def readable(step: Step, pages: Numbers, place: int, first: int, last: int) -> bool:
    """Whether a head's keys and values of positions first..last-1 may be read; a debug build asks.
    """
    if DEBUG:
        for page in range(first // PAGE, (last + PAGE - 1) // PAGE):
            offset = pages[page] + place
            if not (allowed(step, CACHE, step.KEYS + offset, step.HEAD_STRIDE, READ)
                    and allowed(step, CACHE, step.VALUES + offset, step.HEAD_STRIDE, READ)):
                return False
    return True


@device(inline=False)
def attend(step: Step, query: int, state: int, rows: int, pages: Numbers, place: int, first: int, last: int,
           scratch: int, follow: int) -> None:
    """Add positions first..last-1 of the keys and values at `place` in `pages` to the states of
    `rows` query rows. `follow`: bytes from the last of their pages to the one that is read next; 0:
    not known."""
    if readable(step, pages, place, first, last):
        call_attend(step.ATTEND, query, state, rows, step.HEAD_SIZE, step.KEYS + place,
                    step.VALUES + place, pages, first, last, scratch, follow)


@device(inline=False)
def pack_queries(step: Step, bundle: Bundle, head: int, query: int, state: int) -> int:
    """Turn and scale the query rows of a bundle and key-value head into `query`; start their
    states. Returns rows."""
    size, group = step.HEAD_SIZE, step.HEADS // step.KV_HEADS
    count, position = bundle.COUNT, bundle.POSITION
    scale = splat_f32(step.SCALE)
    for token in range(count):
        row = bundle.FIRST_ROW + token
        source = step.PROJECTED + row * step.PROJECTED_STRIDE + 4 * size * group * head
        angles = step.TURNS + 4 * size * (position + token)
        for member in range(group):
            to = query + 4 * size * (token * group + member)
            for i in range(size // 16):
                x = load_f32(source + 4 * size * member + 64 * i)
                store_f32(to + 64 * i, rotate(x, load_f32(angles + 64 * i)) * scale)
            set_i32(state + (4 * size + VALUES) * (token * group + member) + 4, position + token)
    quantise = step.QUERY_KERNEL
    if quantise != 0:
        call_query(quantise, query, count * group, size)
    return count * group


@device(inline=False)
def remember_bundle(step: Step, layer: int, bundle: Bundle, head: int, first: int, last: int) -> None:
    """Where no other bundle has this bundle's slot: store what the bundle adds to positions
    first..last-1 of a head."""
    if step.APART == 0:
        return
    position, row = bundle.POSITION, bundle.FIRST_ROW
    for token in range(max(first - position, 0), min(last - position, bundle.COUNT)):
        remember(step, layer, row + token, head)


@device
def write_attended(step: Step, row: int, head: int, state: int, size: int) -> None:
    """Write one finished query row."""
    to = step.ATTENDED + row * step.ATTENDED_STRIDE + 4 * size * head
    attention.finish(state, to, size)


@device(inline=False)
def attend_bundle(step: Step, layer: int, bundle: Bundle, head: int, thread: int) -> None:
    """All spans of one bundle and key-value head, merged as they come."""
    own, size = private(step, thread), step.HEAD_SIZE
    group, spread = step.HEADS // step.KV_HEADS, 4 * size + VALUES
    query, part, total = own + step.PRIVATE_QUERY, own + step.PRIVATE_PART, own + step.PRIVATE_TOTAL
    rows = pack_queries(step, bundle, head, query, part)
    attention.start(total, rows, size)
    end = bundle.POSITION + bundle.COUNT
    pages, place = pages_of(step, bundle.SLOT), head_place(step, layer, head)
    remember_bundle(step, layer, bundle, head, 0, end)
    for first in range(0, end, SPAN):
        attention.start(part, rows, size)
        last, follow = min(first + SPAN, end), 0
        if last < end:
            follow = pages[last // PAGE] - pages[last // PAGE - 1]
        attend(step, query, part, rows, pages, place, first, last, own + step.PRIVATE_SCRATCH, follow)
        for row in range(rows):
            attention.merge(total + spread * row, part + spread * row, size)
    for row in range(rows):
        write_attended(step, bundle.FIRST_ROW + row // group, head * group + row % group,
                       total + spread * row, size)


@device(inline=False)
def attend_span(step: Step, layer: int, bundle: Bundle, head: int, span: int, more: bool, thread: int) -> None:
    """One span of one bundle and key-value head; its states stay in PARTS until `merge_bundle`.
    `more`: the thread goes on with the next head, or the first one of the next span."""
    remember_bundle(step, layer, bundle, head, span * SPAN, span * SPAN + SPAN)
    own, size = private(step, thread), step.HEAD_SIZE
    query, part = own + step.PRIVATE_QUERY, part_place(step, bundle, head, span)
    rows = pack_queries(step, bundle, head, query, part)
    attention.start(part, rows, size)
    end = bundle.POSITION + bundle.COUNT
    pages, place = pages_of(step, bundle.SLOT), head_place(step, layer, head)
    last, follow = min(span * SPAN + SPAN, end), 0
    if more:
        page = (last - 1) // PAGE
        if head + 1 < step.KV_HEADS:
            follow = pages[span * (SPAN // PAGE)] - pages[page] + step.HEAD_STRIDE
        elif last < end:
            follow = pages[page + 1] - pages[page] - head * step.HEAD_STRIDE
    attend(step, query, part, rows, pages, place, span * SPAN, last, own + step.PRIVATE_SCRATCH, follow)


@device
def part_place(step: Step, bundle: Bundle, head: int, span: int) -> int:
    """Where the states of a bundle's span and key-value head are kept."""
    heads = step.KV_HEADS
    rows = bundle.COUNT * (step.HEADS // heads)
    each = 4 * step.HEAD_SIZE + VALUES
    return step.PARTS + each * (bundle.FIRST_PART + rows * (span * heads + head))


@device(inline=False)
def merge_bundle(step: Step, bundle: Bundle, head: int, thread: int) -> None:
    """Merge the spans of one bundle and key-value head, row by row."""
    size = step.HEAD_SIZE
    group, spread = step.HEADS // step.KV_HEADS, 4 * size + VALUES
    total = private(step, thread) + step.PRIVATE_TOTAL
    count = bundle.COUNT
    for row in range(count * group):
        attention.start(total, 1, size)
        for span in range(spans_of(bundle)):
            attention.merge(total, part_place(step, bundle, head, span) + spread * row, size)
        write_attended(step, bundle.FIRST_ROW + row // group, head * group + row % group, total, size)


@device
def spans_of(bundle: Bundle) -> int:
    """Spans that a bundle reads."""
    return (bundle.POSITION + bundle.COUNT + SPAN - 1) // SPAN


@device
def is_last_span(step: Step, bundle: Bundle, number: int, head: int) -> bool:
    """Count a finished span of bundle `number` and a head: whether it was the last. The counter is
    zero again then."""
    counter = step.COUNTERS + COUNTER_NBYTES * (number * step.KV_HEADS + head)
    if atomic.add(counter, np.int32(1)) + 1 < spans_of(bundle):
        return False
    atomic.store(counter, 0)
    return True


@device
def remember_rows(step: Step, layer: int, rows: int, thread: int) -> None:
    """A phase: store keys and values of all rows."""
    team, heads = step.TEAM, step.KV_HEADS
    first, last = claim(team, thread, rows * heads, 4)
    while first < last:
        for unit in range(first, last):
            remember(step, layer, unit // heads, unit % heads)
        first, last = claim(team, thread, rows * heads, 4)
    finish(team, thread, rows * heads)


@device
def attend_bundles(step: Step, layer: int, thread: int) -> None:
    """A phase: whole bundles."""
    team, heads, table = step.TEAM, step.KV_HEADS, step.BUNDLES
    total = step.BUNDLE_COUNT * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for unit in range(first, last):
            attend_bundle(step, layer, table[unit // heads], unit % heads, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device
def attend_spans(step: Step, layer: int, thread: int) -> None:
    """A phase: spans of bundles; whoever does the last one of a bundle and head merges them."""
    team, heads, table = step.TEAM, step.KV_HEADS, step.BUNDLES
    total = step.UNIT_COUNT * heads
    first, last = claim(team, thread, total, 1)
    while first < last:
        for job in range(first, last):
            unit, head = step.UNITS[job // heads], job % heads
            number = unit.BUNDLE
            bundle = table[number]
            attend_span(step, layer, bundle, head, unit.SPAN, job + 1 < last, thread)
            if is_last_span(step, bundle, number, head):
                merge_bundle(step, bundle, head, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def attend_rows(step: Step, layer: int, rows: int, thread: int) -> None:
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
