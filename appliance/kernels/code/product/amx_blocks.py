"""Products by AMX for formats without sub-blocks: one block of 32 columns of 16 rows, times 16
tokens, of registers.

A product of registers, its way to memory and its use are kept apart (`_LAG`): each takes long until
it is there, and many can be under way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from appliance.kernels.code.product import amx
from appliance.kernels.code.product.formats import FORMATS, Format, Rows, Tokens
from appliance.kernels.code.product.patch import AHEAD, Prefetch
from appliance.kernels.compiler.emit import F32, I8, I32, Code, Locals, Val, vector
from appliance.kernels.compiler.vector import calling, i32, i64
from appliance.kernels.layouts.shapes import ACTIVATIONS

_STORE_LAG, _LAG = 3, 5  # a product is stored 3, and used 5 products later


def unpack(format_name: str) -> Any:
    """The numba function `(w, blocks, scratch)`: `blocks` blocks of a group from `w` on, at most
    `amx.RUN`."""
    fmt = FORMATS[format_name]
    offset = -0x7F7F7F80 if fmt.wide else fmt.offset * 0x01010101

    def block(code: Code, record: Val, to: Val) -> None:
        rows = Rows(code, record, record.like(0), amx.LANES)
        shares = Prefetch(record.like(AHEAD), 1).shares([rows], fmt.shape.record, fmt.chunks)
        for c in range(fmt.chunks):
            next(shares)
            chunk = fmt.chunk(rows, 0, c)
            if fmt.wide:
                chunk = chunk ^ offset
            elif fmt.offset:
                chunk = (chunk.bits(I8) - fmt.offset).bits(I32)
            code.store(to + c * amx.ROW, chunk)

    def emit(code: Code, args: list[Val]) -> None:
        w, blocks, to = args
        code.loop(blocks, lambda number: block(
            code, w + number * fmt.shape.record, to + number * amx.block_nbytes(fmt) + amx.unpacked(fmt)))

    return calling(f"amx_unpack_{format_name.lower()}", emit, i64, i64, i64)


@dataclass(frozen=True)
class _Item:
    """One product of registers of a pipeline: 16 rows of a block times the tokens' activations of
    it."""

    weights: Val  # address
    activations: Val  # address of the first token's
    use: Callable[[int, Val], None]  # of a token and the integers of 16 rows


class _Pipeline:
    """Products of registers one after the other, each stored and used some products after it was
    begun."""

    def __init__(self, code: Code, apart: int, buffers: Val) -> None:
        self.code, self.apart, self.buffers, self.registers = code, apart, buffers, amx.Registers(code)

    def run(self, items: list[_Item]) -> None:
        """The kernels of this module."""
        for number in range(len(items) + _LAG):
            if 0 <= number - _STORE_LAG < len(items):
                self._store(number - _STORE_LAG)
            if number < len(items):
                self._multiply(number, items[number])
            if number >= _LAG:
                self._use(number - _LAG, items[number - _LAG])

    def _buffer(self, number: int) -> Val:
        return self.buffers + number % amx.BUFFERS * amx.BUFFER_NBYTES

    def _multiply(self, number: int, item: _Item) -> None:
        left, right = amx.ACTIVATIONS_IN[number % 2], amx.WEIGHTS_IN[number % 2]
        self.registers.load(left, item.activations, self.apart)
        self.registers.load(right, item.weights, amx.ROW)
        self.registers.clear(amx.SUMS[number % 4])
        self.registers.product(amx.SUMS[number % 4], left, right)

    def _store(self, number: int) -> None:
        self.registers.store(amx.SUMS[number % 4], self._buffer(number))

    def _use(self, number: int, item: _Item) -> None:
        for token in range(amx.TOKENS):
            item.use(token, self.code.load(self._buffer(number) + token * amx.ROW, I32, amx.LANES))


def multiply(format_name: str) -> Any:
    """The numba function `(w, scratch, act, apart, y, ldy, blocks, fresh)`: `blocks` unpacked
    blocks times 16 tokens.

    `w`: the group's first record of them; `act`: the first token's block that belongs to it, the
    next block `apart` bytes on; `y`, `ldy`, `fresh` as in `patch.patch`.
    """
    return calling(f"amx_{format_name.lower()}", lambda code, args: _emit(code, FORMATS[format_name], args),
                   i64, i64, i64, i64, i64, i64, i64, i32)


def _emit(code: Code, fmt: Format, args: list[Val]) -> None:
    w, at, act, apart, y, ldy, blocks, fresh = args
    code.align_frame()
    pipeline = _Pipeline(code, ACTIVATIONS[fmt.shape.activation].nbytes, at)
    with code.b.if_then(fresh.compare("!=", 0).ir):
        for token in range(amx.TOKENS):
            code.store(y + ldy * token, code.constant(vector(F32, amx.LANES), 0.0))

    def some(number: Val, count: int) -> None:
        """`count` blocks from `number` on."""
        held = Locals(code, vector(F32, amx.LANES), amx.TOKENS)
        for token in range(amx.TOKENS):
            held.set(token, code.load(y + ldy * token, F32, amx.LANES))

        def item(block: Val) -> _Item:
            rows = Rows(code, w + block * fmt.shape.record, w.like(0), amx.LANES)
            vectors = Tokens(code, act + block * apart, ACTIVATIONS[fmt.shape.activation].nbytes, amx.TOKENS, amx.LANES)

            def use(token: int, integer: Val) -> None:
                total = integer.convert("sitofp", F32)
                held.set(token, fmt.finish(rows, vectors, token, total, held.get(token)))
            return _Item(at + amx.unpacked(fmt) + block * amx.block_nbytes(fmt), vectors.block, use)

        pipeline.run([item(number + index) for index in range(count)])
        for token in range(amx.TOKENS):
            code.store(y + ldy * token, held.get(token))

    whole = blocks >> 2
    code.loop(whole, lambda number: some(number << 2, 4))
    code.loop(blocks & 3, lambda number: some(number + (whole << 2), 1))
