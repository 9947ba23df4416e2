"""Rows of a streamed embedding: looked up before the kernel runs, straight into its residual rows."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.models.streamed import EMBEDDING, StreamedSource

_NOTHING = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(
    lambda weights, columns, row, to: None)
EMBEDDED = ctypes.cast(_NOTHING, ctypes.c_void_p).value or 0
"""Address of a function that takes the place of `gather`, for rows that are there already."""


@dataclass(frozen=True, slots=True)
class StreamedEmbedding:
    """Where the rows come from, how they are decoded, and where they go."""

    source: StreamedSource
    gather: Callable[[int, int, int, int], object]  # (packed groups, columns, row, to), of the matrix's format
    columns: int
    to: int  # address of the first row
    stride: int  # bytes between rows

    def look_up(self, tokens: NDArray[np.int64]) -> None:
        """Write the row of each token. ModelError when a tile cannot be read."""
        for index, packed, row in self.source.rows(EMBEDDING, tokens.tolist()):
            self.gather(packed, self.columns, row, self.to + index * self.stride)
