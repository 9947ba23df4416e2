"""A plain decoder for each block format: the oracle that every kernel is tested against. Readable, not fast.

Values follow ggml's order of operations in float32, so they equal its own decoders bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError
from appliance.models.file.quants import BlockFormat, layout

Blocks = NDArray[Any]  # structured, one item per block
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_F32 = np.float32


def _low_high(packed: Bytes) -> Bytes:
    """Split (..., n) bytes into 4-bit values (..., 2n): all low halves, then all high halves."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _planes(packed: Bytes, bits: int, count: int) -> Bytes:
    """Cut (blocks, groups, n) bytes into `count` planes of `bits` each: (blocks, groups, count, n)."""
    shifts = (np.arange(count, dtype=np.uint8) * np.uint8(bits))[:, None]
    return (packed[:, :, None, :] >> shifts) & np.uint8((1 << bits) - 1)


def _fifth_bit(qh: Bytes) -> Bytes:
    """Spread 4 bytes (blocks, 4) into the fifth bit of 32 values: (blocks, 32), each 0 or 16."""
    return np.unpackbits(qh, axis=-1, bitorder="little") << np.uint8(4)


def _column(values: NDArray[Any]) -> Floats:
    """(blocks,) of any float type as float32 (blocks, 1)."""
    return values.astype(_F32)[:, None]


def _f32(blocks: Blocks) -> Floats:
    return blocks["x"].astype(_F32)[:, None]


def _bf16(blocks: Blocks) -> Floats:
    words = blocks["x"].astype(np.uint32)
    words <<= np.uint32(16)
    return words.view(_F32)[:, None]


