"""Fixed inputs for the self-test of the attention kernels: a cache that is filled, and tiles of
rows that read it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import inputs
from appliance.kernels.layouts.attention import (
    NOTHING,
    PAGE,
    POSITION,
    SCRATCH_NBYTES,
    head_nbytes,
    state_nbytes,
)
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable

HEAD_SIZE = 80  # two and a half groups of 32, five vectors: whole and left-over parts of every loop
POSITIONS = 100  # one page and a part
_PAGES = -(-POSITIONS // PAGE)
TILES = (7, 2, 1)  # query rows: every tile is used


def cached(part: str) -> NDArray[np.float32]:
    """(POSITIONS, HEAD_SIZE) of `part` "keys" or "values"."""
    return inputs.floats(f"attention {part}", POSITIONS, HEAD_SIZE)


def queries(rows: int) -> NDArray[np.float32]:
    """(rows, HEAD_SIZE)."""
    return inputs.floats(f"attention {rows}", rows, HEAD_SIZE) * np.float32(2.0 ** -4)


def positions(rows: int) -> list[int]:
    """The last position that each row may see."""
    return [POSITIONS - 1 - 9 * row for row in range(rows)]


def _filled(table: KernelTable, cache_format: str, pages: Sequence[int], strides: tuple[int, int]) -> list[Memory]:
    """Keys and values, stored position by position; each page of positions at its number of
    `pages`, and pages `strides` bytes apart."""
    rows = [inputs.placed(cached(part)) for part in ("keys", "values")]
    cache = [Memory(len(pages) * stride) for stride in strides]
    remember = table.function(f"remember_{cache_format}")
    for position in range(POSITIONS):
        key, value = (row.address + 4 * HEAD_SIZE * position for row in rows)
        to_keys, to_values = (memory.address + pages[position // PAGE] * stride
                              for memory, stride in zip(cache, strides, strict=True))
        remember(key, value, to_keys, to_values, position % PAGE, HEAD_SIZE)
    return cache


def remember(table: KernelTable, cache_format: str) -> bytes:
    """The bytes of keys, then of values."""
    filled = _filled(table, cache_format, range(_PAGES), head_nbytes(cache_format, HEAD_SIZE))
    return b"".join(memory.view(np.uint8).tobytes() for memory in filled)


def query(table: KernelTable) -> bytes:
    """Query rows with 8 bits."""
    memory = inputs.placed(queries(TILES[0]))
    table.function("query_q8")(memory.address, TILES[0], HEAD_SIZE)
    return memory.view(np.uint8).tobytes()


def attend(table: KernelTable, cache_format: str) -> bytes:
    """The states of the rows of all TILES. Pages are not in the order of positions."""
    order = range(_PAGES - 1, -1, -1)
    stride = max(head_nbytes(cache_format, HEAD_SIZE))
    cache, found, pages = _filled(table, cache_format, order, (stride, stride)), [], Memory(8 * _PAGES)
    pages.view(np.int64)[:] = np.array(order) * stride
    for rows in TILES:
        asked = inputs.placed(queries(rows))
        if cache_format != "f16":
            table.function("query_q8")(asked.address, rows, HEAD_SIZE)
        states, scratch = Memory(state_nbytes(HEAD_SIZE) * rows), Memory(SCRATCH_NBYTES)
        states.view(np.float32).reshape(rows, -1)[:, 0] = NOTHING
        states.view(np.int32).reshape(rows, -1)[:, POSITION // 4] = positions(rows)
        table.function(f"attend_{cache_format}")(
            asked.address, states.address, rows, HEAD_SIZE, cache[0].address, cache[1].address,
            pages.address, 0, POSITIONS, scratch.address, 0)
        found.append(states.view(np.uint8).tobytes())
    return b"".join(found)
