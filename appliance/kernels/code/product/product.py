"""Matrix products: rows of quantised weights times quantised activations, one kernel per block
format.

    product_F(w, k, act, tokens, y, ldy, accumulate, group0, group1)

multiplies groups group0 <= g < group1 of 16 rows. `w`: the matrix in kernel order, from group 0 on;
`k`: columns; `act`: activations of `tokens` tokens as `quantise_A` writes them (A is
`activation_kind(F)`). The result of row r and token t goes to the float32 at `y + t ldy + 4 r`;
with `accumulate` it is added to what is there. Whole groups are written: each token has room for
`padded_rows(rows)` results. Nothing is checked here (`boundary.py` does).

The float operations on one result are the same for every number of tokens, patch and range of
groups. A result is a chain over the blocks of its row in order, `result = finish(block, result)`.
Cutting the chain only stores it to y.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from appliance.kernels.code.product import amx, amx_blocks, amx_superblocks, widen
from appliance.kernels.code.product.formats import FORMATS, Super
from appliance.kernels.code.product.patch import SEGMENT, bytes_ahead, patch
from appliance.kernels.compiler import records
from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import prefetch_write
from appliance.kernels.layouts.shapes import ACTIVATIONS, GROUP_ROWS, PATCHES, SHAPES
from appliance.kernels.runtime.targets import compiling

SIGNATURE = "void(i8,i8,i8,i8,i8,i8,i4,i8,i8)"

_TOKENS = 192
"""Tokens that are multiplied with all rows before the next ones; a multiple of a full patch."""

_ACTIVATION_BYTES = 640 << 10
"""Activations that stay in a core's second-level cache while all rows pass by."""

_RUN_BYTES = 800 << 10
"""Activations of a run of blocks that AMX multiplies with all rows before the next run. They come from
the second-level cache again for each group; it has 2 MiB in the CPUs that have AMX."""

_BESIDE_BYTES = 512 << 10
"""Weights, or activations, beside which the others stay in a core's second-level cache, where AMX multiplies them."""

_INNER_BYTES = 20480
"""Bytes of weights of two groups that stay in the first-level cache while tokens pass by."""


_WIDE = 12
"""From this many tokens on, two groups are multiplied at a time where the format allows; with fewer, memory is the
limit, and one stream of weights is faster."""

_FEW_PATCHES = 6
"""Of tokens; with more, the time in which the first one waits for weights does not count."""

_NARROW = ("Q2_K", "Q3_K")
"""Formats that gain nothing from two groups: unpacking weights is most of the work."""


@records.record
@dataclass(frozen=True)
class Weights:
    """One group of rows or more, from some block on."""

    address: int
    stride: int  # bytes from group to group
    groups: int


@records.record
@dataclass(frozen=True)
class Matrix:
    """A whole matrix, and a run of its blocks."""

    address: int
    blocks: int  # of a row
    first: int  # block
    last: int  # block, not of the run


@records.record
@dataclass(frozen=True)
class Activations:
    """Quantised rows, from some block of the first on."""

    address: int
    stride: int  # bytes of a token; by AMX: from block to block
    tokens: int


@records.record
@dataclass(frozen=True)
class Results:
    """Float32, from some row of the first token on."""

    address: int
    stride: int  # bytes from token to token


@records.record
@dataclass(frozen=True)
class Run:
    """Blocks of a row that are multiplied at once."""

    blocks: int
    first: int  # number in the row
    fresh: int  # 1 to start results from zero, 0 from what is there


def _two_groups(format_name: str) -> bool:
    """Whether two groups are ever multiplied at a time: that takes the 32 registers of AVX-512."""
    return compiling().vectors == "avx512vnni" and format_name not in _NARROW


