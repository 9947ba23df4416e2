"""Which pages of its own memory this process touches, in their order: what a hypervisor learns from nested page tables.

One thread works while pages are traced. Only what compiled code and libraries touch may be traced: a system call that
is given such a page fails, where it would wait for a hypervisor.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from tests.support.require import tools

PAGE = 4096
SOURCE = Path(__file__).with_suffix(".c")
_ROOM = 1 << 22


class PageTracer:
    """Traces some memory, each range by its address and bytes: whole pages that hold nothing else."""

    def __init__(self, ranges: Iterable[tuple[int, int]], folder: Path, window: int = 1) -> None:
        """`folder`: for the compiled tracer. `window`: pages that may be used at a time. Skips the test without a
        compiler."""
        tools("cc", package="gcc")
        library = folder / "page_traces.so"
        subprocess.run(["cc", "-O2", "-fPIC", "-shared", "-o", library, SOURCE], check=True)
        self._library, self._window = ctypes.CDLL(str(library)), window
        self._library.trace_end.restype = ctypes.c_uint64
        self._notes, self._starts = np.zeros(_ROOM, np.uint64), list[int]()
        for address, nbytes in ranges:
            assert address % PAGE == 0
            self._library.trace_add(ctypes.c_uint64(address), ctypes.c_uint64(address + -(-nbytes // PAGE) * PAGE))
            self._starts.append(address)
        self.pages = b""
        """The trace: addresses of pages, 8 bytes each."""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what happens within."""
        self._library.trace_begin(ctypes.c_void_p(self._notes.ctypes.data), ctypes.c_uint64(_ROOM), self._window)
        try:
            yield
        finally:
            count = self._library.trace_end()
        assert 0 < count <= _ROOM, f"{count} pages were touched"
        self.pages = self._notes[:count].tobytes()
