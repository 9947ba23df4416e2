"""Weights in kernel order, put back in the order of GGUF."""

from __future__ import annotations

from typing import Any

from appliance.models.file.quants import BlockFormat
from appliance.models.sealed import order as kernel_order


def deinterleave(block_format: BlockFormat, data: Any, rows: int, columns: int) -> bytes:
    """The rows of a matrix in kernel order."""
    out = bytearray(rows * block_format.row_nbytes(columns))
    kernel_order.deinterleave_into(block_format, data, rows, columns, out)
    return bytes(out)