def _whole_rows(format_name: str) -> dict[int, Any]:
    """Patches that take a whole row at a time, by the number of tokens that they are for.

    On Zen 4, one token or two leave bringing weights to the CPU, which does it best where a block
    is read in the order of memory. Where it is not, each line is asked for shortly before, in that
    order. Two tokens of some formats work so long on a block that asking far ahead is faster.
    """
    target = compiling()
    if not target.evenly or target.amx:
        return {1: patch(format_name, 1, 1, ahead=1)}
    if format_name not in FORMATS or FORMATS[format_name].in_order:
        pair = patch(format_name, 1, 2, ahead=int(format_name in FORMATS and FORMATS[format_name].pairs_ask))
        return {1: patch(format_name, 1, 1, ahead=0), 2: pair}
    return {tokens: patch(format_name, 1, tokens, ahead=1, far=False) for tokens in (1, 2)}


def _place(format_name: str) -> Any:
    """Where in the activations of `tokens` tokens, of `share` bytes each, block `block` of token
    `t` is."""
    shape = SHAPES[format_name]
    each, floats = ACTIVATIONS[shape.activation].nbytes, shape.activation == "f32"

    @device
    def place(block: int, t: int, share: int, tokens: int) -> int:
        return t * share + block * each if floats else (block * tokens + t) * each
    return place


def _panel(format_name: str, asks: bool = True) -> Any:
    """All patches of tokens first <= t < last over one or two groups and a run of blocks that stays
    in cache; it `asks` for what is read next."""
    six, four, two, one = (patch(format_name, 1, size, ahead=int(asks)) for size in PATCHES)
    wide, every, second, fourth = (patch(format_name, 2, PATCHES[0], ahead=ahead * asks) if _two_groups(format_name)
                                   else six for ahead in (0, 1, 2, 4))
    place, floats, near = _place(format_name), SHAPES[format_name].activation == "f32", bytes_ahead()

    @device(inline=False)
    def panel(weights: Weights, activations: Activations, results: Results, run: Run, first: int, last: int,
              ahead: int) -> None:
        w, stride, groups = weights.address, weights.stride, weights.groups
        act, share, tokens = activations.address, activations.stride, activations.tokens
        y, ldy, blocks, block, fresh = results.address, results.stride, run.blocks, run.first, run.fresh
        apart = share if floats else place(1, 0, share, tokens)
        # Of few patches, some bring a part each of what the next call reads: the first alone would
        # wait for it.
        t, index, patches = first, 0, (last - first) // 6
        parts = 1 if patches < 2 or patches > _FEW_PATCHES else 2 if patches < 4 else 4
        while t + 6 <= last:
            for i in range(6, 12):  # the next patch's results: a store that misses the cache is slow
                prefetch_write(y + (t + i) * ldy)
                prefetch_write(y + (t + i) * ldy + 64)
            here = act + place(block, t, share, tokens)
            if groups == 1:
                six(w, stride, here, apart, y + t * ldy, ldy, blocks, fresh, near)
            elif index >= parts:
                wide(w, stride, here, apart, y + t * ldy, ldy, blocks, fresh, 0)
            elif parts == 1:
                every(w, stride, here, apart, y + t * ldy, ldy, blocks, fresh, ahead)
            elif parts == 2:
                second(w, stride, here, apart, y + t * ldy, ldy, blocks, fresh, ahead + 64 * index)
            else:
                fourth(w, stride, here, apart, y + t * ldy, ldy, blocks, fresh, ahead + 64 * index)
            t += 6
            index += 1
        for g in range(groups):
            s, v, z = t, w + g * stride, y + g * (4 * GROUP_ROWS)
            if s + 4 <= last:
                four(v, stride, act + place(block, s, share, tokens), apart, z + s * ldy, ldy, blocks, fresh, near)
                s += 4
            if s + 2 <= last:
                two(v, stride, act + place(block, s, share, tokens), apart, z + s * ldy, ldy, blocks, fresh, near)
                s += 2
            if s < last:
                one(v, stride, act + place(block, s, share, tokens), apart, z + s * ldy, ldy, blocks, fresh, near)
    return panel


