"""Tables in whole pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.layouts.blind import UNIT, entries_of_page
from appliance.kernels.runtime.memory import Memory

PAGE = 4096


class PagedTable:
    """An array in whole pages of its own, filled up with -2."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.count = -(-array.nbytes // PAGE)
        self._memory = Memory((self.count + 1) * PAGE, apart=True)
        start = -self._memory.address % PAGE
        self.address, self.nbytes = self._memory.address + start, self.count * PAGE
        view = self._memory.view(np.uint8, offset=start, count=self.nbytes)
        view.view(np.int32)[:] = -2
        view[:array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def in_units(entries: NDArray[np.int32]) -> NDArray[np.int32]:
    """A table (n, planes) as sweeps read it: whole pages of units, filled up with -2."""
    planes = entries.shape[1]
    of_page = entries_of_page(planes)
    filled = np.full((-(-len(entries) // of_page) * of_page, planes), -2, np.int32)
    filled[:len(entries)] = entries
    units = filled.reshape(-1, of_page // UNIT, UNIT, planes).swapaxes(2, 3).reshape(-1, of_page * planes)
    pages = np.full((len(units), PAGE // 4), -2, np.int32)
    pages[:, :of_page * planes] = units
    return pages
