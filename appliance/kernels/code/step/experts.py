"""The feed-forward network of a layer with experts: which ones a row chooses, their products, and
the sum of what they give.

Rows of a pass that chose the same expert are multiplied with it together. Each pair of a row and an
expert has a row in EXPANDED and one in MIXED, and those of an expert lie together. A single row has
no phase for choosing. Every thread does that for itself, in each phase, which costs less than to
wait for another.

Where nobody may see which experts a row chooses, each row goes through all of them, a few experts
at a time: as many as EXPANDED and MIXED have room for. The sums then take the chosen ones, by
masks, and have the same bits. Such a pass reads and writes the same memory in the same order,
whatever its rows choose.
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.kernels.code.rows.activation import activate
from appliance.kernels.code.rows.norm import normalise
from appliance.kernels.code.rows.scores import blend, choose, dot, padded, scale_vector, sigmoid_of, spread
from appliance.kernels.code.step.attention import private
from appliance.kernels.code.step.lockstep import claim, finish
from appliance.kernels.code.step.matrix import (
    Job,
    Matrices,
    Result,
    call_fetch,
    call_quantise,
    multiply,
    prepare_row,
    unit_groups,
    units_of,
    whole_tiles,
)
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.records import record
from appliance.kernels.compiler.vector import (
    f32,
    fma_f32,
    get_f32,
    get_i32,
    load_f32,
    load_i32,
    set_i64,
    splat_f32,
    splat_i32,
    store_f32,
    store_i32,
)
from appliance.kernels.layouts.step import EXPAND_CHOSEN, Choice, ExpertLayer, Op, Step, Weight

FEW = 8
"""With more rows, experts have unlike numbers of them, and threads end together if they claim little at a time."""

CHUNK = 8
"""Groups of an expert's matrix that one unit of work is then."""

GRAIN = 4096
"""Columns times groups of weights that a single row's units are claimed by, see `matrix.GRAIN`."""

PIECE, SHORT = 1024, 256
"""Floats of a row that one unit of work is where rows are added; of a single row."""


@record
@dataclass(frozen=True)
class Band:
    """The rows of a pass, and the experts that all of them go through."""

    rows: int
    first: int
    count: int  # 0: each row goes through its chosen experts


@device
def own_choices(step: Step, experts: ExpertLayer, thread: int) -> Choice:
    """The experts of a pass of a single row, in this thread's own memory."""
    own = private(step, thread)
    choices = Choice(own + step.PRIVATE_CHOICES)
    choose(experts, step.ROUTED, own + step.PRIVATE_SCORES, choices)
    for index in range(experts.USED):
        choices[index].PAIR = index
    return choices


@device
def choices_of(step: Step, experts: ExpertLayer, row: int) -> Choice:
    """The experts of a row, of many."""
    return step.CHOICES[row * experts.USED]


@device(inline=False)
def order_pairs(step: Step, experts: ExpertLayer, rows: int) -> None:
    """Give each pair of a row and an expert its number: by experts, and then by rows."""
    loads, choices, active, pairs = step.LOADS, step.CHOICES, step.ACTIVE, rows * experts.USED
    for expert in range(experts.COUNT):
        loads[expert].ROWS = 0
    for pair in range(pairs):
        load = loads[choices[pair].EXPERT]
        load.ROWS = load.ROWS + 1
    first, count = 0, 0
    for expert in range(experts.COUNT):
        load = loads[expert]
        load.FIRST = first
        first += load.ROWS
        if load.ROWS > 0:
            count += 1
            set_i64(active + 8 * count, expert)
        load.ROWS = 0
    set_i64(active, count)
    for pair in range(pairs):
        load = loads[choices[pair].EXPERT]
        choices[pair].PAIR = load.FIRST + load.ROWS
        load.ROWS = load.ROWS + 1


@device(inline=False)
def choose_rows(step: Step, op: Op, band: Band, thread: int) -> None:
    """Two phases: the experts of each row, and the numbers of pairs. None for a single row, nor
    where rows go through all experts."""
    rows = band.rows
    if rows == 1 or band.count > 0:
        return
    team, experts, own = step.TEAM, op.EXPERTS, private(step, thread)
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            choose(experts, op.X + row * op.X_STRIDE, own + step.PRIVATE_SCORES, choices_of(step, experts, row))
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)
    first, last = claim(team, thread, 1, 1)
    if first < last:
        order_pairs(step, experts, rows)
    finish(team, thread, 1)