def _widened(format_name: str) -> Any:
    """`_panel` of 16-bit floats: many tokens take them as float32."""
    unpack, scratch, clear, apart = widen.unpack(format_name), widen.scratch, widen.clear, widen.STRIDE
    narrow, wide = _panel(format_name), _panel("F32", asks=False)

    @device(inline=False)
    def panel(weights: Weights, activations: Activations, results: Results, run: Run, first: int, last: int,
              ahead: int) -> None:
        if last - first < widen.LEAST:
            narrow(weights, activations, results, run, first, last, ahead)
            return
        memory = scratch()
        unpack(weights.address, weights.stride, weights.groups, run.blocks, memory, ahead)
        wide(Weights(memory, apart, weights.groups), activations, results, run, first, last, 0)
        clear(memory)
    return panel


def _by_amx(format_name: str) -> Any:
    """By AMX: tokens 0 <= t < the number that is returned, times groups group0 <= g < group1."""
    fmt, shape = FORMATS[format_name], SHAPES[format_name]
    most, size, activation = amx.most_tokens(format_name), amx.TOKENS, ACTIVATIONS[shape.activation].nbytes
    record = shape.record
    scratch, configure, release = (make(format_name) for make in (amx.scratch, amx.configure, amx.release))
    panel = _panel_of_superblocks(format_name) if isinstance(fmt, Super) else _panel_of_blocks(format_name)
    least, whole = amx.least_tokens(format_name), 2 * size if isinstance(fmt, Super) else size

    @device(inline=False)
    def by_amx(w: int, blocks: int, act: int, tokens: int, y: int, ldy: int, accumulate: int, group0: int,
              group1: int) -> int:
        memory, done = scratch(), 0
        # Few tokens may come in parts; the second finds weights in the second-level cache.
        part = max(group1 - group0, 1)
        if tokens * blocks * activation <= _BESIDE_BYTES:
            part = max(_BESIDE_BYTES // (blocks * record), 2) // 2 * 2
        for g in range(group0, group1, part):
            end, done = min(g + part, group1), 0
            while tokens - done >= least:
                left = tokens - done
                some = min(left // size * size, most) if left >= whole else left
                configure(memory, (some + 1) // 2 if size < some < whole else min(some, size))
                run = max(_RUN_BYTES // (some * activation), 1)
                for block in range(0, blocks, run):
                    panel(Matrix(w, blocks, block, min(block + run, blocks)),
                          Activations(act + done * activation, tokens * activation, some),
                          Results(y + done * ldy, ldy), accumulate, g, end, memory)
                done += some
        release(memory)
        return done
    return by_amx


def _panel_of_blocks(format_name: str) -> Any:
    """`tokens` tokens, whole rows of a register, by AMX, a run of blocks of a group at a time."""
    shape = SHAPES[format_name]
    record, run, size = shape.record, amx.RUN, amx.TOKENS
    activation = ACTIVATIONS[shape.activation].nbytes
    unpack, multiply = amx_blocks.unpack(format_name), amx_blocks.multiply(format_name)

    @device(inline=False)
    def panel(matrix: Matrix, activations: Activations, results: Results, accumulate: int, group0: int, group1: int,
              memory: int) -> None:
        w, blocks, first, last = matrix.address, matrix.blocks, matrix.first, matrix.last
        act, apart, tokens = activations.address, activations.stride, activations.tokens
        y, ldy = results.address, results.stride
        for g in range(group0, group1):
            for block in range(first, last, run):
                at, some = w + (g * blocks + block) * record, min(run, last - block)
                unpack(at, some, memory)
                for t in range(0, tokens, size):
                    here = act + block * apart + t * activation
                    multiply(at, memory, here, apart, y + t * ldy + g * (4 * GROUP_ROWS), ldy, some,
                             block + accumulate == 0)
    return panel


def _panel_of_superblocks(format_name: str) -> Any:
    """`tokens` tokens by AMX, a block of two groups at a time."""
    record = SHAPES[format_name].record
    unpack, blocks_ahead = amx_superblocks.unpack(format_name), -(-amx_superblocks.AHEAD // record)
    one, two = (amx_superblocks.multiply(format_name, groups) for groups in (1, 2))

    @device(inline=False)
    def panel(matrix: Matrix, activations: Activations, results: Results, accumulate: int, group0: int, group1: int,
              memory: int) -> None:
        w, blocks, first, last = matrix.address, matrix.blocks, matrix.first, matrix.last
        act, apart, tokens = activations.address, activations.stride, activations.tokens
        y, ldy = results.address, results.stride
        g, stride = group0, blocks * record
        while g < group1:
            to, groups = y + g * (4 * GROUP_ROWS), min(2, group1 - g)
            for block in range(first, last):
                at, here = w + g * stride + block * record, act + block * apart
                ahead = blocks_ahead * record
                if block + blocks_ahead >= last:
                    ahead += groups * stride - (last - first) * record  # in the next groups
                for group in range(groups):
                    unpack(at + group * stride, group, memory, ahead)
                if groups == 2:
                    two(at, stride, memory, here, to, ldy, tokens, block + accumulate == 0, ahead)
                else:
                    one(at, stride, memory, here, to, ldy, tokens, block + accumulate == 0, ahead)
            g += groups
    return panel


def _product(format_name: str) -> Any:
    shape = SHAPES[format_name]
    elements, record, floats = shape.elements, shape.record, shape.activation == "f32"
    activation = ACTIVATIONS[shape.activation].nbytes
    inner = SEGMENT if elements == 1 else max(1, _INNER_BYTES // (2 * record))
    whole_rows = _whole_rows(format_name)
    panel = _widened(format_name) if format_name in widen.FORMATS else _panel(format_name)
    most_whole, single, pair = max(whole_rows), whole_rows[1], whole_rows.get(2, whole_rows[1])
    row_bytes, two_groups, near = 4 * GROUP_ROWS, _two_groups(format_name), bytes_ahead()
    with_amx = compiling().amx and format_name in FORMATS
    least = amx.least_tokens(format_name) if with_amx else 0
    by_amx: Any = _by_amx(format_name) if with_amx else None

    def product(w: int, k: int, act: int, tokens: int, y: int, ldy: int, accumulate: int, group0: int,
                group1: int) -> None:
        blocks = k // elements
        stride, share = blocks * record, blocks * activation
        if tokens <= most_whole:
            apart = share if floats else tokens * activation
            for g in range(group0, group1):
                at, to = w + g * stride, y + g * row_bytes
                if tokens == 1:
                    single(at, stride, act, apart, to, ldy, blocks, accumulate == 0, near)
                else:
                    pair(at, stride, act, apart, to, ldy, blocks, accumulate == 0, near)
            return
        done = 0
        if with_amx and tokens >= least:
            done = by_amx(w, blocks, act, tokens, y, ldy, accumulate, group0, group1)
        width = 2 if two_groups and tokens - done >= _WIDE else 1
        outer = max(1, _ACTIVATION_BYTES // (min(tokens, _TOKENS) * activation * inner)) * inner
        for first in range(done, tokens, _TOKENS):
            last = min(first + _TOKENS, tokens)
            for outer_block in range(0, blocks, outer):
                outer_end = min(outer_block + outer, blocks)
                g = group0
                while g < group1:
                    groups = min(width, group1 - g)
                    for b in range(outer_block, outer_end, inner):
                        at = w + g * stride + b * record
                        ahead = inner * record  # where the next call reads
                        if b + inner >= outer_end:
                            ahead = groups * stride - (b - outer_block) * record
                        panel(Weights(at, stride, groups), Activations(act, share, tokens),
                              Results(y + g * row_bytes, ldy),
                              Run(min(inner, outer_end - b), b, b == 0 and accumulate == 0), first, last, ahead)
                    g += groups
    return product


for _shape in SHAPES.values():
    kernel(f"product_{_shape.suffix}", SIGNATURE)(_product(_shape.name))
