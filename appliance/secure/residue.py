"""Overwriting what requests leave in memory that is free: keys, prompts and answers that no object
holds any more.

Python's objects cannot be wiped, but memory that is free can be overwritten. Large blocks are the C
library's, which overwrites each as it is freed (`overwrite_on_free`). Blocks of up to 512 bytes are
Python's own: it keeps them, as they are, until the next object of that size. `Scrubber` takes all
of them once a second after requests have ended, filled with zeros, and gives them back. numpy keeps
small blocks as well, for each thread: `wipe_arrays`.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator

import numpy as np

from appliance.secure import stacks

M_PERTURB, BYTE = -6, 0xA5  # malloc.h; what freed memory is filled with
DELAY = 1.0  # seconds from the end of a request to the scrubbing
_HEAD, _STEP, _LARGEST = 33, 16, 512  # bytes of an empty `bytes`; between size classes; of the last
_MOST, _BLOCKS = 8192, 768  # blocks of the smallest class, of which there are most; of each other
_NUMBER, _ARRAY = 4, 1024  # bytes of a number; of the smallest array whose memory numpy does not keep
_ARRAYS = 8  # one more than the blocks of one size that it keeps
_POOLS_BYTES = 4 << 20  # of pools that no size class has, taken by the largest


def overwrite_on_free() -> bool:
    """Have the C library overwrite memory as it is freed, if it is glibc. It leaves out what a
    thread caches, so `isolated.SET` switches these caches off. Returns whether the library agreed.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(M_PERTURB, BYTE))


def wipe_arrays() -> None:
    """Overwrite the free blocks that numpy keeps for small arrays of this thread: of token ids, as
    a rule. Source: numpy/_core/src/multiarray/alloc.cpp."""
    for size in range(_NUMBER, _ARRAY, _NUMBER):
        _taken = [np.zeros(size, np.uint8) for _ in range(_ARRAYS)]


def keep_what_is_there() -> None:
    """Leave the objects of the boot, which stay, out of every later collection: so each is short.
    """
    gc.collect()
    gc.freeze()


def passes() -> Iterator[None]:
    """Take and give back the free blocks of one size class after the other, in short steps."""
    for size in (8, 24):  # buffers of byte arrays: the two classes that are smaller than an object of bytes
        taken: list[bytes | bytearray] = [bytearray(size) for _ in range(_BLOCKS)]
        yield
    for size in range(3 * _STEP - _HEAD, _LARGEST - _HEAD + 1, _STEP):
        count = _MOST if size < _HEAD else _POOLS_BYTES // _LARGEST if size > _LARGEST - _HEAD - _STEP else _BLOCKS
        taken = [bytes(size) for _ in range(count)]
        yield
    del taken


class Scrubber:
    """Scrubs once after requests have ended, or what was kept of them, however many they were."""

    def __init__(self) -> None:
        self._due: asyncio.TimerHandle | None = None

    def begin_soon(self) -> None:
        """Scrub in a moment, when what held a request that has ended is gone too."""
        if self._due is None:
            self._due = asyncio.get_running_loop().call_later(DELAY, self._begin)

    def _begin(self) -> None:
        self._due = None
        stacks.wipe()
        wipe_arrays()
        gc.collect()  # cycles of references, as connections and exceptions leave them
        self._go_on(passes())

    def _go_on(self, steps: Iterator[None]) -> None:
        try:
            next(steps)
        except (StopIteration, MemoryError):
            return
        asyncio.get_running_loop().call_soon(self._go_on, steps)