@device
def reads_pairs(step: Step, op: Op) -> bool:
    """Whether an operation reads a row of each pair of a row and an expert, not one of each row."""
    return op.X == step.EXPANDED


@device
def copy_row(weight: Weight, own: int, to: int, row: int, rows: int) -> None:
    """Put activations at `own` as row `row` of `rows` to `to`, where rows lie by blocks."""
    each = weight.BLOCK_NBYTES
    for block in range(weight.TOKEN_NBYTES // each):
        place = to + (block * rows + row) * each
        for at in range(0, each, 64):
            store_i32(place + at, load_i32(own + block * each + at))


@device(inline=False)
def share_row(step: Step, op: Op, row: int, thread: int) -> None:
    """Normalise and quantise a row, and give it to each of its experts."""
    both, choices, own = Matrices(op.WEIGHTS, op.COUNT), choices_of(step, op.EXPERTS, row), private(step, thread)
    prepare_row(step, both, op.X + row * op.X_STRIDE, op.NORM, 0, 1, thread)
    for index in range(op.EXPERTS.USED):
        pair, load = choices[index].PAIR, step.LOADS[choices[index].EXPERT]
        for number in range(both.number):
            weight = both.first[number]
            if weight.QUANTISE != 0:
                copy_row(weight, own + weight.PRIVATE_ACTIVATIONS,
                         weight.ACTIVATIONS + load.FIRST * weight.TOKEN_NBYTES, pair - load.FIRST, load.ROWS)


@device(inline=False)
def quantise_pairs(step: Step, op: Op, row: int) -> None:
    """Quantise the hidden rows of a row's experts."""
    choices, weight = choices_of(step, op.EXPERTS, row), op.WEIGHTS
    for index in range(op.EXPERTS.USED):
        pair, load = choices[index].PAIR, step.LOADS[choices[index].EXPERT]
        call_quantise(weight.QUANTISE, op.X + pair * op.X_STRIDE, 0, weight.COLUMNS,
                      weight.ACTIVATIONS + load.FIRST * weight.TOKEN_NBYTES, pair - load.FIRST,
                      pair - load.FIRST + 1, load.ROWS)


@device(inline=False)
def prepare_all(step: Step, op: Op, band: Band, thread: int) -> None:
    """A phase: what all experts get of each row, or of each one's hidden rows, quantised."""
    team, rows, both, weight = step.TEAM, band.rows, Matrices(op.WEIGHTS, op.COUNT), op.WEIGHTS
    total = band.count if reads_pairs(step, op) else rows
    first, last = claim(team, thread, total, 1)
    while first < last:
        for index in range(first, last):
            if reads_pairs(step, op):
                call_quantise(weight.QUANTISE, op.X + index * rows * op.X_STRIDE, op.X_STRIDE, weight.COLUMNS,
                              weight.ACTIVATIONS + index * rows * weight.TOKEN_NBYTES, 0, rows, rows)
            else:
                prepare_row(step, both, op.X + index * op.X_STRIDE, op.NORM, index, rows, thread)
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def prepare_pairs(step: Step, op: Op, band: Band, thread: int) -> None:
    """A phase: what experts get of each of many rows, quantised."""
    if band.count > 0:
        prepare_all(step, op, band, thread)
        return
    team, rows = step.TEAM, band.rows
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            if reads_pairs(step, op):
                quantise_pairs(step, op, row)
            else:
                share_row(step, op, row, thread)
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)


@device
def expert_at(step: Step, choices: Choice, index: int, band: Band) -> int:
    """The number of an expert, by its place among the experts of the pass."""
    if band.count > 0:
        return band.first + index
    return choices[index].EXPERT if band.rows == 1 else step.ACTIVE[1 + index]


@device
def experts_of(step: Step, experts: ExpertLayer, band: Band) -> int:
    """How many experts rows go through."""
    if band.count > 0:
        return band.count
    return experts.USED if band.rows == 1 else step.ACTIVE[0]


@device
def place_of(step: Step, experts: ExpertLayer, choices: Choice, expert: int, band: Band) -> int:
    """The place of an expert among those chosen; -1 where it is not one of them."""
    for index in range(experts_of(step, experts, band)):
        if expert_at(step, choices, index, band) == expert:
            return index
    return -1


@device
def all_visited(matrices: Matrices) -> bool:
    """Whether units of work are those of all experts, chosen or not."""
    for index in range(matrices.number):
        if matrices.first[index].VISITED != 0:
            return True
    return False


