"""Memory for what sampling makes of a row of logits: locked, kept out of dumps, wiped with the
engine.

numpy keeps the results of expressions on its heap, where nobody wipes them. So everything that has
values of logits is computed into views of one block; numpy makes only indices and single numbers by
itself.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.sweeping import Sweep
from appliance.kernels.runtime.memory import ALIGNMENT, Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.secure import locked

CHUNK = 256  # numbers that are summed up at once; rows are filled up to it
_ROWS = (np.float32, np.float32, np.float64, np.float64, np.float64, np.bool_)


def _sizes(vocabulary: int) -> list[int]:
    filled = -(-vocabulary // CHUNK) * CHUNK
    sizes = [filled * np.dtype(kind).itemsize for kind in _ROWS] + [CHUNK * np.dtype(np.float64).itemsize]
    return [-(-size // ALIGNMENT) * ALIGNMENT for size in sizes]


def nbytes(vocabulary: int) -> int:
    """Bytes for rows of so many logits."""
    return sum(_sizes(vocabulary))


class Scratch:
    """One row's at a time. The arrays are (vocabulary,), filled up to chunks: `adjusted` logits;
    `some` of them, in whatever order; `wide`, `powers` and `sums`, which depend on who computes;
    `mask`. `spare` is (CHUNK,)."""

    def __init__(self, vocabulary: int, kernels: KernelTable, *, sweeps: bool = False) -> None:
        """`kernels`: the functions of `chain/exact` for many numbers. With `sweeps`, tokens are
        chosen without an index that depends on one (`chain/sweeps`). EngineError where there is
        no memory."""
        self._kernels = kernels  # its functions live as long as it does
        self.weigh, self.running_sums = kernels.function("weigh_logits"), kernels.function("running_sums")
        self.sweep = Sweep(kernels, vocabulary) if sweeps else None
        self._memory = Memory(nbytes(vocabulary))
        locked.protect(self._memory.address, self._memory.nbytes, "activations", own=self._memory.own)
        count = -(-vocabulary // CHUNK) * CHUNK
        *starts, last, _ = np.cumsum([0, *_sizes(vocabulary)]).tolist()
        rows = [self._memory.view(kind, offset=at, count=count) for kind, at in zip(_ROWS, starts, strict=True)]
        self.adjusted, self.some, self.wide, self.powers, self.sums, self.mask = rows
        self.spare = self._memory.view(np.float64, offset=last, count=CHUNK)

    def pick(self, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """`logits[ids]`, in `some`."""
        return np.take(logits, ids, out=self.some[:ids.size], mode="clip")  # "raise" would copy

    def widen(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """The same numbers, in `wide`."""
        wide = self.wide[:logits.size]
        np.copyto(wide, logits)
        return wide

    def release(self) -> None:
        """Overwrite everything with zeros."""
        self._memory.wipe()
        if self.sweep is not None:
            self.sweep.wipe()
