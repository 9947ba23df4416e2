"""The kernel order of weights: 16 rows interleaved, byte for byte the size of the GGUF rows.

A matrix of `rows` x `columns` weights is cut into groups of 16 rows; the last group is filled up
with rows of zero bytes. A group is a run of records, one for each block position along the columns,
and a record holds that block of all 16 rows. It has 16 times the bytes of a GGUF block, rearranged
so that one 64-byte load gives a kernel 4 bytes of each of the 16 rows (lane r = row r). Every CPU
uses this one order (AVX2 reads a 64-byte piece as two halves of 8 rows).

`LAYOUTS` gives the order of a record, from top to bottom. Each `ByteRun` takes `count` units of
`unit` bytes from the GGUF block, starting at `offset`. Each unit becomes 16 x `unit` consecutive
bytes of the record, row 0 to row 15. Some runs also change bits, before rows are interleaved:

- `flip`: each byte is xor 0x80. The signed weights of Q8_0 and Q8_1 become unsigned ones, offset by
  128.
- `bits`: single bits of weights are rearranged so that a kernel finds the bits of 4 neighbouring
  weights in the same place of the 4 bytes of a word. Bit i of the run (bit i % 8 of byte i // 8)
  becomes the bit that GGUF has at `bits[i]`. See `_planes_32` (Q5_0, Q5_1), `_planes_q3_k` and
  `_planes_q5_k`.

Everything else keeps the bytes of GGUF (see `quants.py`): Q4_K's scale words stay packed, nibbles
stay in pairs. A reader of it knows nothing of values: NaN scales pass through.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.models.file.quants import BlockFormat

GROUP_ROWS = 16
"""Rows that are interleaved."""

Bytes = NDArray[np.uint8]
Interleave = Callable[[BlockFormat, Any, int, int, Any], None]
"""Writes GGUF rows (any buffer), so many rows and columns, to a writable buffer of `interleaved_nbytes` in kernel
order. `engine.packing` has one, and `boot.kernel_order` one without kernels."""


@dataclass(frozen=True, slots=True)
class ByteRun:
    """`count` units of `unit` bytes of a block, from byte `offset` on; `step` is the distance
    between the bytes of a unit (1: they are neighbours)."""

    offset: int
    unit: int
    count: int
    step: int = 1
    flip: bool = False
    bits: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of a GGUF block that this run moves."""
        return self.unit * self.count


def _planes_32() -> tuple[int, ...]:
    """Fifth bits of 32 weights, weight 4 c + x at bit 4 c + x: to byte x, bit c."""
    return tuple(4 * c + x for x in range(4) for c in range(8))


def _planes_q5_k() -> tuple[int, ...]:
    """Fifth bits of 256 weights: sub-block 2 p + j, weight 4 c + x at byte 4 c + x, bit 2 p + j: to
    word 2 p + c / 4, byte x, bit 4 j + c % 4."""
    return tuple(8 * (4 * c + x) + 2 * p + j for p in range(4) for high in range(2) for x in range(4)
                 for j in range(2) for c in range(4 * high, 4 * high + 4))


def _planes_q3_k() -> tuple[int, ...]:
    """Third bits of 256 weights. From half n, bit pair i, weight 16 h + 4 c + x at byte 16 h + 4 c
    + x, bit 4 n + i. To word 4 n + 2 h + c / 2, byte x, bit 4 (c % 2) + i."""
    return tuple(8 * (16 * h + 4 * c + x) + 4 * n + i for n in range(2) for h in range(2) for pair in range(2)
                 for x in range(4) for c in (2 * pair, 2 * pair + 1) for i in range(4))


def _q6_k() -> tuple[ByteRun, ...]:
    """Q6_K by quarters of 64 weights (half n, sub-block parity h). A quarter is a word of 4 scales,
    4 words of high bits, 4 words of low nibbles for weights 0..63 of the half, and 4 for 64..127.
    (They are the low nibbles of +0 and +32, and the high nibbles of +64 and +96.)"""
    runs = [ByteRun(208, 2, 1)]
    for n in (0, 1):
        for h in (0, 1):
            runs += [ByteRun(192 + 8 * n + h, 4, 1, step=2), ByteRun(128 + 32 * n + 16 * h, 4, 4),
                     ByteRun(64 * n + 16 * h, 4, 4), ByteRun(64 * n + 32 + 16 * h, 4, 4)]
    return tuple(runs)


LAYOUTS: Mapping[str, tuple[ByteRun, ...]] = MappingProxyType({
    # one record per column
    "F32": (ByteRun(0, 4, 1),),
    "F16": (ByteRun(0, 2, 1),),
    "BF16": (ByteRun(0, 2, 1),),
    # one record per 32 columns: scale, (minimum or sum,) (fifth bits,) quants
    "Q4_0": (ByteRun(0, 2, 1), ByteRun(2, 4, 4)),
    "Q4_1": (ByteRun(0, 2, 2), ByteRun(4, 4, 4)),
    "Q5_0": (ByteRun(0, 2, 1), ByteRun(2, 4, 1, bits=_planes_32()), ByteRun(6, 4, 4)),
    "Q5_1": (ByteRun(0, 2, 2), ByteRun(4, 4, 1, bits=_planes_32()), ByteRun(8, 4, 4)),
    "Q8_0": (ByteRun(0, 2, 1), ByteRun(2, 4, 8, flip=True)),
    "Q8_1": (ByteRun(0, 2, 2), ByteRun(4, 4, 8, flip=True)),
    "IQ4_NL": (ByteRun(0, 2, 1), ByteRun(2, 4, 4)),
    "MXFP4": (ByteRun(0, 1, 1), ByteRun(1, 4, 4)),
    # one record per 256 columns: scale (and scale of minima), sub-block scales, (high bits,) low
    # bits
    "Q2_K": (ByteRun(80, 2, 2), ByteRun(0, 4, 4), ByteRun(16, 4, 16)),
    "Q3_K": (ByteRun(108, 2, 1), ByteRun(96, 4, 3), ByteRun(0, 4, 8, bits=_planes_q3_k()), ByteRun(32, 4, 16)),
    "Q4_K": (ByteRun(0, 2, 2), ByteRun(4, 4, 3), ByteRun(16, 4, 32)),
    "Q5_K": (ByteRun(0, 2, 2), ByteRun(4, 4, 3), ByteRun(16, 4, 8, bits=_planes_q5_k()), ByteRun(48, 4, 32)),
    "Q6_K": _q6_k(),
    "IQ4_XS": (ByteRun(0, 2, 1), ByteRun(2, 2, 1), ByteRun(4, 4, 1), ByteRun(8, 4, 32)),
})


def groups(rows: int) -> int:
    """Groups of 16 rows, the last one padded."""
    return -(-rows // GROUP_ROWS)


def group_nbytes(block_format: BlockFormat, columns: int) -> int:
    """Bytes of one group of 16 rows. Raises FormatError if `columns` is not whole blocks."""
    return GROUP_ROWS * block_format.row_nbytes(columns)


def interleaved_nbytes(block_format: BlockFormat, rows: int, columns: int) -> int:
    """Bytes of a whole matrix in kernel order, padding included."""
    return groups(rows) * group_nbytes(block_format, columns)