@device(inline=False)
def pass_by(matrices: Matrices, expert: int, low: int, high: int, thread: int) -> None:
    """Ask for the tiles of an expert that no row chose, as if one had: groups low..high-1."""
    for index in range(matrices.number):
        weight = matrices.first[index]
        size = weight.TILE_GROUPS
        if weight.VISITED != 0:
            for tile in range(low // size, (high + size - 1) // size):
                call_fetch(weight.FETCH, weight.FETCH_CONTEXT, ~(expert * weight.RUN_TILES + tile), thread)


@device
def first_pair(step: Step, expert: int, index: int, band: Band) -> int:
    """The number of an expert's first pair."""
    if band.count > 0:
        return index * band.rows
    return index if band.rows == 1 else step.LOADS[expert].FIRST


@device
def pairs_of(step: Step, expert: int, band: Band) -> int:
    """How many pairs an expert has."""
    return band.rows if band.count > 0 or band.rows == 1 else step.LOADS[expert].ROWS


@device
def activations_at(step: Step, op: Op, weight: Weight, pair: int, band: Band, thread: int) -> int:
    """Where `prepare_pairs` put what an expert gets, by the number of its first pair."""
    if band.rows == 1:
        return private(step, thread) + weight.PRIVATE_ACTIVATIONS
    if band.count > 0 and not reads_pairs(step, op):
        return weight.ACTIVATIONS
    return weight.ACTIVATIONS + pair * weight.TOKEN_NBYTES


@device
def unit_of(matrices: Matrices, rows: int) -> int:
    """Groups of an expert's matrix that one unit of work is."""
    if not whole_tiles(matrices, 1):
        return 1 if rows <= FEW else CHUNK
    unit = 1
    for index in range(matrices.number):
        unit = max(unit, unit_groups(matrices.first[index], True))
    return unit


@device
def grain_of(matrices: Matrices, rows: int) -> int:
    """Units that are claimed together at least; 0: one after the other."""
    if rows > FEW or whole_tiles(matrices, 1):
        return 0
    return max(1, GRAIN // matrices.first.COLUMNS)


@device(inline=False)
def multiply_job(step: Step, op: Op, choices: Choice, index: int, band: Band, low: int, high: int,
                 thread: int) -> None:
    """Results of an expert, or its hidden rows, for groups low..high-1."""
    expert, stride = expert_at(step, choices, index, band), op.Y_STRIDE
    pair, count = first_pair(step, expert, index, band), pairs_of(step, expert, band)
    if band.rows == 1 and reads_pairs(step, op):
        call_quantise(op.WEIGHTS.QUANTISE, op.X + pair * op.X_STRIDE, 0, op.WEIGHTS.COLUMNS,
                      activations_at(step, op, op.WEIGHTS, pair, band, thread), 0, 1, 1)
    for number in range(op.COUNT):
        weight = op.WEIGHTS[number]
        multiply(step, weight, Job(activations_at(step, op, weight, pair, band, thread), count, expert),
                 Result(op.Y + pair * stride + number * op.UP, stride, 0), low, high, thread)
    if op.KIND == EXPAND_CHOSEN:
        for row in range(count):
            place = op.Y + (pair + row) * stride + 64 * low
            activate(op.ACTIVATION, place, place + op.UP, 16 * (high - low))


@device(inline=False)
def multiply_chosen(step: Step, op: Op, band: Band, thread: int) -> None:
    """A phase or two: the products of the matrices of each expert with its rows, or their hidden
    rows."""
    team, experts, all_of, rows = step.TEAM, op.EXPERTS, Matrices(op.WEIGHTS, op.COUNT), band.rows
    if rows > 1:
        prepare_pairs(step, op, band, thread)
    unit, groups, choices = unit_of(all_of, rows), op.WEIGHTS.GROUPS, step.CHOICES
    each, grain = units_of(op.WEIGHTS, unit), grain_of(all_of, rows)
    visited = band.count == 0 and all_visited(all_of)
    total = each * (experts.COUNT if visited else experts_of(step, experts, band))
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        if not reads_pairs(step, op):
            prepare_row(step, all_of, op.X, op.NORM, 0, 1, thread)
        if band.count == 0:
            choices = own_choices(step, experts, thread)
    while first < last:
        for index in range(first // each, (last + each - 1) // each):
            low, high = max(first - index * each, 0) * unit, min((last - index * each) * unit, groups)
            place = place_of(step, experts, choices, index, band) if visited else index
            if place < 0:
                pass_by(all_of, index, low, high, thread)
            else:
                multiply_job(step, op, choices, place, band, low, high, thread)
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device(inline=False)
def combine(step: Step, op: Op, choices: Choice, row: int, start: int, count: int) -> None:
    """The weighted sum of a row's experts, or that added to another row: `count` floats from
    `start` on."""
    used, scale = op.EXPERTS.USED, splat_f32(op.SCALE)
    shared, to = step.PRODUCT + row * step.PRODUCT_STRIDE, op.Y + row * op.Y_STRIDE
    if op.EXPERTS.SHARED == 0:
        shared = 0
    for at in range(4 * start, 4 * (start + count), 64):
        y = splat_f32(f32(0.0)) if shared == 0 else load_f32(shared + at)
        for index in range(used):
            choice = choices[index]
            y = fma_f32(load_f32(op.X + choice.PAIR * op.X_STRIDE + at), splat_f32(get_f32(choice.WEIGHT)), y)
        store_f32(to + at, y if op.ACCUMULATE == 0 else fma_f32(scale, y, load_f32(to + at)))


@device(inline=False)
def combine_all(step: Step, op: Op, band: Band, row: int, start: int, count: int, thread: int) -> None:
    """Go on with the sum of a row's experts, at PRODUCT: `count` floats from `start` on. The last
    band adds it to another row."""
    experts, scratch = op.EXPERTS, private(step, thread) + step.PRIVATE_SCORES
    choices = Choice(private(step, thread) + step.PRIVATE_CHOICES)
    choose(experts, step.ROUTED + row * step.ROUTED_STRIDE, scratch, choices)
    spread(experts, scratch, choices)
    sums, to, scale = step.PRODUCT + row * step.PRODUCT_STRIDE, op.Y + row * op.Y_STRIDE, splat_f32(op.SCALE)
    weights, masks = scratch + 4 * band.first, scratch + 4 * padded(experts.COUNT) + 4 * band.first
    for at in range(4 * start, 4 * (start + count), 64):
        y = splat_f32(f32(0.0)) if band.first == 0 and experts.SHARED == 0 else load_f32(sums + at)
        for index in range(band.count):
            x = load_f32(op.X + (index * band.rows + row) * op.X_STRIDE + at)
            y = blend(splat_i32(get_i32(masks + 4 * index)), fma_f32(x, splat_f32(get_f32(weights + 4 * index)), y), y)
        if band.first + band.count < experts.COUNT:
            store_f32(sums + at, y)
        else:
            store_f32(to + at, y if op.ACCUMULATE == 0 else fma_f32(scale, y, load_f32(to + at)))


@device(inline=False)
def combine_rows(step: Step, op: Op, band: Band, thread: int) -> None:
    """A phase: the weighted sums of what experts give, or those added to rows."""
    team, experts, width, rows = step.TEAM, op.EXPERTS, op.COLUMNS, band.rows
    piece = SHORT if rows == 1 else PIECE
    pieces = (width + piece - 1) // piece
    total, choices = rows * pieces, step.CHOICES
    first, last = claim(team, thread, total, 1)
    if rows == 1 and band.count == 0 and first < last:
        choices = own_choices(step, experts, thread)
    while first < last:
        for unit in range(first, last):
            row, start = unit // pieces, unit % pieces * piece
            if band.count > 0:
                combine_all(step, op, band, row, start, min(piece, width - start), thread)
            else:
                combine(step, op, choices[row * experts.USED], row, start, min(piece, width - start))
        first, last = claim(team, thread, total, 1)
    finish(team, thread, total)


@device(inline=False)
def scale_rows(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase: scale what the shared expert gives by the sigmoid of a product of its row."""
    team, size, own = step.TEAM, op.COLUMNS, private(step, thread)
    first, last = claim(team, thread, rows, 1)
    while first < last:
        for row in range(first, last):
            normalise(op.X + row * op.X_STRIDE, op.NORM, own + step.PRIVATE_ROW, size, step.EPSILON)
            gate = dot(own + step.PRIVATE_ROW, op.EXPERTS.SHARED_SCALE, size)
            scale_vector(op.Y + row * op.Y_STRIDE, sigmoid_of(gate), size)
        first, last = claim(team, thread, rows, 1)
    finish(team, thread, rows)
