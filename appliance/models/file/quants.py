"""Block formats of GGUF tensors: one table.

A row of weights is a run of blocks; a block holds `elements` weights in `nbytes` bytes. Each layout
below is a numpy structured type, read top to bottom as the bytes lie in the file. Source of the
layouts: `ggml-common.h` (structures `block_q4_0` ... `block_q8_1`) and `ggml.h` (type ids) of ggml.
The meaning of a block's bytes is for the kernels (`kernels.formats`);
tests/support/decoders.py says it plainly.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from appliance import optional
from appliance.errors import FormatError, UnsupportedError


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How weights are stored: `elements` weights in each block of `nbytes` bytes."""

    name: str
    ggml_id: int  # the number in a GGUF tensor entry
    elements: int  # weights per block
    nbytes: int  # bytes per block

    def row_nbytes(self, columns: int) -> int:
        """Bytes of a row of `columns` weights. Raises FormatError if blocks would straddle rows."""
        if columns <= 0 or columns % self.elements:
            raise FormatError(f"a {self.name} row has {columns} columns; allowed: a multiple of {self.elements}")
        return columns // self.elements * self.nbytes


_Field = tuple[str, str] | tuple[str, str, int]
_D: _Field = ("d", "<f2")

# name, ggml id, weights per block, layout of a block
_TABLE: tuple[tuple[str, int, int, tuple[_Field, ...]], ...] = (
    ("F32", 0, 1, (("x", "<f4"),)),
    ("F16", 1, 1, (("x", "<f2"),)),
    ("BF16", 30, 1, (("x", "<u2"),)),
    ("Q4_0", 2, 32, (_D, ("qs", "u1", 16))),
    ("Q4_1", 3, 32, (_D, ("m", "<f2"), ("qs", "u1", 16))),
    ("Q5_0", 6, 32, (_D, ("qh", "u1", 4), ("qs", "u1", 16))),
    ("Q5_1", 7, 32, (_D, ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16))),
    ("Q8_0", 8, 32, (_D, ("qs", "i1", 32))),
    ("Q8_1", 9, 32, (_D, ("s", "<f2"), ("qs", "i1", 32))),  # s = d * sum(qs), redundant
    ("Q2_K", 10, 256, (("scales", "u1", 16), ("qs", "u1", 64), _D, ("dmin", "<f2"))),
    ("Q3_K", 11, 256, (("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D)),
    ("Q4_K", 12, 256, (_D, ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128))),
    ("Q5_K", 13, 256, (_D, ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128))),
    ("Q6_K", 14, 256, (("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D)),
    ("IQ4_NL", 20, 32, (_D, ("qs", "u1", 16))),
    ("IQ4_XS", 23, 256, (_D, ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128))),
    ("MXFP4", 39, 32, (("e", "u1"), ("qs", "u1", 16))),  # a scale of 2^(e - 128)
)

_LAYOUTS: dict[str, np.dtype[Any]] = {name: np.dtype(list(fields)) for name, _, _, fields in _TABLE}

FORMATS: Mapping[str, BlockFormat] = MappingProxyType({
    name: BlockFormat(name, number, elements, _LAYOUTS[name].itemsize) for name, number, elements, _ in _TABLE
})
"""Every block format that runs here, by name."""

_BY_ID = {block_format.ggml_id: block_format for block_format in FORMATS.values()}


def by_id(ggml_id: int, where: str, *, any_format: bool = False) -> BlockFormat:
    """Return the format with this ggml type id; with `any_format` also a format that does not run
    here but has a known size. `where` begins the error. Raises UnsupportedError for any other type.
    Where the desk's table of formats is at hand, a number that ggml never used is a FormatError."""
    if ggml_id in _BY_ID:
        return _BY_ID[ggml_id]
    others = optional.find("mistakes", "formats")
    if others is not None and any_format and ggml_id in others.SIZES:
        name, elements, nbytes = others.SIZES[ggml_id]
        return BlockFormat(name, ggml_id, elements, nbytes)
    name = f"number {ggml_id}" if others is None else others.name_of(ggml_id)
    if name is None:
        raise FormatError(f"{where}: block format number {ggml_id} does not exist; supported: {', '.join(FORMATS)}",
                          hint="the file is damaged, or made by a tool newer than this version")
    raise _unsupported(name, where)


def require(block_format: BlockFormat, where: str) -> None:
    """UnsupportedError, as `by_id`, for a format that does not run here."""
    if block_format.name not in FORMATS:
        raise _unsupported(block_format.name, where)


def _unsupported(name: str, where: str) -> UnsupportedError:
    others = optional.find("mistakes", "formats")
    return UnsupportedError(f"{where}: block format {name} is not supported; supported: {', '.join(FORMATS)}",
                            hint=None if others is None else others.use(name))


def layout(block_format: BlockFormat) -> np.dtype[Any]:
    """Return the fields of one block, as a numpy structured type of `nbytes` bytes."""
    return _LAYOUTS[block_format.name]