def _q4_0(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * (_low_high(blocks["qs"]).astype(_F32) - _F32(8))


def _q4_1(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _low_high(blocks["qs"]).astype(_F32) + _column(blocks["m"])


def _q5_0(blocks: Blocks) -> Floats:
    q = _low_high(blocks["qs"]) | _fifth_bit(blocks["qh"])
    return _column(blocks["d"]) * (q.astype(_F32) - _F32(16))


def _q5_1(blocks: Blocks) -> Floats:
    q = _low_high(blocks["qs"]) | _fifth_bit(blocks["qh"])
    return _column(blocks["d"]) * q.astype(_F32) + _column(blocks["m"])


def _q8(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * blocks["qs"].astype(_F32)


def _q2_k(blocks: Blocks) -> Floats:
    scale = _column(blocks["d"]) * (blocks["scales"] & 15).astype(_F32)  # (blocks, 16)
    minimum = _column(blocks["dmin"]) * (blocks["scales"] >> 4).astype(_F32)
    q = _planes(blocks["qs"].reshape(-1, 2, 32), 2, 4).reshape(-1, 16, 16).astype(_F32)
    return (scale[:, :, None] * q - minimum[:, :, None]).reshape(-1, 256)


def _q3_k(blocks: Blocks) -> Floats:
    packed = blocks["scales"]  # 12 bytes: 16 low halves in 8 bytes, then 16 pairs of high bits in 4
    high = ((packed[:, None, 8:] >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3).reshape(-1, 16)
    scale = (_low_high(packed[:, :8]) | high << np.uint8(4)).astype(_F32) - _F32(32)  # (blocks, 16)
    low = _planes(blocks["qs"].reshape(-1, 2, 32), 2, 4).reshape(-1, 256).astype(_F32)
    bit = _planes(blocks["hmask"].reshape(-1, 1, 32), 1, 8).reshape(-1, 256).astype(_F32)
    q = (low + _F32(4) * bit - _F32(4)).reshape(-1, 16, 16)
    return ((_column(blocks["d"]) * scale)[:, :, None] * q).reshape(-1, 256)


def scale_min_k(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 6-bit scales and minima (blocks, 8) each, of Q4_K and Q5_K, from their 12 bytes (blocks, 12)."""
    first, second, third = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scale = np.concatenate([first & 63, (third & 15) | (first >> 6) << np.uint8(4)], axis=1)
    minimum = np.concatenate([second & 63, (third >> 4) | (second >> 6) << np.uint8(4)], axis=1)
    return scale, minimum


def _scaled_k(blocks: Blocks, q: Bytes) -> Floats:
    """Apply the scales and minima of Q4_K and Q5_K to q (blocks, 8, 32)."""
    scale, minimum = scale_min_k(blocks["scales"])
    d = (_column(blocks["d"]) * scale.astype(_F32))[:, :, None]
    m = (_column(blocks["dmin"]) * minimum.astype(_F32))[:, :, None]
    return (d * q.astype(_F32) - m).reshape(-1, 256)


def _q4_k(blocks: Blocks) -> Floats:
    return _scaled_k(blocks, _planes(blocks["qs"].reshape(-1, 4, 32), 4, 2).reshape(-1, 8, 32))


def _q5_k(blocks: Blocks) -> Floats:
    low = _planes(blocks["qs"].reshape(-1, 4, 32), 4, 2).reshape(-1, 8, 32)
    high = _planes(blocks["qh"].reshape(-1, 1, 32), 1, 8).reshape(-1, 8, 32)
    return _scaled_k(blocks, low | high << np.uint8(4))


def _q6_k(blocks: Blocks) -> Floats:
    low = _planes(blocks["ql"].reshape(-1, 2, 64), 4, 2).reshape(-1, 256)
    high = _planes(blocks["qh"].reshape(-1, 2, 32), 2, 4).reshape(-1, 256)
    q = (low | high << np.uint8(4)).reshape(-1, 16, 16).astype(_F32) - _F32(32)
    return ((_column(blocks["d"]) * blocks["scales"].astype(_F32))[:, :, None] * q).reshape(-1, 256)


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], _F32)
_E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6], _F32)


def _iq4_nl(blocks: Blocks) -> Floats:
    return _column(blocks["d"]) * _IQ4[_low_high(blocks["qs"])]


def _iq4_xs(blocks: Blocks) -> Floats:
    low = np.stack([blocks["scales_l"] & 15, blocks["scales_l"] >> 4], axis=-1).reshape(-1, 8)
    high = (blocks["scales_h"][:, None] >> (2 * np.arange(8, dtype=np.uint16))) & 3
    scale = (low | high << 4).astype(_F32) - _F32(32)
    q = _IQ4[_low_high(blocks["qs"].reshape(-1, 8, 16))]
    return ((_column(blocks["d"]) * scale)[:, :, None] * q).reshape(-1, 256)


def _mxfp4(blocks: Blocks) -> Floats:
    return np.ldexp(_F32(1), blocks["e"].astype(int) - 127)[:, None] * _E2M1[_low_high(blocks["qs"])]


_DECODERS: dict[str, Callable[[Blocks], Floats]] = {
    "F32": _f32, "F16": _f32, "BF16": _bf16, "Q4_0": _q4_0, "Q4_1": _q4_1, "Q5_0": _q5_0, "Q5_1": _q5_1, "Q8_0": _q8,
    "Q8_1": _q8, "Q2_K": _q2_k, "Q3_K": _q3_k, "Q4_K": _q4_k, "Q5_K": _q5_k, "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl, "IQ4_XS": _iq4_xs, "MXFP4": _mxfp4}


def dequantise(block_format: BlockFormat, data: bytes | memoryview | Bytes, rows: int, columns: int) -> Floats:
    """Decode `rows` x `columns` weights stored row by row; float32 (rows, columns). FormatError on a wrong size."""
    expected = rows * block_format.row_nbytes(columns)
    raw = np.frombuffer(data, np.uint8)
    if raw.size != expected:
        raise FormatError(f"{raw.size} bytes for {rows} x {columns} {block_format.name} weights; needed: {expected}")
    with np.errstate(over="ignore", invalid="ignore"):
        decoded = _DECODERS[block_format.name](raw.view(layout(block_format)))
    return np.ascontiguousarray(decoded.reshape(rows, columns))
