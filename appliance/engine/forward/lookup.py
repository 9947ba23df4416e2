"""The residual rows of tokens where the embedding is not resident, before the kernel runs.

Where nobody may see which rows a pass needs, all groups of rows are gone through for some tokens at
a time. The group of each token is copied by a mask, and so is its row out of the 16 of that group.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.families import names
from appliance.kernels.layouts.shapes import SHAPES, group_nbytes
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file.layout import GROUP_ROWS
from appliance.models.sources.source import TileSource

_LINE = 64


def _masks(numbers: NDArray[np.int64], first: int, count: int) -> NDArray[np.int32]:
    """(numbers, count) int32: all ones where a number is that of a column, from `first` on."""
    same: NDArray[np.bool_] = numbers[:, None] == np.arange(first, first + count)
    return -same.astype(np.int32)


class Lookup:
    """The writer of residual rows."""

    def __init__(self, source: TileSource, table: KernelTable, to: tuple[int, int], row: int) -> None:
        """`to`: address of the residual rows, and bytes between them; `row`: address of memory for
        one more."""
        self._source, self._weight = source, source.weight(names.EMBEDDING)
        shape = SHAPES[self._weight.format.name]
        self._gather, self._pick = table.function(f"gather_{shape.suffix}"), table.function("pick_pieces")
        self._nbytes = group_nbytes(shape.name, self._weight.columns)
        self._stride = -(-self._nbytes // _LINE) * _LINE
        self._to, self._row = to, row

    def __call__(self, tokens: NDArray[np.int64]) -> None:
        """Write the rows of some tokens. Within `passing` only."""
        address, stride = self._to
        if not self._weight.every:
            for index, packed, row in self._source.rows(names.EMBEDDING, tokens.tolist()):
                self._gather(packed, self._weight.columns, row, address + index * stride)
            return
        _, most = self._source.spare(names.EMBEDDING)
        for first in range(0, tokens.size, most):
            self._go_through(tokens[first:first + most], address + first * stride)

    def _go_through(self, tokens: NDArray[np.int64], to: int) -> None:
        """Write the rows of as many tokens as there is memory for groups."""
        (groups, _), first = self._source.spare(names.EMBEDDING), 0
        for packed, count in self._source.groups(names.EMBEDDING):
            masks = _masks(tokens // GROUP_ROWS, first, count)
            self._pick(packed, self._nbytes, count, masks.ctypes.data, tokens.size, groups, self._stride)
            first += count
        masks = _masks(tokens % GROUP_ROWS, 0, GROUP_ROWS)
        for index in range(tokens.size):
            for row in range(GROUP_ROWS):
                self._gather(groups + index * self._stride, self._weight.columns, row, self._row)
                self._pick(self._row, 4 * self._weight.columns, 1, masks[index, row:].ctypes.data, 1,
                           to + index * self._to[1], _LINE)


class TokenRows:
    """The writer of tokens' rows where each lies beside a row of another model. The embedding is in
    memory."""

    def __init__(self, source: TileSource, table: KernelTable, to: tuple[int, int]) -> None:
        """`to`: address of the rows, and bytes between them."""
        self._weight, self._to = source.weight(names.EMBEDDING), to
        self._gather = table.function(f"gather_{SHAPES[self._weight.format.name].suffix}")

    def __call__(self, tokens: NDArray[np.int64]) -> None:
        """Write the rows of some tokens."""
        address, stride = self._to
        for index, token in enumerate(tokens.tolist()):
            self._gather(self._weight.address, self._weight.columns, token, address + index * stride)
