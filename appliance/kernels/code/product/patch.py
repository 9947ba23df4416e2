"""Emits the inner kernel: some groups of 16 rows times a patch of tokens, over a run of blocks.

A patch function is defined once in the LLVM module that calls it. Registers hold `groups` x
`tokens` integer sums; the activation of a token is broadcast from memory to all rows. Where
registers are narrower than 16 rows (AVX2, portable), a record is done in parts of `lanes` rows, one
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product as pairs
from typing import Any

from appliance.kernels.code.product.formats import FORMATS, Format, Rows, Tokens
from appliance.kernels.compiler.emit import F32, I32, Code, Locals, Val, vector
from appliance.kernels.compiler.vector import calling, i32, i64
from appliance.kernels.layouts.shapes import ACTIVATIONS, GROUP_ROWS, SHAPES
from appliance.kernels.runtime.targets import compiling

AHEAD, AHEAD_AMX = 6144, 5120
"""Bytes that weights are prefetched ahead when few tokens share them, the second on CPUs with AMX: the hardware
prefetcher alone is slower."""

AGAIN, AGAIN_AMX = 512, 2048
"""Bytes ahead that a line is asked for a second time, into the first-level cache; the second with AMX."""

LANES = {"avx512vnni": 16, "avx2": 8, "portable": 4, "neon": 4}
"""Rows in a register, by target."""

SEGMENT = 256
"""Columns of unquantised weights that are summed up before they are added to a result."""

_COLUMNS = 8  # unrolled
READ = {"F32": Rows.floats, "F16": Rows.halves, "BF16": Rows.brains}

Grid = dict[tuple[int, int], Val]  # by (stream, token)


@dataclass(frozen=True)
class Prefetch:
    """Asking for what lies `distance` bytes behind every `every`-th line that is read; 0: for
    nothing. With `again`, targets that ask evenly ask once more, shortly before; without `far` only
    then."""

    distance: Val
    every: int
    again: bool = False
    far: bool = True

    def shares(self, rows: list[Rows], nbytes: int, parts: int) -> Iterator[None]:
        """The lines of `nbytes` of each stream, in the order of memory, some with each of `parts`
        shares.

        CPUs with AMX read memory up to a fifth slower where neighbouring lines are asked for one
        right after the other. It is up to a fifth faster, single formats more, where they are asked
        again later. For one thing, that keeps the first requests apart. On Zen 4 it makes even
        more. Zen 5 and the other targets ask for everything at the first share.
        """
        lines = range(0, nbytes, 64 * self.every) if self.every else range(0)
        for part in range(parts):
            for stream in rows:
                share = split(lines, part, parts) if stream.code.evenly else lines if part == 0 else ()
                for line in share:
                    if self.far:
                        stream.code.prefetch(stream.record + self.distance + line)
                    if stream.code.evenly and self.again:
                        again = AGAIN_AMX if stream.code.amx else AGAIN
                        stream.code.prefetch(stream.record + again + line, near=True)
            yield


def bytes_ahead() -> int:
    """How far ahead weights are prefetched when few tokens share them."""
    return AHEAD_AMX if compiling().amx else AHEAD


def split(lines: range, part: int, parts: int) -> range:
    """One of some equal parts, in order."""
    return lines[len(lines) * part // parts:len(lines) * (part + 1) // parts]


def patch(format_name: str, groups: int, tokens: int, ahead: int, far: bool = True) -> Any:
    """The numba function `(w, stride, act, apart, y, ldy, blocks, fresh, distance)` of one patch.

    `w` is the first record of the first group, the next group `stride` bytes on. `act` is the first
    token's block that belongs to it, the next block `apart` bytes on (of the kind f32, the next
    token). `y` is the result of the first row and token, the next token `ldy` bytes on. Results
    start from zero where `fresh` is not 0, else from what y holds; the float operations on a row
    are the same however `blocks` is cut. For every `ahead`-th line that is read (0: none), the one
    `distance` bytes behind it is prefetched (`far`), and by some targets the one shortly behind it.
    """
    name = f"patch_{format_name.lower()}_{groups}_{tokens}" + (f"_ahead{ahead}" if ahead else "") + "_near" * (not far)
    return calling(name, lambda code, args: _emit(code, format_name, groups, tokens, ahead, far, args),
                   i64, i64, i64, i64, i64, i64, i64, i32, i64)


def _emit(code: Code, format_name: str, groups: int, tokens: int, ahead: int, far: bool, args: list[Val]) -> None:
    weights, stride, act, apart, y, ldy, blocks, fresh, distance = args
    shape, lanes = SHAPES[format_name], LANES[code.target]
    floats = shape.activation == "f32"
    parts, grid = GROUP_ROWS // lanes, list(pairs(range(groups), range(tokens)))
    if parts * len(grid) > 1:  # else nothing is spilled
        code.align_frame()
    results = Locals(code, vector(F32, lanes), parts * len(grid))
    fresh = fresh.compare("!=", 0)

    def places(part: Val) -> list[tuple[Val, Val]]:
        """(index in `results`, address in y) of each result of a part, in the order of `grid`."""
        corner = y + part * (4 * lanes)
        return [(part * len(grid) + index, corner + ldy * token + 4 * GROUP_ROWS * stream)
                for index, (stream, token) in enumerate(grid)]

    def begin(part: Val) -> None:
        for index, address in places(part):
            before = code.load(address, F32, lanes)
            results.set(index, fresh.select(before.like(0.0), before))

    def end(part: Val) -> None:
        for index, address in places(part):
            code.store(address, results.get(index))

    def update(part: Val, record: Val, act_block: Val, emit: Callable[[list[Rows], Tokens, Grid], Grid]) -> None:
        """Replace a part's results by what `emit(rows, activations, results)` gives."""
        rows = [Rows(code, record + stride * stream, part * lanes, lanes) for stream in range(groups)]
        old = {item: results.get(part * len(grid) + index) for index, item in enumerate(grid)}
        vectors = Tokens(code, act_block, apart if floats else ACTIVATIONS[shape.activation].nbytes, tokens, lanes)
        for index, value in enumerate(emit(rows, vectors, old).values()):
            results.set(part * len(grid) + index, value)

    # Two groups pass by many tokens: what asking again would bring is in the first-level cache
    # already.
    again = groups == 1 and (floats or FORMATS[format_name].again or not code.amx)
    prefetch = Prefetch(distance, ahead, again, far)

    def block(number: Val) -> None:
        def emit(rows: list[Rows], vectors: Tokens, old: Grid) -> Grid:
            if floats:
                count = code.smaller(blocks - number * SEGMENT, blocks.like(SEGMENT))
                return emit_segment(format_name, rows, vectors, count, old, prefetch)
            return emit_block(FORMATS[format_name], rows, vectors, old, prefetch)
        records = number * SEGMENT if floats else number
        here = act + number * (4 * SEGMENT if floats else apart)
        code.loop(parts, lambda part: update(part, weights + records * shape.record, here, emit))

    code.loop(parts, begin)
    code.loop((blocks + (SEGMENT - 1)) >> 8 if floats else blocks, block)
    code.loop(parts, end)


