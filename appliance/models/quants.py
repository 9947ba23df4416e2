"""Block formats of GGUF tensors: one table, and a plain decoder for each.

A row of weights is a run of blocks; a block holds `elements` weights in `nbytes` bytes. Each layout below is a
numpy structured type, read top to bottom as the bytes lie in the file. Source of the layouts: `ggml-common.h`
(structures `block_q4_0` ... `block_q8_1`) and `ggml.h` (type ids) of ggml.

The decoders are the oracle that every kernel is tested against: readable, not fast. Values follow ggml's order
of operations in float32, so they equal its own decoders bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError, UnsupportedError

Blocks = NDArray[Any]  # structured, one item per block
Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]

_F32 = np.float32


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How weights are stored: `elements` weights in each block of `nbytes` bytes."""

    name: str
    ggml_id: int  # the number in a GGUF tensor entry
    elements: int  # weights per block
    nbytes: int  # bytes per block

    def row_nbytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights; FormatError when blocks would straddle rows."""
        if columns <= 0 or columns % self.elements:
            raise FormatError(f"a {self.name} row has {columns} columns; allowed: a multiple of {self.elements}")
        return columns // self.elements * self.nbytes


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


_Field = tuple[str, str] | tuple[str, str, int]
_D: _Field = ("d", "<f2")

# name, ggml id, weights per block, layout of a block, decoder
_TABLE: tuple[tuple[str, int, int, tuple[_Field, ...], Callable[[Blocks], Floats]], ...] = (
    ("F32", 0, 1, (("x", "<f4"),), _f32),
    ("F16", 1, 1, (("x", "<f2"),), _f32),
    ("BF16", 30, 1, (("x", "<u2"),), _bf16),
    ("Q4_0", 2, 32, (_D, ("qs", "u1", 16)), _q4_0),
    ("Q4_1", 3, 32, (_D, ("m", "<f2"), ("qs", "u1", 16)), _q4_1),
    ("Q5_0", 6, 32, (_D, ("qh", "u1", 4), ("qs", "u1", 16)), _q5_0),
    ("Q5_1", 7, 32, (_D, ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)), _q5_1),
    ("Q8_0", 8, 32, (_D, ("qs", "i1", 32)), _q8),
    ("Q8_1", 9, 32, (_D, ("s", "<f2"), ("qs", "i1", 32)), _q8),  # s = d * sum(qs), redundant
    ("Q2_K", 10, 256, (("scales", "u1", 16), ("qs", "u1", 64), _D, ("dmin", "<f2")), _q2_k),
    ("Q3_K", 11, 256, (("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D), _q3_k),
    ("Q4_K", 12, 256, (_D, ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)), _q4_k),
    ("Q5_K", 13, 256, (_D, ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)), _q5_k),
    ("Q6_K", 14, 256, (("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D), _q6_k),
)

_LAYOUTS: dict[str, np.dtype[Any]] = {name: np.dtype(list(fields)) for name, _, _, fields, _ in _TABLE}
_DECODERS = {name: decoder for name, _, _, _, decoder in _TABLE}

FORMATS: Mapping[str, BlockFormat] = MappingProxyType({
    name: BlockFormat(name, number, elements, _LAYOUTS[name].itemsize) for name, number, elements, _, _ in _TABLE
})
"""Every block format that runs here, by name."""

_BY_ID = {block_format.ggml_id: block_format for block_format in FORMATS.values()}

# Types that ggml has or had and that do not run here, so that a refusal can name them.
_UNSUPPORTED = MappingProxyType({
    4: "Q4_2", 5: "Q4_3", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 34: "TQ1_0", 35: "TQ2_0", 36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8", 38: "IQ4_NL_8_8", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0", 42: "Q2_0",
})


def by_id(ggml_id: int, where: str) -> BlockFormat:
    """The format with this ggml type id. `where` begins the error: UnsupportedError for a type that ggml knows,
    FormatError for a number it never used."""
    found = _BY_ID.get(ggml_id)
    if found is not None:
        return found
    supported = ", ".join(FORMATS)
    name = _UNSUPPORTED.get(ggml_id)
    if name is None:
        raise FormatError(f"{where}: block format number {ggml_id} does not exist; supported: {supported}")
    raise UnsupportedError(f"{where}: block format {name} is not supported; supported: {supported}",
                           hint="use a file quantised to one of the supported formats, for example Q4_K_M")


def layout(block_format: BlockFormat) -> np.dtype[Any]:
    """The fields of one block, as a numpy structured type of `nbytes` bytes."""
    return _LAYOUTS[block_format.name]


def dequantise(block_format: BlockFormat, data: bytes | memoryview | Bytes, rows: int, columns: int) -> Floats:
    """Decode `rows` x `columns` weights stored row by row; float32 (rows, columns). FormatError on a wrong size."""
    expected = rows * block_format.row_nbytes(columns)
    raw = np.frombuffer(data, np.uint8)
    if raw.size != expected:
        raise FormatError(f"{raw.size} bytes for {rows} x {columns} {block_format.name} weights; needed: {expected}")
    with np.errstate(over="ignore", invalid="ignore"):  # infinities in a hostile file are no error of ours
        decoded = _DECODERS[block_format.name](raw.view(_LAYOUTS[block_format.name]))
    return np.ascontiguousarray(decoded.reshape(rows, columns))
