"""One row of a weight matrix as float32: the lookup of a token's embedding.

    gather_F(w, k, row, x)
    pick_pieces(from, size, count, masks, rows, to, stride)

`w`: the matrix in kernel order; writes `k` float32 at `x`. The arithmetic is that of ggml's
decoders (a weight is (d * scale) * q - (dmin * minimum), each operation rounded), so the result
equals theirs bit for bit.

Emitted from the descriptions in `formats.py`, as products are, for a single row: 4 neighbouring
weights at a time.

`pick_pieces` copies pieces, and nobody sees which. `count` pieces of `size` bytes lie one after the
other, and `rows` places at `to` are `stride` bytes apart. Each place gets the piece whose mask is
all ones, and stays as it is without one. `masks`: an int32 for each place and piece, 0 or -1. All
pieces are read for each place, and all places are written, in whole vectors.
"""

from __future__ import annotations

from typing import Any

from numba.core import types

from appliance.kernels.code.product.formats import BYTE, FORMATS, Format, Rows, Small, Super
from appliance.kernels.code.product.patch import READ
from appliance.kernels.compiler.emit import F32, I8, I64, Code, Val
from appliance.kernels.compiler.registry import kernel
from appliance.kernels.compiler.vector import get_i32, i64, load_i32, operation, splat_i32, store_i32
from appliance.kernels.layouts.shapes import SHAPES

SIGNATURE = "void(i8,i8,i8,i8)"


def _decode(fmt: Format, rows: Rows, x: Val) -> None:
    """Emit the weights of the block of one row."""
    code, minima = rows.code, _minima(fmt, rows)
    fmt.begin(rows)
    for number in range(fmt.rounds):
        moved, first = fmt.rows_of(rows, code.constant(I64, number)), fmt.first_field(number)
        for j in range(fmt.subblocks):
            scale, factor = fmt.scale(moved, j), fmt.factor(rows)
            if scale is not None:
                factor = factor * scale.convert("sitofp", F32)
            for c in range(fmt.chunks):
                weights = (fmt.chunk(moved, j, c).bits(I8) - fmt.offset).convert("sitofp", F32) * (1 / fmt.unit)
                weights = weights * code.splat(factor, 4)
                if minima:
                    weights = weights - code.splat(minima[first + j], 4)
                code.store(x + 16 * (first * fmt.chunks + fmt.field(j, c)), weights)


def _minima(fmt: Format, rows: Rows) -> list[Val]:
    """The number subtracted from the weights of each sub-block; empty where there is none."""
    if isinstance(fmt, Small):
        return [rows.halves(32) * -1.0] if fmt.minimum else []
    found = fmt.minima(rows) if isinstance(fmt, Super) else None
    if found is None:
        return []
    scale = rows.halves(32)
    return [scale * ((word >> 8 * byte) & BYTE).convert("sitofp", F32) for word in found[0] for byte in range(4)]


def _gather(name: str) -> Any:
    elements, record = SHAPES[name].elements, SHAPES[name].record

    @operation(types.void, i64, i64, i64)
    def block(code: Code, at: Val, row: Val, x: Val) -> None:
        rows = Rows(code, at, row, 1)
        if name in READ:
            code.store(x, READ[name](rows, 0))
        else:
            _decode(FORMATS[name], rows, x)

    def gather(w: int, k: int, row: int, x: int) -> None:
        blocks = k // elements
        group = w + (row // 16) * blocks * record
        for b in range(blocks):
            block(group + b * record, row % 16, x + 4 * b * elements)
    return gather


for _shape in SHAPES.values():
    kernel(f"gather_{_shape.suffix}", SIGNATURE)(_gather(_shape.name))


@kernel("pick_pieces", "void(i8,i8,i8,i8,i8,i8,i8)")
def pick_pieces(pieces: int, size: int, count: int, masks: int, rows: int, to: int, stride: int) -> None:
    """Copy pieces by masks."""
    for row in range(rows):
        for at in range(0, size, 64):
            place = to + row * stride + at
            kept = load_i32(place)
            for piece in range(count):
                mask = splat_i32(get_i32(masks + 4 * (row * count + piece)))
                kept = kept ^ ((kept ^ load_i32(pieces + piece * size + at)) & mask)
            store_i32(place, kept)
