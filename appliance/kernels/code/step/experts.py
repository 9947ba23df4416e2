"""The feed-forward network of a layer with experts: which ones a row chooses, their products, and
the sum of what they give.

Rows of a pass that chose the same expert are multiplied with it together. Each pair of a row and an
expert has a row in EXPANDED and one in MIXED, and those of an expert lie together. A single row has
no phase for choosing. Every thread does that for itself, in each phase, which costs less than to
wait for another.
"""

from __future__ import annotations

from appliance.kernels.code.rows.activation import activate
from appliance.kernels.code.rows.norm import normalise
from appliance.kernels.code.rows.scores import choose, dot, scale_vector, sigmoid_of
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
from appliance.kernels.compiler.vector import (
    f32,
    fma_f32,
    get_f32,
    load_f32,
    load_i32,
    set_i64,
    splat_f32,
    store_f32,
    store_i32,
)
from appliance.kernels.layouts.step import Choice, ExpertLayer, Op, Step, Weight

FEW = 8
"""With more rows, experts have unlike numbers of them, and threads end together if they claim little at a time."""

CHUNK = 8
"""Groups of an expert's matrix that one unit of work is then."""

GRAIN = 4096
"""Columns times groups of weights that a single row's units are claimed by, see `matrix.GRAIN`."""

