"""A choice that touches the same pages whatever is chosen: see docs/concepts/memory-access.md.

The highest logits are brought to a short list in pages of its own, and all that comes after works
there. A draw from the whole vocabulary sweeps over it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.runtime.table import KernelTable
from appliance.secure.locked import LockedBuffer

MOST = 511
"""The most logits of a short list: with room for one more, their ids take a page."""
_PAGE, _CHUNK_NBYTES = 4096, 2048


class Sweep:
    """The kernels of such a choice, and the pages that they write."""

    def __init__(self, kernels: KernelTable) -> None:
        """Errors as of `LockedBuffer`."""
        self._kernels = kernels
        self._highest, self._place = kernels.function("highest_logits"), kernels.function("place_of_draw")
        self._pages = LockedBuffer(2 * _PAGE + _CHUNK_NBYTES, "activations")
        self._ids = np.frombuffer(self._pages.view, np.int64, MOST)
        self._values = np.frombuffer(self._pages.view, np.float32, MOST, _PAGE)

    def highest(self, logits: NDArray[np.float32], count: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return ids, ascending, and logits of the `count` highest, as `ordering.highest` chooses
        them."""
        self._highest(logits.ctypes.data, logits.size, count, self._ids.ctypes.data, self._values.ctypes.data)
        return self._ids[:count], self._values[:count]

    def place(self, weights: NDArray[np.float64], sums: NDArray[np.float64], uniform: float) -> int:
        """Return the place of a draw, as `sampler.invert` finds it, by `exact.running_sums`."""
        spare = self._pages.address + 2 * _PAGE
        return int(self._place(weights.ctypes.data, weights.size, sums.ctypes.data, uniform, spare))

    def wipe(self) -> None:
        """Overwrite everything with zeros."""
        self._pages.wipe()
