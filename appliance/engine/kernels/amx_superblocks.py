"""Products by AMX for formats with sub-blocks: a block of 256 columns of 32 rows times 32 tokens at a time, or fewer.

A weight times the scale of its sub-block is a small integer, so `unpack` multiplies them, and what `tile.py` adds up
by sub-blocks comes out of 256 columns at once. Such a product has two bytes, which are two matrices (`amx.planes`; one
byte in Q2_K). Of weights without an offset they are the weight times the low three bits of the scale, and times the
others; else the lower seven bits of the product, and the others, with its sign. Sums are used after those of the next
tokens were begun, so that nobody waits for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from appliance.engine.kernels import amx
from appliance.engine.kernels.emit import F32, I8, I16, I32, Code, Val
from appliance.engine.kernels.formats import FORMATS, Format, Rows, Tokens
from appliance.engine.kernels.shapes import ACTIVATIONS, GROUP_ROWS
from appliance.engine.kernels.vector import calling, i32, i64

AHEAD = 2048
"""Bytes of a group that weights are prefetched ahead at least, in whole blocks."""

_STEP = 4
"""Tokens whose sums are used after each step of the products of two planes."""


def unpack(format_name: str) -> Any:
    """The numba function `(w, group, scratch)`: the block at `w`, as that of group 0 or 1."""
    fmt = FORMATS[format_name]

    def block(code: Code, record: Val, to: Val) -> None:
        rows = Rows(code, record, record.like(0), amx.LANES)
        fmt.begin(rows)

        def step(number: Val) -> None:
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


def _pieces(fmt: Format) -> int:
    """Tile products of a plane of a block."""
    return fmt.shape.elements // amx.ROW


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
    """The numba function `(w, stride, scratch, act, y, ldy, tokens, fresh, ahead)`: an unpacked block of `groups` (1 or
    2) groups times tokens: many times 32, and then one tile, for which the registers were configured, of what is left.

    `w`: the first group's record of the block, the next group's `stride` bytes on; `act`: the first token's block that
    belongs to it; `y`, `ldy`, `fresh` as in `tile.tile`; `ahead`: bytes from these records to those to prefetch.
    """
    return calling(f"amx_{format_name.lower()}_{groups}",
                   lambda code, args: _emit(code, FORMATS[format_name], groups, args),
                   i64, i64, i64, i64, i64, i64, i64, i32, i64)


def _emit(code: Code, fmt: Format, groups: int, args: list[Val]) -> None:
    w, stride, at, act, y, ldy, tokens, fresh, ahead = args
    code.align_frame()
    token_nbytes = 4 * ACTIVATIONS[fmt.shape.activation].fields
    blocks = [_Block(code, fmt, w + stride * group, at + amx.unpacked(fmt) + group * amx.block_nbytes(fmt))
              for group in range(groups)]
    fresh = fresh.compare("!=", 0)

    def tiles(pair: Val, width: int) -> _Tiles:
        first = pair * (2 * amx.TOKENS)
        return _Tiles(code, blocks, width, at, act + first * token_nbytes, y + first * ldy, ldy, fresh)

    pairs, left = tokens >> 5, tokens & 31  # 32 are two tiles
    with code.b.if_then(pairs.compare(">", 0).ir):
        _in_turn(tiles(pairs.like(0), 2).begin(pairs.like(0), ahead))
        code.loop(pairs - 1, lambda number: _in_turn(
            tiles(number + 1, 2).begin(number + 1), tiles(number, 2).use(number)))
        _in_turn(tiles(pairs - 1, 2).use(pairs - 1))
    with code.b.if_then(left.compare(">", 0).ir):
        tiles(pairs, 1).begin_and_use(left, ahead)


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

    def place(self, plane: int, piece: int) -> Val:
        """Where 64 columns of a plane are unpacked."""
        return self.unpacked + plane * _plane_nbytes(self.fmt) + piece * amx.BUFFER_NBYTES

    def prefetch(self, ahead: Val, piece: int) -> None:
        """Ask for a share of the block `ahead` bytes on: all at once would be more than the CPU asks memory for."""
        share = -(-self.fmt.shape.record // (64 * _pieces(self.fmt))) * 64
        for line in range(piece * share, min((piece + 1) * share, self.fmt.shape.record), 64):
            self.code.prefetch(self.record + ahead + line)


@dataclass(frozen=True)
class _Tiles:
    """Some blocks times `width` tiles of tokens."""

    code: Code
    blocks: list[_Block]
    width: int
    buffers: Val
    activations: Val
    y: Val
    ldy: Val
    fresh: Val

    def begin(self, number: Val, ahead: Val | None = None) -> Iterator[None]:
        """The sums of two tiles, plane by plane: register 2 g + w has those of block g and the w-th tile."""
        tiles, fmt = amx.Tiles(self.code), self.blocks[0].fmt
        for plane in range(amx.planes(fmt)):
            for register in range(len(self.blocks) * self.width):
                tiles.clear(register)
            for piece in range(_pieces(fmt)):
                for each in range(self.width):
                    self._load_tokens(each, piece, each)
                for group, block in enumerate(self.blocks):
                    tiles.load(amx.WEIGHTS_IN[group], block.place(plane, piece), amx.ROW)
                    for each in range(self.width):
                        tiles.product(self.width * group + each, amx.ACTIVATIONS_IN[each], amx.WEIGHTS_IN[group],
                                      unsigned=not fmt.offset)
                    if ahead is not None and plane == 0:
                        block.prefetch(ahead, piece)
                    yield
            for register in range(len(self.blocks) * self.width):
                tiles.store(register, self._buffer(number, plane, register))

    def use(self, number: Val) -> Iterator[None]:
        """Add the sums to the results."""
        step = _STEP * 2 // amx.planes(self.blocks[0].fmt)
        for group, block in enumerate(self.blocks):
            rows = _Kept(self.code, block.record)
            for first in range(0, amx.TOKENS * self.width, step):
                found = [self._used(rows, number, group, token) for token in range(first, first + step)]
                for index, result in enumerate(found):
                    self.code.store(self._result(group, first + index), result)
                yield

    def begin_and_use(self, tokens: Val, ahead: Val) -> None:
        """One tile, of which the first `tokens` > 0 tokens count: all planes at once, for one would wait for itself;
        register `planes` * g + p has the sums of block g and plane p."""
        tiles, fmt, zero = amx.Tiles(self.code), self.blocks[0].fmt, tokens.like(0)
        planes = range(amx.planes(fmt))
        places = [(group, plane) for group in range(len(self.blocks)) for plane in planes]
        for register in range(len(places)):
            tiles.clear(register)
        for piece in range(_pieces(fmt)):
            self._load_tokens(0, piece, piece % 2)
            for register, (group, plane) in enumerate(places):
                tiles.load(amx.WEIGHTS_IN[register % 2], self.blocks[group].place(plane, piece), amx.ROW)
                tiles.product(register, amx.ACTIVATIONS_IN[piece % 2], amx.WEIGHTS_IN[register % 2],
                              unsigned=not fmt.offset)
            for block in self.blocks:
                block.prefetch(ahead, piece)
        for register, (group, plane) in enumerate(places):
            tiles.store(register, self._buffer(zero, plane, group))
        for group, block in enumerate(self.blocks):
            rows = _Kept(self.code, block.record)
            for token in range(amx.TOKENS):
                with self.code.b.if_then(tokens.compare(">", token).ir) if token else contextlib.nullcontext():
                    self.code.store(self._result(group, token), self._used(rows, zero, group, token))

    def _load_tokens(self, tile: int, piece: int, register: int) -> None:
        token_nbytes = 4 * ACTIVATIONS[self.blocks[0].fmt.shape.activation].fields
        amx.Tiles(self.code).load(
            amx.ACTIVATIONS_IN[register], self.activations + piece * amx.ROW + tile * (amx.TOKENS * token_nbytes),
            token_nbytes)

    def _used(self, rows: Rows, number: Val, group: int, token: int) -> Val:
        """The result of a token with its sums."""
        fmt, code, planes = self.blocks[0].fmt, self.code, amx.planes(self.blocks[0].fmt)
        vectors = Tokens(code, self.activations, fmt.shape.activation, amx.TOKENS * self.width, amx.LANES)
        sums = [code.load(self._sum(number, plane, group, token), I32, amx.LANES) for plane in range(planes)]
        total = sums[0] if planes == 1 else (sums[1] << _low_bits(fmt)) + sums[0]
        before = code.load(self._result(group, token), F32, amx.LANES)
        return fmt.finish(rows, vectors, token, total.convert("sitofp", F32),
                          self.fresh.select(before.like(0.0), before))

    def _buffer(self, number: Val, plane: int, register: int) -> Val:
        most = 4 * amx.BUFFER_NBYTES
        return self.buffers + (number & 1) * (2 * most) + (plane * most + register * amx.BUFFER_NBYTES)

    def _sum(self, number: Val, plane: int, group: int, token: int) -> Val:
        register = self.width * group + token // amx.TOKENS
        return self._buffer(number, plane, register) + token % amx.TOKENS * amx.ROW

    def _result(self, group: int, token: int) -> Val:
        return self.y + self.ldy * token + group * amx.ROW