PIECE, SHORT = 1024, 256
"""Floats of a row that one unit of work is where rows are added; of a single row."""


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
def choose_rows(step: Step, op: Op, rows: int, thread: int) -> None:
    """Two phases: the experts of each row, and the numbers of pairs. None for a single row."""
    if rows == 1:
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
def prepare_pairs(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase: what experts get of each of many rows, quantised."""
    team = step.TEAM
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
def expert_at(step: Step, choices: Choice, index: int, rows: int) -> int:
    """The expert `index` of those chosen."""
    return choices[index].EXPERT if rows == 1 else step.ACTIVE[1 + index]


@device
def place_of(step: Step, experts: ExpertLayer, choices: Choice, expert: int, rows: int) -> int:
    """The place of an expert among those chosen; -1 where it is not one of them."""
    for index in range(experts.USED if rows == 1 else step.ACTIVE[0]):
        if expert_at(step, choices, index, rows) == expert:
            return index
    return -1


@device
def all_visited(matrices: Matrices) -> bool:
    """Whether units of work are those of all experts, chosen or not."""
    for index in range(matrices.number):
        if matrices.first[index].VISITED != 0:
            return True
    return False


@device
def units_of_chosen(step: Step, op: Op, matrices: Matrices, each: int, rows: int) -> int:
    """Units of work, of `each` for every expert."""
    if all_visited(matrices):
        return each * op.EXPERTS.COUNT
    return each * (op.EXPERTS.USED if rows == 1 else step.ACTIVE[0])


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
def first_pair(step: Step, expert: int, index: int, rows: int) -> int:
    """The number of an expert's first pair."""
    return index if rows == 1 else step.LOADS[expert].FIRST


@device
def pairs_of(step: Step, expert: int, rows: int) -> int:
    """How many pairs an expert has."""
    return 1 if rows == 1 else step.LOADS[expert].ROWS


@device
def activations_at(step: Step, weight: Weight, pair: int, rows: int, thread: int) -> int:
    """Where `prepare_pairs` put what an expert gets, by the number of its first pair."""
    if rows == 1:
        return private(step, thread) + weight.PRIVATE_ACTIVATIONS
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
def expand_job(step: Step, op: Op, choices: Choice, index: int, rows: int, low: int, high: int, thread: int) -> None:
    """Hidden rows of an expert, for groups low..high-1."""
    gate, up, stride, beside = op.WEIGHTS, op.WEIGHTS[1], op.Y_STRIDE, op.UP
    expert = expert_at(step, choices, index, rows)
    pair, count = first_pair(step, expert, index, rows), pairs_of(step, expert, rows)
    hidden = op.Y + pair * stride
    multiply(step, gate, Job(activations_at(step, gate, pair, rows, thread), count, expert),
             Result(hidden, stride, 0), low, high, thread)
    multiply(step, up, Job(activations_at(step, up, pair, rows, thread), count, expert),
             Result(hidden + beside, stride, 0), low, high, thread)
    for row in range(count):
        place = hidden + row * stride + 64 * low
        activate(op.ACTIVATION, place, place + beside, 16 * (high - low))


@device(inline=False)
def expand_chosen(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase or two: the hidden rows of experts."""
    team, experts, both = step.TEAM, op.EXPERTS, Matrices(op.WEIGHTS, 2)
    if rows > 1:
        prepare_pairs(step, op, rows, thread)
    unit, groups, choices = unit_of(both, rows), op.WEIGHTS.GROUPS, step.CHOICES
    each, grain = units_of(op.WEIGHTS, unit), grain_of(both, rows)
    total, visited = units_of_chosen(step, op, both, each, rows), all_visited(both)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        prepare_row(step, both, op.X, op.NORM, 0, 1, thread)
        choices = own_choices(step, experts, thread)
    while first < last:
        for index in range(first // each, (last + each - 1) // each):
            low, high = max(first - index * each, 0) * unit, min((last - index * each) * unit, groups)
            place = place_of(step, experts, choices, index, rows) if visited else index
            if place < 0:
                pass_by(both, index, low, high, thread)
            else:
                expand_job(step, op, choices, place, rows, low, high, thread)
        first, last = claim(team, thread, total, grain)
    finish(team, thread, total)


@device(inline=False)
def multiply_job(step: Step, op: Op, choices: Choice, index: int, rows: int, low: int, high: int,
                 thread: int) -> None:
    """Results of an expert, for groups low..high-1."""
    weight, expert = op.WEIGHTS, expert_at(step, choices, index, rows)
    pair, count = first_pair(step, expert, index, rows), pairs_of(step, expert, rows)
    activations = activations_at(step, weight, pair, rows, thread)
    if rows == 1 and reads_pairs(step, op):
        call_quantise(weight.QUANTISE, op.X + pair * op.X_STRIDE, 0, weight.COLUMNS, activations, 0, 1, 1)
    multiply(step, weight, Job(activations, count, expert), Result(op.Y + pair * op.Y_STRIDE, op.Y_STRIDE, 0), low,
             high, thread)


@device(inline=False)
def multiply_chosen(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase or two: the products of a matrix of each expert with its rows."""
    team, experts, one = step.TEAM, op.EXPERTS, Matrices(op.WEIGHTS, 1)
    if rows > 1:
        prepare_pairs(step, op, rows, thread)
    unit, groups, choices = unit_of(one, rows), op.WEIGHTS.GROUPS, step.CHOICES
    each, grain = units_of(op.WEIGHTS, unit), grain_of(one, rows)
    total, visited = units_of_chosen(step, op, one, each, rows), all_visited(one)
    first, last = claim(team, thread, total, grain)
    if rows == 1 and first < last:
        if not reads_pairs(step, op):
            prepare_row(step, one, op.X, op.NORM, 0, 1, thread)
        choices = own_choices(step, experts, thread)
    while first < last:
        for index in range(first // each, (last + each - 1) // each):
            low, high = max(first - index * each, 0) * unit, min((last - index * each) * unit, groups)
            place = place_of(step, experts, choices, index, rows) if visited else index
            if place < 0:
                pass_by(one, index, low, high, thread)
            else:
                multiply_job(step, op, choices, place, rows, low, high, thread)
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
def combine_rows(step: Step, op: Op, rows: int, thread: int) -> None:
    """A phase: the weighted sums of what experts give, or those added to rows."""
    team, experts, width = step.TEAM, op.EXPERTS, op.COLUMNS
    piece = SHORT if rows == 1 else PIECE
    pieces = (width + piece - 1) // piece
    total, choices = rows * pieces, step.CHOICES
    first, last = claim(team, thread, total, 1)
    if rows == 1 and first < last:
        choices = own_choices(step, experts, thread)
    while first < last:
        for unit in range(first, last):
            row, start = unit // pieces, unit % pieces * piece
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
