"""One row of a weight matrix as float32: the lookup of a token's embedding.

    gather_F(w, k, row, x)

`w`: the matrix in kernel order; writes `k` float32 at `x`. The arithmetic is that of ggml's decoders (a weight is
(d * scale) * q - (dmin * minimum), each step rounded), so the result equals `models.quants.dequantise` bit for bit.

This is scalar code: it runs once for a token. It reads the record through the same offsets as `formats.py`, one
row at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from appliance.engine.kernels.jit import device
from appliance.engine.kernels.registry import kernel
from appliance.engine.kernels.shapes import SHAPES
from appliance.engine.kernels.vector import get_bf16, get_f16, get_f32, get_i8, get_u8, set_f32

SIGNATURE = "void(i8,i8,i8,i8)"


@device
def unit_byte(record: int, offset: int, row: int, index: int) -> int:
    """Byte `index` of a row in a run of 4-byte units that begins at `offset` of the record."""
    return get_u8(record + offset + 64 * (index // 4) + 4 * row + index % 4)


@device
def half(record: int, offset: int, row: int) -> float:
    """The row's binary16 in the run of 2-byte units that begins at `offset`."""
    return get_f16(record + offset + 2 * row)


def _small(quants: int, high: int, zero: int, minimum: bool) -> Any:
    """Blocks of 32 nibbles, with a plane of fifth bits where `high` is not 0."""
    @device
    def block(record: int, row: int, x: int) -> None:
        d = half(record, 0, row)
        for i in range(32):
            q = (unit_byte(record, quants, row, i % 16) >> (4 * (i // 16))) & 15
            if high:
                q |= ((unit_byte(record, high, row, i % 4) >> (i // 4)) & 1) << 4
            value = d * np.float32(q - zero)
            if minimum:
                value = value + half(record, 32, row)
            set_f32(x + 4 * i, value)
    return block


def _eight(quants: int) -> Any:
    """Blocks of 32 signed bytes, stored xor 0x80."""
    @device
    def block(record: int, row: int, x: int) -> None:
        d = half(record, 0, row)
        for i in range(32):
            set_f32(x + 4 * i, d * np.float32(unit_byte(record, quants, row, i) - 128))
    return block


@device
def _q2_k(record: int, row: int, x: int) -> None:
    d, dmin = half(record, 0, row), half(record, 32, row)
    for i in range(256):
        scales = unit_byte(record, 64, row, i // 16)
        q = (unit_byte(record, 320, row, 32 * (i // 128) + i % 32) >> (2 * (i // 32 % 4))) & 3
        scale, minimum = d * np.float32(scales & 15), dmin * np.float32(scales >> 4)
        set_f32(x + 4 * i, scale * np.float32(q) - minimum)


@device
def _q3_k(record: int, row: int, x: int) -> None:
    d = half(record, 0, row)
    for i in range(256):
        j = i // 16
        nibble = (unit_byte(record, 32, row, j % 8) >> (4 * (j // 8))) & 15
        pair = (unit_byte(record, 160, row, j % 4) >> (2 * (j // 4))) & 3
        q = (unit_byte(record, 736, row, 32 * (i // 128) + i % 32) >> (2 * (i // 32 % 4))) & 3
        c = i % 32 // 4
        plane = unit_byte(record, 224, row, 16 * (i // 128) + 4 * (c // 2) + i % 4)
        bit = (plane >> (4 * (c % 2) + i // 32 % 4)) & 1
        set_f32(x + 4 * i, d * np.float32((nibble | (pair << 4)) - 32) * np.float32(q + 4 * bit - 4))


def _q45_k(high: int, quants: int) -> Any:
    """Q4_K, and Q5_K where `high` is not 0."""
    @device
    def block(record: int, row: int, x: int) -> None:
        d, dmin = half(record, 0, row), half(record, 32, row)
        for i in range(256):
            j = i // 32
            scale, minimum = unit_byte(record, 64, row, j % 4), unit_byte(record, 128, row, j % 4)
            third = unit_byte(record, 192, row, j % 4)
            if j < 4:
                scale, minimum = scale & 63, minimum & 63
            else:
                scale, minimum = (third & 15) | ((scale >> 6) << 4), (third >> 4) | ((minimum >> 6) << 4)
            q = (unit_byte(record, quants, row, 32 * (i // 64) + i % 32) >> (4 * (j % 2))) & 15
            if high:
                c = i % 32 // 4
                plane = unit_byte(record, high, row, 8 * (i // 64) + 4 * (c // 4) + i % 4)
                q |= ((plane >> (4 * (j % 2) + c % 4)) & 1) << 4
            set_f32(x + 4 * i, d * np.float32(scale) * np.float32(q) - dmin * np.float32(minimum))
    return block


@device
def _q6_k(record: int, row: int, x: int) -> None:
    d = half(record, 0, row)
    for i in range(256):
        part = i // 32 % 4
        quarter = 32 + 832 * (2 * (i // 128) + i % 32 // 16)
        low = unit_byte(record, quarter + 320 + 256 * (part % 2), row, i % 16) >> (4 * (part // 2))
        high = unit_byte(record, quarter + 64, row, i % 16) >> (2 * part)
        scale = get_i8(record + quarter + 4 * row + part)
        q = ((low & 15) | ((high & 3) << 4)) - 32
        set_f32(x + 4 * i, d * np.float32(scale) * np.float32(q))


@device
def _f32(record: int, row: int, x: int) -> None:
    set_f32(x, get_f32(record + 4 * row))


@device
def _f16(record: int, row: int, x: int) -> None:
    set_f32(x, get_f16(record + 2 * row))


@device
def _bf16(record: int, row: int, x: int) -> None:
    set_f32(x, get_bf16(record + 2 * row))


BLOCKS: Mapping[str, Callable[..., None]] = {
    "F32": _f32, "F16": _f16, "BF16": _bf16,
    "Q4_0": _small(32, 0, 8, False), "Q4_1": _small(64, 0, 0, True),
    "Q5_0": _small(96, 32, 16, False), "Q5_1": _small(128, 64, 0, True),
    "Q8_0": _eight(32), "Q8_1": _eight(64),
    "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q45_k(0, 256), "Q5_K": _q45_k(256, 768), "Q6_K": _q6_k,
}


def _gather(name: str) -> Any:
    block, elements, record = BLOCKS[name], SHAPES[name].elements, SHAPES[name].record

    def gather(w: int, k: int, row: int, x: int) -> None:
        blocks = k // elements
        group = w + (row // 16) * blocks * record
        for b in range(blocks):
            block(group + b * record, row % 16, x + 4 * b * elements)
    return gather


for _shape in SHAPES.values():
    kernel(f"gather_{_shape.suffix}", SIGNATURE)(_gather(_shape.name))
