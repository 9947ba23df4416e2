"""Products by AMX for formats with sub-blocks: a block of 256 columns of 32 rows times 32 tokens at a time.

A weight times the scale of its sub-block is a small integer, so `unpack` multiplies them, and what `tile.py` adds up
by sub-blocks comes out of 256 columns at once. Such a product has two bytes, which are two matrices (`amx.planes`; one
byte in Q2_K). Of weights without an offset they are the weight times the low three bits of the scale, and times the
others; else the lower seven bits of the product, and the others, with its sign. Sums are used after those of the next
tokens were begun, so that nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from appliance.engine.kernels import amx
from appliance.engine.kernels.emit import F32, I8, I16, I32, Code, Val
from appliance.engine.kernels.formats import FORMATS, Format, Rows, Tokens
from appliance.engine.kernels.shapes import ACTIVATIONS, GROUP_ROWS
from appliance.engine.kernels.tile import AHEAD, Prefetch
from appliance.engine.kernels.vector import calling, i32, i64

_STEP = 4
"""Tokens whose sums are used after each step of the products of two planes."""


def unpack(format_name: str) -> Any:
    """The numba function `(w, group, scratch)`: the block at `w`, as that of group 0 or 1."""
    fmt = FORMATS[format_name]

    def block(code: Code, record: Val, to: Val) -> None:
        rows = Rows(code, record, record.like(0), amx.LANES)
        fmt.begin(rows)

        def step(number: Val) -> None:
            share = fmt.shape.record // fmt.steps
            Prefetch(number.like(AHEAD), 1).emit([rows.moved(number * share)], share)
            moved, first = fmt.rows_of(rows, number), fmt.first_field(number) * fmt.chunks
            for j in range(fmt.subblocks):
                scale = fmt.scale(moved, j)
                for c in range(fmt.chunks):
                    place = to + (first + fmt.field(j, c)) * amx.ROW
                    for plane, values in enumerate(_scaled(fmt, fmt.chunk(moved, j, c), scale)):
                        code.store(place + plane * _plane_nbytes(fmt), values)

        code.loop(fmt.steps, step)

    def emit(code: Code, args: list[Val]) -> None:
        w, group, to = args
        block(code, w, to + group * amx.block_nbytes(fmt) + amx.unpacked(fmt))

    return calling(f"amx_unpack_{format_name.lower()}", emit, i64, i64, i64)


def _plane_nbytes(fmt: Format) -> int:
    return GROUP_ROWS * fmt.shape.elements


def _low_bits(fmt: Format) -> int:
    return 7 if fmt.offset else 3


def _scaled(fmt: Format, chunk: Val, scale: Any) -> list[Val]:
    """4 weights of each row times the row's scale: low bytes, high bytes (see above); int32 lanes, as the chunk."""
    twice, pairs = ((scale & 0xFFFF) | (scale << 16)).bits(I16), chunk.bits(I16)
    if amx.planes(fmt) == 1:
        return [(pairs * twice).bits(I32)]
    if not fmt.offset:  # no product of a byte reaches the next one
        return [(pairs * (twice & 7)).bits(I32), (pairs * (twice >> 3)).bits(I32)]
    pairs = (chunk.bits(I8) - fmt.offset).bits(I16)
    even, odd = (pairs << 8).sar(8) * twice, pairs.sar(8) * twice
    low = (even & 0x7F) | ((odd & 0x7F) << 8)
    high = ((even >> 7) & 0xFF) | ((odd << 1) & -0x100)
    return [low.bits(I32), high.bits(I32)]


def multiply(format_name: str, groups: int) -> Any:
    """The numba function `(w, stride, scratch, act, y, ldy, tiles, fresh)`: an unpacked block of `groups` (1 or 2)
    groups times `tiles` > 0 times 16 tokens.

    `w`: the first group's record of the block, the next group's `stride` bytes on; `act`: the first token's block that
    belongs to it; `y`, `ldy`, `fresh` as in `tile.tile`.
    """
    return calling(f"amx_{format_name.lower()}_{groups}",
                   lambda code, args: _emit(code, FORMATS[format_name], groups, args),
                   i64, i64, i64, i64, i64, i64, i64, i32)


def _emit(code: Code, fmt: Format, groups: int, args: list[Val]) -> None:
    w, stride, at, act, y, ldy, count, fresh = args
    code.align_frame()
    token_nbytes = 4 * ACTIVATIONS[fmt.shape.activation].fields
    blocks = [_Block(code, fmt, w + stride * group, at + amx.unpacked(fmt) + group * amx.block_nbytes(fmt))
              for group in range(groups)]
    fresh = fresh.compare("!=", 0)

    def tiles(first: Val, width: int) -> _Tiles:
        tokens = first * amx.TOKENS
        return _Tiles(code, blocks, width, at, act + tokens * token_nbytes, y + tokens * ldy, ldy, fresh)

    pairs = count >> 1
    with code.b.if_then(pairs.compare(">", 0).ir):
        _in_turn(tiles(count.like(0), 2).begin(count.like(0)))
        code.loop(pairs - 1, lambda number: _in_turn(
            tiles((number + 1) << 1, 2).begin(number + 1), tiles(number << 1, 2).use(number)))
        _in_turn(tiles((pairs - 1) << 1, 2).use(pairs - 1))
    with code.b.if_then((count & 1).compare("!=", 0).ir):
        last = tiles(count - 1, 1)
        _in_turn(last.begin(count.like(0)))
        _in_turn(last.use(count.like(0)))


