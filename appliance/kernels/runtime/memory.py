"""Memory for kernels: aligned, zeroed, with an address that does not move.

Kernels load whole vectors and may read (never write) up to `SLACK` bytes past the end of what they
were given, so every block has that much behind it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Mapping
from typing import Any

import numpy as np

from appliance.errors import EngineError
from appliance.kernels.layouts.tables import Table

ALIGNMENT = 64
"""Bytes of a cache line and of the widest vector."""

SLACK = 64
"""Bytes behind every block that may be read."""

_HUGE = 2 << 20  # a huge page; blocks of this size and more are aligned to it
_MAPPED = 1 << 20  # from this size on a block is its own mapping and goes back to the system when it is freed


class Memory:
    """A zeroed block: `.address` (int), `.nbytes`, and views. It is freed when nothing refers to it
    or its views."""

    def __init__(self, nbytes: int, *, huge: bool = False, apart: bool = False) -> None:
        """Allocate `nbytes` at a multiple of ALIGNMENT; `huge` asks for huge pages, `apart` for
        pages of its own, which go back to the system, and are nobody's then, however small they
        are."""
        if nbytes < 0:
            raise ValueError(f"block of {nbytes} bytes")
        alignment = _HUGE if huge and nbytes >= _HUGE else ALIGNMENT
        total = nbytes + alignment + SLACK
        self.own = apart or total >= _MAPPED
        """Whether nothing else is in its pages."""
        try:
            whole = self._mapped(total, huge) if self.own else np.zeros(total, np.uint8)
        except (OSError, MemoryError) as error:
            raise EngineError(f"no memory for a block of {nbytes} bytes: {error}",
                              hint="use a smaller context, fewer slots, or a smaller model", code="memory") from error
        start = -whole.ctypes.data % alignment
        self._bytes = whole[start:start + nbytes]
        self.nbytes = nbytes
        self.address = int(whole.ctypes.data) + start

    @staticmethod
    def _mapped(total: int, huge: bool) -> Any:
        area = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if huge:
            with contextlib.suppress(OSError):  # advice only: a kernel without huge pages refuses it
                area.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(area, np.uint8)

    def view(self, dtype: Any, *, offset: int = 0, count: int | None = None) -> np.ndarray:
        """`count` elements (all by default) from the byte `offset` on, as a writable array that
        shares the block."""
        size = np.dtype(dtype).itemsize
        count = (self.nbytes - offset) // size if count is None else count
        if offset < 0 or count < 0 or offset + count * size > self.nbytes:
            raise ValueError(f"view of {count} x {size} bytes at {offset} in a block of {self.nbytes}")
        return self._bytes[offset:offset + count * size].view(dtype)

    def wipe(self) -> None:
        """Overwrite the block with zeros. A buffer of zeros is read only: memory never touched is
        not fetched now."""
        for start in range(0, self.nbytes, _HUGE):
            piece = self._bytes[start:start + _HUGE]
            words = piece[:piece.size & ~7].view(np.uint64)
            if words.any() or piece[words.nbytes:].any():
                piece[:] = 0


class Words:
    """A table of 64-bit words in memory that kernels read, or several one after the other."""

    def __init__(self, nbytes: int) -> None:
        self.memory = Memory(nbytes)
        self.address = self.memory.address
        self._integers = self.memory.view(np.int64)
        self._floats = self.memory.view(np.float32)

    def put(self, table: type[Table], values: Mapping[str, int | float], base: int = 0) -> None:
        """Write fields of a table at byte `base`: integers, and float32 into the low halves of
        words."""
        for name, value in values.items():
            at = base + table.offsets[name]
            if isinstance(value, float):
                self._floats[at // 4] = value
            else:
                self._integers[at // 8] = value
