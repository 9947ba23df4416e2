"""Self-test of the weights of a draw and their sums: fixed logits, and what they weigh."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import inputs
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable

CHUNK = 256
COUNTS = (1, 7, 8, 255, 256, 1285)  # whole vectors and what is left of them; no, one and some chunks
TEMPERATURES = (1.0, 0.7, 0.001)  # at the last some weigh nothing


def logits(count: int) -> NDArray[np.float32]:
    """Logits within -4..4, and an outlier where there are many."""
    return inputs.floats(f"weights {count}", count)


def values(count: int) -> NDArray[np.float64]:
    """Numbers of either sign that are to be summed up: the lower half of their bits counts, too."""
    words = inputs.stream(f"sums {count}", 8 * count).view("<i8")
    return np.asarray(words.astype(np.float64) * 2.0**-60)


def weigh_logits(table: KernelTable) -> bytes:
    """Return the weights of each count of logits at each temperature, as binary64."""
    call, found = table.function("weigh_logits"), list[bytes]()
    for count in COUNTS:
        row, out = inputs.placed(logits(count)), Memory(8 * count)
        for temperature in TEMPERATURES:
            call(row.address, count, float(logits(count).max()), temperature, out.address)
            found.append(out.view(np.float64, count=count).tobytes())
    return b"".join(found)


def running_sums(table: KernelTable) -> bytes:
    """Return the sums up to the end of each chunk, of each count of numbers, as binary64."""
    call, found, spare = table.function("running_sums"), list[bytes](), Memory(8 * CHUNK)
    for count in COUNTS:
        row, chunks = inputs.placed(values(count)), -(-count // CHUNK)
        out = Memory(8 * chunks)
        call(row.address, count, spare.address, out.address)
        found.append(out.view(np.float64, count=chunks).tobytes())
    return b"".join(found)
