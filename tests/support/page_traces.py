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
READ, WRITE, RUN = 1, 2, 4
_ROOM = 1 << 22


class PageTracer:
    """Traces some memory, each range by its address and bytes: whole pages that hold nothing else."""

    def __init__(self, ranges: Iterable[tuple[int, int]], folder: Path, window: int = 1) -> None:
        """`folder`: for the compiled tracer. `window`: pages that may be used at a time. Skips the test without a
        compiler."""
        tools("cc", package="gcc")
        library = folder / "page_traces.so"
        subprocess.run(["cc", "-O2", "-fPIC", "-fno-stack-protector", "-shared", "-o", library, SOURCE], check=True)
        self._library, self._window = ctypes.CDLL(str(library)), window
        self._library.trace_end.restype = ctypes.c_uint64
        self._notes, self._starts = np.zeros(_ROOM, np.uint64), list[int]()
        for address, nbytes in ranges:
            assert address % PAGE == 0
            self._add(address, address + -(-nbytes // PAGE) * PAGE, READ | WRITE)
            self._starts.append(address)
        self.pages = b""
        """The trace: addresses of pages, 8 bytes each."""

    def _add(self, first: int, end: int, rights: int) -> None:
        self._library.trace_add(ctypes.c_uint64(first), ctypes.c_uint64(end), rights)

    def add_process(self) -> int:
        """Trace all memory of the process but stacks, the C library's and the tracer's own, and the thread's; how many
        bytes that is. Libraries that come later are not traced."""
        thread = ctypes.CDLL(None).pthread_self
        thread.restype = ctypes.c_uint64
        stacks = (path.read_text().split() for path in Path("/proc/self/task").glob("*/syscall"))
        notes, nbytes, before = self._notes.ctypes.data, 0, 0
        apart = {thread(), *range(notes, notes + self._notes.nbytes, PAGE)}
        apart |= {int(words[-2], 16) for words in stacks if len(words) > 2}  # of threads that wait
        for line in Path("/proc/self/maps").read_text().splitlines():
            fields = [*line.split(maxsplit=5), ""]
            where, rights, name = fields[0], fields[1], fields[5]
            first, end = (int(each, 16) for each in where.split("-"))
            own = any(word in name for word in ("[stack", "[v", "/libc.", "/libc-", "/ld-", "page_traces"))
            own, before = own or (not name and before == first), end if own else 0  # a library's zeros follow it
            if rights[:3] != "---" and rights[3] == "p" and not own and not any(first <= each < end for each in apart):
                self._add(first, end, sum(bit for bit, letter in zip((READ, WRITE, RUN), rights, strict=False)
                                          if letter != "-"))
                nbytes += end - first
        return nbytes

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
