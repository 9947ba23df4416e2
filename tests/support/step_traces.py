"""Which instructions of a kernel this process runs, in their order, by single steps.

Where two runs have the same steps, no jump of the code depended on what differed between them.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.require import tools

SOURCE = Path(__file__).with_suffix(".c")
_ROOM = 1 << 24


def mapped(address: int) -> tuple[int, int]:
    """The beginning and end of the memory that an address lies in."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, end = (int(each, 16) for each in line.split()[0].split("-"))
        if first <= address < end:
            return first, end
    raise AssertionError(f"{address:x} is not mapped")


class StepTracer:
    """Traces the code that lies around an address. One thread works meanwhile."""

    def __init__(self, address: int, folder: Path) -> None:
        """`folder`: for the compiled tracer. Skips the test without a compiler, and on other machines."""
        if platform.machine() != "x86_64":
            pytest.skip("single steps need an x86-64 processor")
        tools("cc", package="gcc")
        library = folder / "step_traces.so"
        subprocess.run(["cc", "-O2", "-mno-red-zone", "-fPIC", "-shared", "-o", library, SOURCE], check=True)
        self._library, self._code = ctypes.CDLL(str(library)), mapped(address)
        self._library.steps_end.restype = ctypes.c_uint64
        self._notes = np.zeros(_ROOM, np.uint32)
        self.steps: NDArray[np.uint32] = self._notes[:0]
        """The trace: the place of each step in the code. It stays until the next one."""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what happens within."""
        first, end = map(ctypes.c_uint64, self._code)
        self._library.steps_begin(first, end, ctypes.c_void_p(self._notes.ctypes.data), ctypes.c_uint64(_ROOM))
        try:
            yield
        finally:
            count = self._library.steps_end()
        assert 0 < count <= _ROOM, f"{count} steps were taken"
        self.steps = self._notes[:count]
