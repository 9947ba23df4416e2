"""Self-test of a draw from fixed logits: their weights, the sums of these, the highest, the order,
and the place of a draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import inputs
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable

CHUNK = 256
COUNTS = (1, 7, 8, 255, 256, 1285)  # whole vectors and what is left of them; no, one and some chunks
HIGHEST = (1, 5, 100)  # as many of each count, or but one
ROWS = (16, 64, 512)  # lengths of rows that are sorted, and of which some entries stay
HOLE = -7
PAGES = 3
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


def mark_highest(table: KernelTable) -> bytes:
    """Return the marks (int32) of the highest of each count."""
    call, found = table.function("mark_highest"), list[bytes]()
    for count in COUNTS:
        row, marks = inputs.placed(coarse(count)), Memory(4 * count)
        for most in HIGHEST:
            call(row.address, count, min(most, count - 1), marks.address)
            found.append(marks.view(np.int32, count=count).tobytes())
    return b"".join(found)


def numbers(label: str, count: int) -> NDArray[np.int32]:
    """Some int32 of either sign, of which some are equal."""
    return inputs.stream(label, count).astype(np.int32) - 128


def bring_forward(table: KernelTable) -> bytes:
    """Return both rows of each length and how many stay, where the entries of odd numbers do."""
    call, found = table.function("bring_forward"), list[bytes]()
    for count in ROWS:
        values, names, marks = (inputs.placed(numbers(f"forward {count} {part}", count)) for part in range(3))
        marks.view(np.int32)[:] &= 1
        left = call(values.address, names.address, marks.address, count, HOLE)
        found += [values.view(np.int32, count=count).tobytes(), names.view(np.int32, count=count).tobytes(),
                  left.to_bytes(8, "little")]
    return b"".join(found)


def sort_pairs(table: KernelTable) -> bytes:
    """Return the pairs of each length in their order, as int64."""
    call, found = table.function("sort_pairs"), list[bytes]()
    for count in ROWS:
        keys, payloads = (inputs.placed(numbers(f"sort {count} {part}", count).astype(np.int64)) for part in range(2))
        call(keys.address, payloads.address, count)
        found += [keys.view(np.int64, count=count).tobytes(), payloads.view(np.int64, count=count).tobytes()]
    return b"".join(found)


def places(count: int) -> NDArray[np.int64]:
    """Some places of a row of `PAGES`."""
    return inputs.stream(f"places {count}", 4 * count).view("<u4").astype(np.int64) % (1024 * PAGES)


def add_up(table: KernelTable) -> bytes:
    """Return the rows of sums, and of the highest, of each count of numbers, as int32."""
    call, found = table.function("add_up"), list[bytes]()
    for count in ROWS:
        at, values = inputs.placed(places(count)), inputs.placed(numbers(f"sums {count}", count))
        for highest in range(2):
            row = Memory(4096 * PAGES)
            call(row.address, PAGES, at.address, values.address, count, highest)
            found.append(row.view(np.int32).tobytes())
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