def emit_segment(format_name: str, rows: list[Rows], tokens: Tokens, count: Val, results: Grid,
                 prefetch: Prefetch) -> Grid:
    """`count` columns (a multiple of 16) of unquantised weights: results + (sum of even + sum of
    odd columns)."""
    code, kind, grid = tokens.code, vector(F32, tokens.lanes), list(results)
    record = SHAPES[format_name].record
    sums = Locals(code, kind, 2 * len(grid))
    for index in range(2 * len(grid)):
        sums.set(index, code.constant(kind, 0.0))

    def columns(number: Val) -> None:
        first = number * _COLUMNS
        here, vectors = [stream.moved(first * record) for stream in rows], tokens.moved(first)
        shares = prefetch.shares(here, _COLUMNS * record, _COLUMNS)
        for column in range(_COLUMNS):
            next(shares)
            weights = [READ[format_name](stream, column * record) for stream in here]
            for index, (stream, token) in enumerate(grid):
                place = 2 * index + column % 2
                sums.set(place, code.fma(weights[stream], vectors.float(column, token), sums.get(place)))

    code.loop(count >> 3, columns)
    return {item: old + (sums.get(2 * index) + sums.get(2 * index + 1))
            for index, (item, old) in enumerate(results.items())}


def emit_block(fmt: Format, rows: list[Rows], tokens: Tokens, results: Grid, prefetch: Prefetch) -> Grid:
    """One block of every stream (`rows`) and token: the new results."""
    code, grid = tokens.code, list(results)
    for stream in rows:
        fmt.begin(stream)
    # Two chains are slower than integers for few tokens, and for two groups of many.
    floats = fmt.chains == 1 or (fmt.chains == 2 and 2 < len(grid) < 12)
    element, chains = (F32, fmt.chains) if floats else (I32, 1)
    totals, whole = (Locals(code, vector(element, tokens.lanes), len(grid)) for _ in range(2))
    zero = code.constant(totals.kind, 0)
    for index in range(len(grid)):
        whole.set(index, zero)

    def one_round(number: Val) -> None:
        nbytes = fmt.shape.record // fmt.rounds
        shares = prefetch.shares([stream.moved(number * nbytes) for stream in rows], nbytes, fmt.subblocks * fmt.chunks)
        moved = [fmt.rows_of(stream, number) for stream in rows]
        first = fmt.first_field(number)
        for j in range(fmt.subblocks):
            before = [totals.get(index) for index in range(len(grid))]
            if len(grid) > 2:
                before = code.pin(before)
            sums = tokens.moved(first if fmt.sums == 1 else first * fmt.sums)
            integers = _subblock(fmt, moved, tokens.moved(first * fmt.chunks), sums, j, grid, shares)
            scales = [fmt.scale(stream, j) for stream in moved]
            for index, (stream, token) in enumerate(grid):
                totals.set(index, _scaled(before[index], integers[stream, token], scales[stream]))

    def chain(number: Val) -> None:
        for index in range(len(grid)):
            totals.set(index, zero)
        each = fmt.rounds // chains
        code.loop(each, lambda index: one_round(number * each + index))
        for index in range(len(grid)):
            whole.set(index, whole.get(index) + totals.get(index) if chains > 1 else totals.get(index))

    code.loop(chains, chain)
    sums = [whole.get(index) if floats else whole.get(index).convert("sitofp", F32) for index in range(len(grid))]
    return {(stream, token): fmt.finish(rows[stream], tokens, token, total, results[stream, token])
            for (stream, token), total in zip(grid, sums, strict=True)}


