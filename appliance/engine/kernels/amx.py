"""Products by Intel's AMX (Intel 64 manual, volume 1, chapter 18): tiles of 8-bit weights times tiles of activations.

The rows of a group are the columns of a matrix B. A record already holds them as TDPBSSD wants them: 64 bytes with 4
neighbouring weights of each of 16 rows are one row of B. `unpack` turns a run of blocks into signed bytes and float
scales in scratch memory, once for many tokens; `multiply` takes 16 tokens as the rows of a matrix A, straight from the
activations. A tile product is the same integer as `tile._subblock` gives, and all that follows are the same float
operations in the same order, so every bit is the same.

A tile product, its way to memory and its use are kept apart (`_LAG`), for each takes long until it is there, and many
can be under way. Registers 0 to 3 hold sums, 4 and 5 tokens, 6 and 7 weights. Tile registers and scratch memory
held plaintext: `release` clears both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.engine.kernels.emit import F32, I8, I32, I64, Code, Locals, Val, vector
from appliance.engine.kernels.formats import FORMATS, Format, Rows, Tokens
from appliance.engine.kernels.shapes import ACTIVATIONS, GROUP_ROWS, SHAPES
from appliance.engine.kernels.tile import AHEAD, Prefetch
from appliance.engine.kernels.vector import i32, i64, operation

TOKENS = 16
"""Of a tile."""

LEAST = 16
"""Tokens from which on unpacking is worth it."""

MOST = 96
"""Tokens that unpacked weights are multiplied with before the next: their activations come from the second-level cache
again for each group of rows."""

RUN_COLUMNS = 256
"""Columns that are unpacked at a time."""

_LANES = GROUP_ROWS
_ROW = 64  # bytes of a row of a tile register
_SUMS, _ACTIVATIONS, _WEIGHTS = (0, 1, 2, 3), (4, 5), (6, 7)  # tile registers
_BUFFERS = 8  # for sums on their way to vector registers
_BUFFER_NBYTES = 16 * _ROW
_STORE_LAG, _LAG = 3, 5  # a product is stored 3, and used 5 products later


def run_blocks(format_name: str) -> int:
    """Blocks that are unpacked at a time."""
    return RUN_COLUMNS // SHAPES[format_name].elements


def _positions(fmt: Format) -> list[int]:
    """The numbers, in column order, of a block's sub-blocks in the order in which they are added up."""
    steps: list[Any] = list(range(fmt.steps))
    return [int(fmt.first_field(step)) + fmt.field(j, 0) // fmt.chunks for step in steps for j in range(fmt.subblocks)]


def _block_nbytes(fmt: Format) -> int:
    """Bytes of an unpacked block: weights, then the sub-blocks' scales in the order of `_positions`."""
    return GROUP_ROWS * fmt.shape.elements + (_ROW * len(_positions(fmt)) if _scaled(fmt) else 0)


def _scaled(fmt: Format) -> bool:
    return type(fmt).scale is not Format.scale


def scratch_nbytes(format_name: str) -> int:
    """Bytes of scratch memory that `unpack` and `multiply` need."""
    return _BUFFERS * _BUFFER_NBYTES + run_blocks(format_name) * _block_nbytes(FORMATS[format_name])


class Tiles:
    """The instructions, by registers' numbers."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def _call(self, name: str, *args: Val | int) -> None:
        self.code.call(f"llvm.x86.{name}", ir.VoidType(), *(
            self.code.constant(I8, arg) if isinstance(arg, int) else arg for arg in args))

    def _pointer(self, address: Val) -> Val:
        return Val(self.code, self.code.pointer(address, I8))

    def configure(self, address: Val) -> None:
        """LDTILECFG: shapes of all registers, from 64 bytes."""
        self._call("ldtilecfg", self._pointer(address))

    def release(self) -> None:
        """TILERELEASE: all registers are zero, and nothing of them is kept for a context switch."""
        self._call("tilerelease")

    def load(self, register: int, address: Val, stride: Val | int) -> None:
        """TILELOADD: rows `stride` bytes apart."""
        self._call("tileloadd64", register, self._pointer(address), self._long(stride))

    def store(self, register: int, address: Val) -> None:
        """TILESTORED: rows of 64 bytes, one after the other."""
        self._call("tilestored64", register, self._pointer(address), self._long(_ROW))

    def product(self, sums: int, left: int, right: int) -> None:
        """TILEZERO, TDPBSSD: sums = left x right, both of signed bytes."""
        self._call("tilezero", sums)
        self._call("tdpbssd", sums, left, right)

    def _long(self, number: Val | int) -> Val:
        return self.code.constant(I64, number) if isinstance(number, int) else number


def scratch(format_name: str) -> Any:
    """The numba function `() -> address` of scratch memory in the caller's frame."""
    def take(code: Code) -> Val:
        with code.b.goto_entry_block():
            slot = code.b.alloca(vector(I32, _LANES), size=scratch_nbytes(format_name) // _ROW)
            slot.align = _ROW
        return Val(code, code.b.ptrtoint(slot, I64))
    return operation(i64)(take)


def configure(format_name: str) -> Any:
    """The numba function `(scratch)` that sets the registers' shapes."""
    columns = 4 * FORMATS[format_name].chunks
    shapes = ([(TOKENS, _ROW)] * len(_SUMS) + [(TOKENS, columns)] * len(_ACTIVATIONS)
              + [(columns // 4, _ROW)] * len(_WEIGHTS))
    table = bytearray(64)  # palette, start row, 14 reserved; bytes of a row (16 bits each); rows
    table[0] = 1
    for register, (rows, nbytes) in enumerate(shapes):
        table[16 + 2 * register], table[48 + register] = nbytes, rows

    def emit(code: Code, address: Val) -> None:
        words = [int.from_bytes(table[at:at + 4], "little") for at in range(0, 64, 4)]
        code.store(address, Val(code, ir.Constant(vector(I32, 16), words)))
        Tiles(code).configure(address)
    return operation(types.void, i64)(emit)


def release(format_name: str) -> Any:
    """The numba function `(scratch)` that clears registers and scratch memory."""
    def emit(code: Code, address: Val) -> None:
        Tiles(code).release()
        zero = code.constant(vector(I32, _LANES), 0)
        code.loop(scratch_nbytes(format_name) // _ROW, lambda index: code.store(address + index * _ROW, zero))
        code.keep(address)
    return operation(types.void, i64)(emit)


def unpack(format_name: str) -> Any:
    """The numba function `(w, blocks, scratch)`: `blocks` blocks of a group from `w` on, at most `run_blocks`."""
    fmt = FORMATS[format_name]
    offset = -0x7F7F7F80 if fmt.wide else fmt.offset * 0x01010101

    def emit_block(code: Code, record: Val, to: Val) -> None:
        rows = Rows(code, record, record.like(0), _LANES)
        fmt.begin(rows)

        def step(number: Val) -> None:
            share = fmt.shape.record // fmt.steps
            Prefetch(number.like(AHEAD), 1).emit([rows.moved(number * share)], share)
            moved, first = fmt.rows_of(rows, number), fmt.first_field(number) * fmt.chunks
            for j in range(fmt.subblocks):
                for c in range(fmt.chunks):
                    chunk = fmt.chunk(moved, j, c)
                    if fmt.wide:
                        chunk = chunk ^ offset
                    elif fmt.offset:
                        chunk = (chunk.bits(I8) - fmt.offset).bits(I32)
                    code.store(to + (first + fmt.field(j, c)) * _ROW, chunk)
                scale = fmt.scale(moved, j)
                if scale is not None:
                    place = (number * fmt.subblocks + j) * _ROW + GROUP_ROWS * fmt.shape.elements
                    code.store(to + place, scale.convert("sitofp", F32))

        code.loop(fmt.steps, step)

    def emit(code: Code, args: list[Val]) -> None:
        w, blocks, to = args
        code.loop(blocks, lambda number: emit_block(
            code, w + number * fmt.shape.record, to + number * _block_nbytes(fmt) + _BUFFERS * _BUFFER_NBYTES))

    def call(code: Code, *args: Val) -> None:
        function = code.function(f"amx_unpack_{format_name.lower()}", [I64] * 3, emit)
        code.b.call(function, [arg.ir for arg in args])
    return operation(types.void, i64, i64, i64)(call)


@dataclass(frozen=True)
class _Item:
    """One tile product of a pipeline: 16 rows of a sub-block times the tokens' activations of it."""

    weights: Val  # address
    activations: Val  # address of the first token's
    use: Callable[[int, Val], None]  # of a token and the integers of 16 rows


class _Pipeline:
    """Tile products one after the other, each stored and used some products after it was begun."""

    def __init__(self, code: Code, apart: int, buffers: Val) -> None:
        self.code, self.apart, self.buffers, self.tiles = code, apart, buffers, Tiles(code)

    def run(self, items: list[_Item]) -> None:
        """All of them."""
        for number in range(len(items) + _LAG):
            if 0 <= number - _STORE_LAG < len(items):
                self._store(number - _STORE_LAG)
            if number < len(items):
                self._multiply(number, items[number])
            if number >= _LAG:
                self._use(number - _LAG, items[number - _LAG])

    def _buffer(self, number: int) -> Val:
        return self.buffers + number % _BUFFERS * _BUFFER_NBYTES

    def _multiply(self, number: int, item: _Item) -> None:
        left, right = _ACTIVATIONS[number % 2], _WEIGHTS[number % 2]
        self.tiles.load(left, item.activations, self.apart)
        self.tiles.load(right, item.weights, _ROW)
        self.tiles.product(_SUMS[number % 4], left, right)

    def _store(self, number: int) -> None:
        self.tiles.store(_SUMS[number % 4], self._buffer(number))

    def _use(self, number: int, item: _Item) -> None:
        for token in range(TOKENS):
            item.use(token, self.code.load(self._buffer(number) + token * _ROW, I32, _LANES))


def multiply(format_name: str) -> Any:
    """The numba function `(w, scratch, act, apart, y, ldy, blocks, fresh)`: `blocks` unpacked blocks times 16 tokens.

    `w`: the group's first record of them; `act`: the first token's block that belongs to it, the next block `apart`
    bytes on; `y`, `ldy`, `fresh` as in `tile.tile`.
    """
    def call(code: Code, *args: Val) -> None:
        function = code.function(f"amx_{format_name.lower()}", [I64] * 7 + [I32],
                                 lambda inner, values: _emit(inner, FORMATS[format_name], values))
        code.b.call(function, [arg.ir for arg in args])
    return operation(types.void, i64, i64, i64, i64, i64, i64, i64, i32)(call)


def _emit(code: Code, fmt: Format, args: list[Val]) -> None:
    w, at, act, apart, y, ldy, blocks, fresh = args
    code.align_frame()
    unpacked = at + _BUFFERS * _BUFFER_NBYTES
    pipeline = _Pipeline(code, 4 * ACTIVATIONS[fmt.shape.activation].fields, at)
    zero = code.constant(vector(F32, _LANES), 0.0)
    with code.b.if_then(fresh.compare("!=", 0).ir):
        for token in range(TOKENS):
            code.store(y + ldy * token, zero)

    def results() -> Locals:
        held = Locals(code, vector(F32, _LANES), TOKENS)
        for token in range(TOKENS):
            held.set(token, code.load(y + ldy * token, F32, _LANES))
        return held

    def keep(held: Locals) -> None:
        for token in range(TOKENS):
            code.store(y + ldy * token, held.get(token))

    def places(number: Val, index: int = 0) -> tuple[Rows, Tokens, Val]:
        """The record, activations and unpacked weights of block `number` + `index`."""
        rows = Rows(code, w + (number + index) * fmt.shape.record, w.like(0), _LANES)
        vectors = Tokens(code, act + (number + index) * apart, fmt.shape.activation, TOKENS, _LANES)
        return rows, vectors, unpacked + (number + index) * _block_nbytes(fmt)

    def large(number: Val) -> None:
        """A block of sub-blocks with scales."""
        rows, vectors, weights = places(number)
        totals = Locals(code, vector(F32, _LANES), TOKENS)
        for token in range(TOKENS):
            totals.set(token, zero)

        def item(order: int, position: int) -> _Item:
            scale = code.load(weights + GROUP_ROWS * fmt.shape.elements + order * _ROW, F32, _LANES)

            def use(token: int, integer: Val) -> None:
                totals.set(token, code.fma(integer.convert("sitofp", F32), scale, totals.get(token)))
            nbytes = 4 * fmt.chunks
            return _Item(weights + position * nbytes * GROUP_ROWS, vectors.block + position * nbytes, use)

        pipeline.run([item(order, position) for order, position in enumerate(_positions(fmt))])
        held = results()
        for token in range(TOKENS):
            held.set(token, fmt.finish(rows, vectors, token, totals.get(token), held.get(token)))
        keep(held)

    def small(number: Val, count: int) -> None:
        """Blocks without sub-blocks."""
        held = results()

        def item(index: int) -> _Item:
            rows, vectors, weights = places(number, index)

            def use(token: int, integer: Val) -> None:
                total = integer.convert("sitofp", F32)
                held.set(token, fmt.finish(rows, vectors, token, total, held.get(token)))
            return _Item(weights, vectors.block, use)

        pipeline.run([item(index) for index in range(count)])
        keep(held)

    if _scaled(fmt):
        code.loop(blocks, large)
        return
    whole = blocks >> 2
    code.loop(whole, lambda number: small(number << 2, 4))
    code.loop(blocks & 3, lambda number: small(number + (whole << 2), 1))
