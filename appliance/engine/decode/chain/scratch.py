"""Memory for what sampling makes of a row of logits: locked, kept out of dumps, wiped with the
engine.

numpy keeps the results of expressions on its heap, where nobody wipes them. So everything that has
values of logits is computed into views of one block; what numpy still makes by itself are indices,
and single numbers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.kernels.runtime.memory import ALIGNMENT, Memory
from appliance.secure import locked

_ROWS = (np.float32, np.float32, np.float64, np.float64, np.float64, np.bool_)


def _sizes(vocabulary: int) -> list[int]:
    return [-(-vocabulary * np.dtype(kind).itemsize // ALIGNMENT) * ALIGNMENT for kind in _ROWS]


def nbytes(vocabulary: int) -> int:
    """Bytes for rows of so many logits."""
    return sum(_sizes(vocabulary))


class Scratch:
    """One row's at a time. The arrays are (vocabulary,): `adjusted` logits; `some` of them, in
    whatever order; `wide`, `powers` and `sums`, which depend on who computes; `mask`."""

    def __init__(self, vocabulary: int) -> None:
        """EngineError where there is no memory."""
        self._memory = Memory(nbytes(vocabulary))
        locked.protect(self._memory.address, self._memory.nbytes, "activations", own=self._memory.own)
        starts = np.cumsum([0, *_sizes(vocabulary)]).tolist()
        rows = [self._memory.view(kind, offset=at, count=vocabulary) for kind, at in zip(_ROWS, starts, strict=False)]
        self.adjusted, self.some, self.wide, self.powers, self.sums, self.mask = rows

    def pick(self, logits: NDArray[np.float32], ids: NDArray[np.int64]) -> NDArray[np.float32]:
        """`logits[ids]`, in `some`."""
        return np.take(logits, ids, out=self.some[:ids.size], mode="clip")  # "raise" would copy

    def exponentials(self, logits: NDArray[np.float32], temperature: float = 1.0) -> NDArray[np.float64]:
        """exp((logits - the highest) / temperature), in `powers`; `wide` is used."""
        wide = self.widened(logits)
        np.subtract(wide, float(logits.max()), out=wide)
        if temperature != 1.0:
            np.divide(wide, temperature, out=wide)
        return np.exp(wide, out=self.powers[:wide.size])

    def widened(self, logits: NDArray[np.float32]) -> NDArray[np.float64]:
        """The same numbers, in `wide`."""
        wide = self.wide[:logits.size]
        np.copyto(wide, logits)
        return wide

    def release(self) -> None:
        """Overwrite everything with zeros."""
        self._memory.wipe()