def _scaled(total: Val, integer: Val, scale: Val | None) -> Val:
    """total + integer * scale, of the kind of `total`; the integer where there is no scale."""
    if scale is None:
        return integer.convert("sitofp", F32)
    if total.is_float:
        return total.code.fma(integer.convert("sitofp", F32), scale.convert("sitofp", F32), total)
    return total + integer * scale


def _subblock(fmt: Format, rows: list[Rows], tokens: Tokens, sums: Tokens, j: int, grid: list[tuple[int, int]],
              shares: Iterator[None]) -> Grid:
    """The exact integer sums of sub-block j of a round; `tokens` and `sums` begin at the round's
    fields. Each chunk is a share of `shares`."""
    code = tokens.code
    integers: Grid = {}
    for stream, token in grid:
        start = fmt.start_value(sums, j, token) or code.constant(vector(I32, tokens.lanes), 0)
        integers[stream, token] = code.start8(start) if fmt.wide else start
    limit, dot = code.pairs_limit(fmt.largest), code.dot8 if fmt.wide else code.dot7
    pairs = code.pairs8 if fmt.wide else code.pairs7
    sums16: Grid = {}
    for c in range(fmt.chunks):
        next(shares)
        weights = [fmt.chunk(stream, j, c) for stream in rows]
        values = [tokens.integer(fmt.field(j, c), token) for token in range(tokens.tokens)]
        for item in grid:
            weight, value = weights[item[0]], values[item[1]]
            if not limit:
                integers[item] = dot(integers[item], weight, value)
                continue
            sums16[item] = sums16[item] + pairs(weight, value) if item in sums16 else pairs(weight, value)
            if (c + 1) % limit == 0 or c == fmt.chunks - 1:
                integers[item] = code.add_pairs(integers[item], sums16.pop(item))
    return integers
