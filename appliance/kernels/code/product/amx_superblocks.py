"""Products by AMX for formats with sub-blocks: a block of 256 columns of 32 rows times 32 tokens at
a time, or fewer.

A weight times the scale of its sub-block is a small integer, so `unpack` multiplies them, and what
`patch.py` adds up by sub-blocks comes out of 256 columns at once. Such a product has two bytes,
which are two matrices (`amx.planes`). Of weights without an offset they are the weight times the
low three bits of the scale, and times the others; else the lower seven bits of the product, and the
others, with its sign. In Q2_K one byte is enough, in Q3_K for the product's negative. Sums are used
after those of the next tokens were begun, so that nobody waits for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from appliance.kernels.code.product import amx
from appliance.kernels.code.product.formats import FORMATS, Format, Rows, Tokens
from appliance.kernels.code.product.patch import split
from appliance.kernels.compiler.emit import F32, I8, I16, I32, Code, Val
from appliance.kernels.compiler.vector import calling, i32, i64
from appliance.kernels.layouts.shapes import ACTIVATIONS, GROUP_ROWS

AHEAD = 4096
"""Bytes of a group that weights are prefetched ahead at least, in whole blocks."""

_USED = 4
"""Tokens whose sums are used after each part of the products of two planes."""


def unpack(format_name: str) -> Any:
    """The numba function `(w, group, scratch, ahead)`: the block at `w`, as that of group 0 or 1.
    The first half of the one `ahead` bytes on is prefetched."""
    fmt = FORMATS[format_name]
    lines = _unpacking_lines(fmt) // fmt.rounds

    def block(code: Code, record: Val, to: Val, ahead: Val) -> None:
        rows = Rows(code, record, record.like(0), amx.LANES)
        fmt.begin(rows)

        def one_round(number: Val) -> None:
            moved, first = fmt.rows_of(rows, number), fmt.first_field(number) * fmt.chunks
            asked = record + ahead + number * (64 * lines)
            for j in range(fmt.subblocks):
                scale = fmt.scale(moved, j)
                for c in range(fmt.chunks):
                    for line in split(range(lines), j * fmt.chunks + c, fmt.subblocks * fmt.chunks):
                        code.prefetch(asked + 64 * line)
                    place = to + (first + fmt.field(j, c)) * amx.ROW
                    for plane, values in enumerate(_scaled(fmt, fmt.chunk(moved, j, c), scale)):
                        code.store(place + plane * _plane_nbytes(fmt), values)

        code.loop(fmt.rounds, one_round)

    def emit(code: Code, args: list[Val]) -> None:
        w, group, to, ahead = args
        block(code, w, to + group * amx.block_nbytes(fmt) + amx.unpacked(fmt), ahead)

    return calling(f"amx_unpack_{format_name.lower()}", emit, i64, i64, i64, i64)


def _unpacking_lines(fmt: Format) -> int:
    """Cache lines of a block that are prefetched while another is unpacked; the others, while it is
    multiplied. All at once would be more than the CPU asks memory for at a time, and everything
    else would wait."""
    return fmt.shape.record // 128 // fmt.rounds * fmt.rounds


def _plane_nbytes(fmt: Format) -> int:
    return GROUP_ROWS * fmt.shape.elements


def _pieces(fmt: Format) -> int:
    """Products of registers of a plane of a block."""
    return fmt.shape.elements // amx.ROW


def _low_bits(fmt: Format) -> int:
    return 7 if fmt.offset else 3


def _scaled(fmt: Format, chunk: Val, scale: Any) -> list[Val]:
    """4 weights of each row times the row's scale: low bytes, high bytes (see above); int32 lanes,
    as the chunk."""
    twice, pairs = ((scale & 0xFFFF) | (scale << 16)).bits(I16), chunk.bits(I16)
    if amx.planes(fmt) == 1:
        return [_negated(fmt, chunk, scale) if fmt.offset else (pairs * twice).bits(I32)]
    if not fmt.offset:  # no product of a byte reaches the next one
        return [(pairs * (twice & 7)).bits(I32), (pairs * (twice >> 3)).bits(I32)]
    pairs = (chunk.bits(I8) - fmt.offset).bits(I16)
    even, odd = (pairs << 8).sar(8) * twice, pairs.sar(8) * twice
    low = (even & 0x7F) | ((odd & 0x7F) << 8)
    high = ((even >> 7) & 0xFF) | ((odd << 1) & -0x100)
    return [low.bits(I32), high.bits(I32)]


def _negated(fmt: Format, chunk: Val, scale: Any) -> Val:
    """(offset - weight) times scale, in units, without a carry from byte to byte. It is the scale's
    magnitude times the weight, or times what is missing to the largest one, less the same for a
    weight of zero."""
    largest, zero = fmt.largest // fmt.unit, fmt.offset // fmt.unit
    negative = scale.sar(31)
    size = (scale ^ negative) - negative
    weights = (chunk >> (fmt.unit.bit_length() - 1)) ^ ((negative ^ -1) & (largest * 0x01010101))
    less = size * (largest - zero) + (size & negative) * (2 * zero - largest)
    products = (weights.bits(I16) * (size | (size << 16)).bits(I16)).bits(I8)
    return (products - (less * 0x01010101).bits(I8)).bits(I32)


def multiply(format_name: str, groups: int) -> Any:
    """The numba function `(w, stride, scratch, act, y, ldy, tokens, fresh, ahead)`: an unpacked
    block of `groups` (1 or
    2) groups times tokens: many times 32, and then what is left, as one stripe, or two of half as
       many (rounded up, so they may have a token in common). The registers were configured for
       stripes of that many tokens.

    `w` is the first group's record of the block, the next group's `stride` bytes on. `act` is the
    first token's block that belongs to it; `y`, `ldy` and `fresh` are as in `patch.patch`. `ahead`
    is bytes from these records to those of which the second half is prefetched.
    """
    return calling(f"amx_{format_name.lower()}_{groups}",
                   lambda code, args: _emit(code, FORMATS[format_name], groups, args),
                   i64, i64, i64, i64, i64, i64, i64, i32, i64)


def _emit(code: Code, fmt: Format, groups: int, args: list[Val]) -> None:
    w, stride, at, act, y, ldy, tokens, fresh, ahead = args
    code.align_frame()
    token_nbytes = ACTIVATIONS[fmt.shape.activation].nbytes
    blocks = [_Block(code, fmt, w + stride * group, at + amx.unpacked(fmt) + group * amx.block_nbytes(fmt))
              for group in range(groups)]
    fresh = fresh.compare("!=", 0)

    def stripes(pair: Val, second: Val | int = amx.TOKENS) -> _Stripes:
        first = pair * (2 * amx.TOKENS)
        return _Stripes(code, blocks, at, act + first * token_nbytes, second * token_nbytes, y + first * ldy,
                      ldy * second, ldy, fresh)

    pairs, left = tokens >> 5, tokens & 31  # 32 are two stripes
    with code.b.if_then(pairs.compare(">", 0).ir):
        _in_turn(stripes(pairs.like(0)).begin(pairs.like(0), ahead))
        code.loop(pairs - 1, lambda number: _in_turn(
            stripes(number + 1).begin(number + 1), stripes(number).use(number)))
        _in_turn(stripes(pairs - 1).use(pairs - 1))
    with code.b.if_then(left.compare(">", 0).ir), code.b.if_else(left.compare(">", amx.TOKENS).ir) as (two, one):
        with two:
            half = (left + 1) >> 1
            few = stripes(pairs, left - half)
            _in_turn(few.begin(pairs.like(0), ahead))
            few.use_few(2, half, half + half - left)
        with one:
            few = stripes(pairs)
            few.begin_one(ahead)
            few.use_few(1, left, left.like(0))


def _in_turn(*parts: Iterator[None]) -> None:
    """Emit a piece of each part after the other, so that matrix and vector units can work at the
    same time."""
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

    def prefetch(self, ahead: Val, part: int, parts: int) -> None:
        """Ask for a share of the block `ahead` bytes on, of what `unpack` left."""
        for line in split(range(_unpacking_lines(self.fmt), -(-self.fmt.shape.record // 64)), part, parts):
            self.code.prefetch(self.record + ahead + 64 * line)


@dataclass(frozen=True)
class _Stripes:
    """Some blocks times one or two stripes of tokens."""

    code: Code
    blocks: list[_Block]
    buffers: Val
    activations: Val
    second: Val | int  # bytes from the first stripe's activations to the second's
    y: Val
    second_y: Val  # the same of results
    ldy: Val
    fresh: Val

    def begin(self, number: Val, ahead: Val | None = None) -> Iterator[None]:
        """The sums of two stripes, plane by plane: register 2 g + t has those of block g and stripe
        t."""
        registers, fmt = amx.Registers(self.code), self.blocks[0].fmt
        for plane in range(amx.planes(fmt)):
            for register in range(len(self.blocks) * 2):
                registers.clear(register)
            for piece in range(_pieces(fmt)):
                for each in range(2):
                    self._load_tokens(each, piece, each)
                for group, block in enumerate(self.blocks):
                    registers.load(amx.WEIGHTS_IN[group], block.place(plane, piece), amx.ROW)
                    for each in range(2):
                        registers.product(2 * group + each, amx.ACTIVATIONS_IN[each], amx.WEIGHTS_IN[group],
                                      unsigned=not fmt.offset)
                    if ahead is not None:
                        block.prefetch(ahead, plane * _pieces(fmt) + piece, amx.planes(fmt) * _pieces(fmt))
                    yield
            for register in range(len(self.blocks) * 2):
                registers.store(register, self._buffer(number, plane, register))

    def use(self, number: Val) -> Iterator[None]:
        """Add the sums to the results."""
        some = _USED * 2 // amx.planes(self.blocks[0].fmt)
        for group, block in enumerate(self.blocks):
            rows = _Kept(self.code, block.record)
            for stripe in range(2):
                for first in range(0, amx.TOKENS, some):
                    found = [self._used(rows, number, group, stripe, token) for token in range(first, first + some)]
                    for token, result in enumerate(found, first):
                        self.code.store(self._result(group, stripe, token), result)
                    yield

    def begin_one(self, ahead: Val) -> None:
        """The sums of one stripe, all planes at once, where one would wait for itself; `begin` says
        where they lie."""
        registers, fmt = amx.Registers(self.code), self.blocks[0].fmt
        places = [(group, plane) for group in range(len(self.blocks)) for plane in range(amx.planes(fmt))]
        for register in range(len(places)):
            registers.clear(register)
        for piece in range(_pieces(fmt)):
            self._load_tokens(0, piece, piece % 2)
            for register, (group, plane) in enumerate(places):
                registers.load(amx.WEIGHTS_IN[register % 2], self.blocks[group].place(plane, piece), amx.ROW)
                registers.product(register, amx.ACTIVATIONS_IN[piece % 2], amx.WEIGHTS_IN[register % 2],
                              unsigned=not fmt.offset)
                for block in self.blocks:
                    block.prefetch(ahead, piece * len(places) + register, _pieces(fmt) * len(places))
        for register, (group, plane) in enumerate(places):
            registers.store(register, self._buffer(ahead.like(0), plane, 2 * group))

    def use_few(self, count: int, tokens: Val, shared: Val) -> None:
        """Add the sums of `count` stripes of `tokens` tokens; the first `shared` (0 or 1) of the
        second stripe are the first stripe's last."""
        for group, block in enumerate(self.blocks):
            rows = _Kept(self.code, block.record)
            for stripe, token in ((stripe, token) for stripe in range(count) for token in range(amx.TOKENS)):
                wanted = tokens.compare(">", token) if token or not stripe else shared.compare("==", 0)
                with self.code.b.if_then(wanted.ir) if stripe or token else contextlib.nullcontext():
                    self.code.store(self._result(group, stripe, token),
                                    self._used(rows, tokens.like(0), group, stripe, token))

    def _load_tokens(self, stripe: int, piece: int, register: int) -> None:
        amx.Registers(self.code).load(amx.ACTIVATIONS_IN[register], self._tokens(stripe) + piece * amx.ROW,
                                  ACTIVATIONS[self.blocks[0].fmt.shape.activation].nbytes)

    def _tokens(self, stripe: int) -> Val:
        return self.activations + self.second if stripe else self.activations

    def _used(self, rows: Rows, number: Val, group: int, stripe: int, token: int) -> Val:
        """The result of a token with its sums."""
        fmt, code, planes = self.blocks[0].fmt, self.code, amx.planes(self.blocks[0].fmt)
        vectors = Tokens(code, self._tokens(stripe), ACTIVATIONS[fmt.shape.activation].nbytes, amx.TOKENS, amx.LANES)
        sums = [code.load(self._buffer(number, plane, 2 * group + stripe) + token * amx.ROW, I32, amx.LANES)
                for plane in range(planes)]
        total = (sums[1] << _low_bits(fmt)) + sums[0] if planes == 2 else sums[0] * -fmt.unit if fmt.offset else sums[0]
        before = code.load(self._result(group, stripe, token), F32, amx.LANES)
        return fmt.finish(rows, vectors, token, total.convert("sitofp", F32),
                          self.fresh.select(before.like(0.0), before))

    def _buffer(self, number: Val, plane: int, register: int) -> Val:
        most = 4 * amx.BUFFER_NBYTES
        return self.buffers + (number & 1) * (2 * most) + (plane * most + register * amx.BUFFER_NBYTES)

    def _result(self, group: int, stripe: int, token: int) -> Val:
        return (self.y + self.second_y if stripe else self.y) + self.ldy * token + group * amx.ROW
