"""Emits the inner kernel: some groups of 16 rows times a tile of tokens, over a run of blocks.

A tile function has the signature of `TILE` and is defined once in the LLVM module that calls it. Registers hold
`groups` x `tokens` integer sums; the activation of a token is broadcast from memory to all rows. Where registers are
narrower than 16 rows (AVX2, portable), a record is done in parts of `lanes` rows, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product as pairs
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types

from appliance.engine.kernels.emit import F32, I32, I64, Code, Val, vector
from appliance.engine.kernels.formats import FORMATS, Format, Rows, Tokens
from appliance.engine.kernels.shapes import ACTIVATIONS, GROUP_ROWS, SHAPES
from appliance.engine.kernels.vector import i32, i64, operation

AHEAD = 8192
"""Bytes that weights are prefetched ahead when few tokens share them: the hardware prefetcher alone is slower."""

LANES = {"avx512vnni": 16, "avx2": 8, "portable": 4}
"""Rows in a register, by target."""

Grid = dict[tuple[int, int], Val]  # by (stream, token)


def tile(format_name: str, groups: int, tokens: int) -> Any:
    """The numba function `(w, stride, act, y, ldy, blocks, fresh)` of one tile shape.

    `w` is the first record of the first group, the next group `stride` bytes on; `act` the tile's block that belongs
    to it; `y` the result of the first row and token, the next token `ldy` bytes on. Results start from zero where
    `fresh` is not 0, else from what y holds; the float operations on a row are the same however `blocks` is cut.
    """
    def call_tile(code: Code, *args: Val) -> None:
        code.b.call(_function(code.b.module, format_name, groups, tokens), [arg.ir for arg in args])
    return operation(types.void, i64, i64, i64, i64, i64, i64, i32)(call_tile)


def _function(module: Any, format_name: str, groups: int, tokens: int) -> Any:
    """The LLVM function of a tile, defined in `module` on first use."""
    name = f"tile_{format_name.lower()}_{groups}_{tokens}"
    if name in module.globals:
        return module.globals[name]
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * 6 + [I32]), name)
    function.linkage = "internal"
    function.attributes.add("noinline")
    function.attributes.add("nounwind")
    code = Code(ir.IRBuilder(function.append_basic_block()))
    _emit(code, format_name, groups, tokens, [Val(code, arg) for arg in function.args])
    code.b.ret_void()
    return function


def _loop(code: Code, count: Val, body: Callable[[Val], None]) -> None:
    """Run `body(index)` for 0 <= index < count; unrolled when the count is the constant 1."""
    if isinstance(count.ir, ir.Constant) and count.ir.constant == 1:
        body(code.constant(I64, 0))
        return
    with cgutils.for_range(code.b, count.ir, intp=I64) as loop:
        body(Val(code, loop.index))


class _Results:
    """The results of a tile as local variables, (part, stream, token); LLVM keeps them in registers if it can."""

    def __init__(self, code: Code, parts: int, lanes: int, streams: int, tokens: int) -> None:
        self.code, self.streams, self.tokens = code, streams, tokens
        self.kind = vector(F32, lanes)
        with code.b.goto_entry_block():
            self.slots = code.b.alloca(self.kind, size=parts * streams * tokens)
            self.slots.align = 64

    def slot(self, part: Val, stream: int, token: int) -> Any:
        index = part * (self.streams * self.tokens) + (stream * self.tokens + token)
        return self.code.b.gep(self.slots, [index.ir], source_etype=self.kind)

    def get(self, part: Val, stream: int, token: int) -> Val:
        return Val(self.code, self.code.b.load(self.slot(part, stream, token), typ=self.kind))

    def set(self, part: Val, stream: int, token: int, value: Val) -> None:
        self.code.b.store(value.ir, self.slot(part, stream, token))


def _emit(code: Code, format_name: str, groups: int, tokens: int, args: list[Val]) -> None:
    weights, stride, act, y, ldy, blocks, fresh = args
    shape, lanes = SHAPES[format_name], LANES[code.target]
    parts = code.constant(I64, GROUP_ROWS // lanes)
    grid = list(pairs(range(groups), range(tokens)))
    if groups * tokens > 1:
        code.align_frame()
    results = _Results(code, GROUP_ROWS // lanes, lanes, groups, tokens)
    activation_block = 4 * ACTIVATIONS[shape.activation].fields * tokens
    ahead = AHEAD if groups == 1 and tokens <= 2 else 0
    fresh = fresh.compare("!=", 0)

    def place(part: Val, stream: int, token: int) -> Val:
        return y + ldy * token + part * (4 * lanes) + 4 * GROUP_ROWS * stream

    def begin(part: Val) -> None:
        for stream, token in grid:
            before = code.load(place(part, stream, token), F32, lanes)
            results.set(part, stream, token, fresh.select(before.like(0.0), before))

    def end(part: Val) -> None:
        for stream, token in grid:
            code.store(place(part, stream, token), results.get(part, stream, token))

    def block(index: Val) -> None:
        def one_part(part: Val) -> None:
            rows = [Rows(code, weights + stride * stream + index * shape.record, part * lanes, lanes, ahead)
                    for stream in range(groups)]
            vectors = Tokens(code, act + index * activation_block, tokens, lanes)
            before = {item: results.get(part, *item) for item in grid}
            for item, value in emit_block(FORMATS[format_name], rows, vectors, before).items():
                results.set(part, *item, value)
        _loop(code, parts, one_part)

    _loop(code, parts, begin)
    _loop(code, blocks, block)
    _loop(code, parts, end)


def emit_block(fmt: Format, rows: list[Rows], tokens: Tokens, results: Grid) -> Grid:
    """One block of every stream (`rows`) and token: the new results."""
    totals: Grid = {}
    for j in range(fmt.subblocks):
        integers = _subblock(fmt, rows, tokens, j, list(results))
        scales = [fmt.scale(stream, j) for stream in rows]
        for (stream, token), integer in integers.items():
            value, scale = integer.convert("sitofp", F32), scales[stream]
            if scale is not None:
                before = totals.get((stream, token), value.like(0.0))
                value = tokens.code.fma(value, scale.convert("sitofp", F32), before)
            totals[stream, token] = value
    return {(stream, token): fmt.finish(rows[stream], tokens, token, totals[stream, token], result)
            for (stream, token), result in results.items()}


def _subblock(fmt: Format, rows: list[Rows], tokens: Tokens, j: int, grid: list[tuple[int, int]]) -> Grid:
    """The exact integer sums of sub-block j."""
    code, field = tokens.code, fmt.start_field(j)
    integers: Grid = {}
    for stream, token in grid:
        start = code.constant(vector(I32, tokens.lanes), 0) if field is None else tokens.integer(field, token)
        integers[stream, token] = code.start8(start) if fmt.wide else start
    for c in range(fmt.chunks):
        weights = [fmt.chunk(stream, j, c) for stream in rows]
        values = [tokens.integer(fmt.field(j, c), token) for token in range(tokens.tokens)]
        dot = code.dot8 if fmt.wide else code.dot7
        for stream, token in grid:
            integers[stream, token] = dot(integers[stream, token], weights[stream], values[token])
    return integers
