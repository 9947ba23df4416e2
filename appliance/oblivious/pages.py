"""Tables in whole pages."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

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
