"""Self-test of a draw from fixed logits: their weights, the sums of these, the highest, and the
place of a draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import inputs
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable

CHUNK = 256
COUNTS = (1, 7, 8, 255, 256, 1285)  # whole vectors and what is left of them; no, one and some chunks
HIGHEST = (1, 5, 100)  # as many of each count, or but one
UNIFORM = (0.0, 0.25, 0.999)
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


def coarse(count: int) -> NDArray[np.float32]:
    """Logits of few values, so that many are equal, and both zeros."""
    return np.asarray(np.round(logits(count)), np.float32)


def highest_logits(table: KernelTable) -> bytes:
    """Return ids (int64) and logits of the highest of each count."""
    call, found = table.function("highest_logits"), list[bytes]()
    for count in COUNTS:
        row = inputs.placed(coarse(count))
        for most in HIGHEST:
            most = min(most, count - 1)
            ids, values = Memory(8 * (most + 1)), Memory(4 * (most + 1))
            call(row.address, count, most, ids.address, values.address)
            found += [ids.view(np.int64, count=most).tobytes(), values.view(np.float32, count=most).tobytes()]
    return b"".join(found)


def place_of_draw(table: KernelTable) -> bytes:
    """Return the place of each draw from the absolute values of each count of numbers, as int64."""
    call, sum_up, found, spare = table.function("place_of_draw"), table.function("running_sums"), [], Memory(8 * CHUNK)
    for count in COUNTS:
        chunks = -(-count // CHUNK)
        row, sums = Memory(8 * CHUNK * chunks), Memory(8 * chunks)
        row.view(np.float64)[:count] = np.abs(values(count))
        sum_up(row.address, count, spare.address, sums.address)
        found += [call(row.address, count, sums.address, uniform, spare.address) for uniform in UNIFORM]
    return np.array(found, np.int64).tobytes()