def _in_turn(*parts: Iterator[None]) -> None:
    """Emit a step of each part after the other, so that matrix and vector units can work at the same time."""
    for _ in zip_longest(*parts):
        pass


class _Kept(Rows):
    """Rows of which everything is read once, and kept."""

    def __init__(self, code: Code, record: Val) -> None:
        super().__init__(code, record, record.like(0), amx.LANES)
        self._words: dict[int, Val] = {}
        self._halves: dict[int, Val] = {}

    def words(self, offset: int) -> Val:
        """As of any rows."""
        return self._words[offset] if offset in self._words else self._words.setdefault(offset, super().words(offset))

    def halves(self, offset: int) -> Val:
        """As of any rows."""
        return self._halves[offset] if offset in self._halves else self._halves.setdefault(
            offset, super().halves(offset))


@dataclass(frozen=True)
class _Block:
    """One block of one group: its record, and where it is unpacked."""

    code: Code
    fmt: Format
    record: Val
    unpacked: Val


@dataclass(frozen=True)
class _Tiles:
    """Some blocks times `width` times 16 tokens."""

    code: Code
    blocks: list[_Block]
    width: int
    buffers: Val
    activations: Val
    y: Val
    ldy: Val
    fresh: Val

    def begin(self, number: Val) -> Iterator[None]:
        """The sums, plane by plane: register `width` * g + w has those of block g and the w-th 16 tokens."""
        tiles, fmt = amx.Tiles(self.code), self.blocks[0].fmt
        token_nbytes = 4 * ACTIVATIONS[fmt.shape.activation].fields
        for plane in range(amx.planes(fmt)):
            for register in range(len(self.blocks) * self.width):
                tiles.clear(register)
            for piece in range(fmt.shape.elements // amx.ROW):
                for each in range(self.width):
                    tiles.load(amx.ACTIVATIONS_IN[each],
                               self.activations + piece * amx.ROW + each * (amx.TOKENS * token_nbytes), token_nbytes)
                for group, block in enumerate(self.blocks):
                    tiles.load(amx.WEIGHTS_IN[group],
                               block.unpacked + plane * _plane_nbytes(fmt) + piece * amx.BUFFER_NBYTES, amx.ROW)
                    for each in range(self.width):
                        tiles.product(self.width * group + each, amx.ACTIVATIONS_IN[each], amx.WEIGHTS_IN[group],
                                      unsigned=not fmt.offset)
                    yield
            for register in range(len(self.blocks) * self.width):
                tiles.store(register, self._buffer(number, plane, register))

    def _buffer(self, number: Val, plane: int, register: int) -> Val:
        most = 4 * amx.BUFFER_NBYTES
        return self.buffers + (number & 1) * (2 * most) + (plane * most + register * amx.BUFFER_NBYTES)

    def use(self, number: Val) -> Iterator[None]:
        """Add the sums to the results."""
        fmt, code, planes = self.blocks[0].fmt, self.code, amx.planes(self.blocks[0].fmt)
        vectors = Tokens(code, self.activations, fmt.shape.activation, amx.TOKENS * self.width, amx.LANES)
        for group, block in enumerate(self.blocks):
            rows = _Kept(code, block.record)
            for first in range(0, amx.TOKENS * self.width, _STEP * 2 // planes):
                found = []
                for token in range(first, first + _STEP * 2 // planes):
                    sums = [code.load(self._sum(number, plane, group, token), I32, amx.LANES)
                            for plane in range(planes)]
                    total = sums[0] if planes == 1 else (sums[1] << _low_bits(fmt)) + sums[0]
                    before = code.load(self._result(group, token), F32, amx.LANES)
                    found.append(fmt.finish(rows, vectors, token, total.convert("sitofp", F32),
                                            self.fresh.select(before.like(0.0), before)))
                for index, result in enumerate(found):
                    code.store(self._result(group, first + index), result)
                yield

    def _sum(self, number: Val, plane: int, group: int, token: int) -> Val:
        register = self.width * group + token // amx.TOKENS
        return self._buffer(number, plane, register) + token % amx.TOKENS * amx.ROW

    def _result(self, group: int, token: int) -> Val:
        return self.y + self.ldy * token + group * amx.ROW
