"""Rows as a GGUF file has them to kernel order: 16 rows interleaved, a record for each block (see
`models.layout`).

    fault = pack_rows(pack, rows, row_nbytes, blocks, groups, out)

`pack`: the address of a table Pack (`layouts.pack`). `rows`: 16 `groups` rows of `row_nbytes`
bytes, one after the other; `blocks` blocks of each are packed to `out`, 16 times their bytes for
each group. The result is 0, or in a debug build 1 for a table that leads out of a block or a
record, which is not followed.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types

from appliance.kernels.compiler.emit import I8, I16, I32, I64, Code, Val, vector
from appliance.kernels.compiler.jit import DEBUG, device
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import (
    LANES,
    i32,
    i32x16,
    i64,
    load_i32,
    operation,
    splat_i32,
    store_i32,
)
from appliance.kernels.layouts.pack import KINDS, Move, Pack

QUAD, WORD, OCTET, HALF, EVENS, TERMED, BYTE = range(len(KINDS))


def _joined(parts: list[Val]) -> Val:
    """Vectors, a power of two of them, as one."""
    while len(parts) > 1:
        lanes = list(range(2 * parts[0].lanes))
        parts = [first.shuffle(lanes, second) for first, second in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


def _column(code: Code, place: Val, stride: Val, element: Any) -> Val:
    """An element of each of 16 rows."""
    whole = Val(code, ir.Constant(vector(element, LANES), ir.Undefined))
    for row in range(LANES):
        item = code.load(place + stride * row, element, align=1)
        whole = Val(code, code.b.insert_element(whole.ir, item.ir, ir.Constant(I32, row)))
    return whole


def _parts(pattern: tuple[int, ...]) -> list[int]:
    """Lanes of two vectors by a pattern for the first 4 of each: 0..3 of the first vector, 4..7 of
    the second."""
    return [4 * part + (lane if lane < 4 else lane + 12) for part in range(4) for lane in pattern]


def _quad(code: Code, place: Val, stride: Val) -> list[Val]:
    """4 words of each of 16 rows: a transpose of 4 x 4 words in each quarter of 4 vectors."""
    v = [_joined([code.load(place + stride * (row + 4 * quarter), I32, 4, align=1) for quarter in range(4)])
         for row in range(4)]  # rows r, 4 + r, 8 + r, 12 + r
    low, high = _parts((0, 4, 1, 5)), _parts((2, 6, 3, 7))
    near, far = _parts((0, 1, 4, 5)), _parts((2, 3, 6, 7))
    return [v[0].shuffle(half, v[1]).shuffle(whole, v[2].shuffle(half, v[3]))
            for half, whole in ((low, near), (low, far), (high, near), (high, far))]


@operation(types.void, i64, i64, i64, i32)
def move_quad(code: Code, place: Val, stride: Val, out: Val, flip: Val) -> None:
    """4 words of each of 16 rows."""
    for index, unit in enumerate(_quad(code, place, stride)):
        code.store(out + 64 * index, unit ^ code.splat(flip, LANES))


@operation(types.void, i64, i64, i64)
def move_octet(code: Code, place: Val, stride: Val, out: Val) -> None:
    """8 halves of each of 16 rows."""
    for index, pair in enumerate(_quad(code, place, stride)):
        for half in range(2):
            code.store(out + 64 * index + 32 * half, (pair >> (16 * half)).convert("trunc", I16))


@operation(types.void, i64, i64, i64, i32)
def move_word(code: Code, place: Val, stride: Val, out: Val, flip: Val) -> None:
    """A word of each of 16 rows."""
    code.store(out, _column(code, place, stride, I32) ^ code.splat(flip, LANES))


@operation(types.void, i64, i64, i64)
def move_half(code: Code, place: Val, stride: Val, out: Val) -> None:
    """2 bytes of each of 16 rows."""
    code.store(out, _column(code, place, stride, I16))


@operation(types.void, i64, i64, i64)
def move_byte(code: Code, place: Val, stride: Val, out: Val) -> None:
    """A byte of each of 16 rows."""
    code.store(out, _column(code, place, stride, I8))


@operation(types.void, i64, i64, i64)
def move_evens(code: Code, place: Val, stride: Val, out: Val) -> None:
    """Bytes 0, 2, 4 and 6 of each of 16 rows."""
    x = _column(code, place, stride, I64) & 0x00FF00FF00FF00FF
    x = (x | (x >> 8)) & 0x0000FFFF0000FFFF
    code.store(out, (x | (x >> 16)).convert("trunc", I32))


@operation(i32x16, i32x16, i64)
def turned(code: Code, value: Val, count: Val) -> Val:
    """Each word turned left by 0..31 bits."""
    counts = code.splat(count.convert("trunc", I32), LANES)
    return code.call("llvm.fshl.v16i32", value.type, value, value, counts)


@operation(i32, i64)
def word(code: Code, value: Val) -> Val:
    """The lower 32 bits."""
    return value.convert("trunc", I32)


@device(inline=False)
def sum_terms(move: Move, record: int) -> None:
    """One word of each of 16 rows, put together from others of the record."""
    terms, total = move.TERMS, splat_i32(0)
    for index in range(move.COUNT):
        term = terms[index]
        part = load_i32(record + term.SOURCE) & splat_i32(word(term.MASK))
        total = total | turned(part, term.TURN)
    store_i32(record + move.TO, total)


@device(inline=False)
def move_units(move: Move, block: int, stride: int, record: int) -> None:
    """The units of one table MOVE: from the block of each of 16 rows to the record."""
    kind, nbytes, flip = move.KIND, move.NBYTES, word(move.FLIP)
    place, out = block + move.FROM, record + move.TO
    if kind == TERMED:
        sum_terms(move, record)
        return
    for _ in range(move.COUNT):
        if kind == QUAD:
            move_quad(place, stride, out, flip)
        elif kind == WORD:
            move_word(place, stride, out, flip)
        elif kind == OCTET:
            move_octet(place, stride, out)
        elif kind == HALF:
            move_half(place, stride, out)
        elif kind == BYTE:
            move_byte(place, stride, out)
        else:
            move_evens(place, stride, out)
        place += nbytes
        out += LANES * nbytes


@device(inline=False)
def leads_out(move: Move, block: int) -> bool:
    """Whether a table Move leaves a block of `block` bytes of a row, or its record."""
    nbytes = move.COUNT * move.NBYTES
    first, to, last = move.FROM, move.TO, 16 * block - 64
    if move.KIND == TERMED:
        for index in range(move.COUNT):
            if not 0 <= move.TERMS[index].SOURCE <= last:
                return True
        return not 0 <= to <= last
    return nbytes < 0 or first < 0 or first + nbytes > block or to < 0 or to + 16 * nbytes > 16 * block


@device(inline=False)
def pack_block(pack: Pack, block: int, place: int, stride: int, record: int) -> None:
    """All moves of one block of 16 rows."""
    for index in range(pack.MOVE_COUNT):
        move_units(pack.MOVE[index], place, stride, record)


@device(inline=False)
def pack_groups(pack: Pack, rows: int, row_nbytes: int, blocks: int, groups: int, out: int) -> int:
    """Emit the loop of `pack_rows`."""
    block = pack.BLOCK
    if DEBUG:
        for index in range(pack.MOVE_COUNT):
            if leads_out(pack.MOVE[index], block):
                return 1
    for group in range(groups):
        first = rows + 16 * group * row_nbytes
        for index in range(blocks):
            pack_block(pack, block, first + index * block, row_nbytes, out)
            out += 16 * block
    return 0


@kernel("pack_rows", "i8(i8,i8,i8,i8,i8,i8)")
def pack_rows(pack: int, rows: int, row_nbytes: int, blocks: int, groups: int, out: int) -> int:
    """Emit the kernel."""
    return pack_groups(Pack(pack), rows, row_nbytes, blocks, groups, out)
