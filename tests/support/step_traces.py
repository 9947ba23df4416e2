"""Which instructions of a kernel this process runs, in their order, by single steps, and which lines of memory they
name.

Where two runs have the same steps, no jump of the code depended on what differed between them. Where they have the same
lines, no address did, down to a line of the caches. Operands come from a disassembly of the prebuilt library. A masked
load or store is noted with whether its mask is empty, and one with an address for each lane by its base alone.
"""

from __future__ import annotations

import ctypes
import platform
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.support.require import tools

SOURCE = Path(__file__).with_suffix(".c")
_ROOM = 1 << 24


_NUMBERS = {name: number for number, name in enumerate(
    ["r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp"])}
_INSTRUCTION = re.compile(r"^ *([0-9a-f]+):\t(?:\{\w+\} )?(\S+) *(.*)$", re.MULTILINE)
_MEMORY = re.compile(r"(-?0x[0-9a-f]+)?\((?:%(\w+))?(?:,%(\w+)(?:,(\d))?)?\)")
_MASK = re.compile(r"\{%k(\d)\}")
_OPERAND = np.dtype([("base", "i1"), ("index", "i1"), ("scale", "i1"), ("mask", "i1"), ("away", "<i4")])


@cache
def _operands(path: str) -> NDArray[np.void]:
    """What each instruction of a library names, by its place in the file's memory."""
    tools("objdump", package="binutils")
    command = ["objdump", "-d", "--no-show-raw-insn", path]
    found = _INSTRUCTION.findall(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    table = np.zeros(int(found[-1][0], 16) + 16, _OPERAND)
    for place, name, words in found:
        if "(" not in words or name == "lea" or "nop" in name + words or "%rip" in words:  # %rip leads to what is fixed
            continue
        memory = _MEMORY.search(words)
        assert memory is not None, words
        (away, base, index, scale), masked = memory.groups(), _MASK.search(words)
        lanes = index is not None and index not in _NUMBERS  # one address for each lane
        table[int(place, 16)] = (
            -1 if base is None else _NUMBERS[base], -1 if index is None or lanes else _NUMBERS[index],
            -1 if lanes else int(scale or 1), -1 if masked is None else int(masked[1]), int(away or "0", 16))
    return table


def mapped(address: int) -> tuple[int, int]:
    """The beginning and end of the memory that an address lies in."""
    return _mapping(address)[:2]


def _mapping(address: int) -> tuple[int, int, str, int]:
    """The same, the file that is mapped there, and where the file's memory begins."""
    begins = dict[str, int]()
    for line in Path("/proc/self/maps").read_text().splitlines():
        words = line.split(maxsplit=5)
        first, end = (int(each, 16) for each in words[0].split("-"))
        path = words[5] if len(words) > 5 else ""
        begins.setdefault(path, first)
        if first <= address < end:
            return first, end, path, begins[path]
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
        first, end, path, begin = _mapping(address)
        self._library, self._code = ctypes.CDLL(str(library)), (first, end)
        for name in ("steps_end", "steps_lines", "steps_scattered"):
            getattr(self._library, name).restype = ctypes.c_uint64
        self._operands = None
        if path.endswith(".so"):  # kernels that were compiled just now are in no file
            self._operands = np.zeros(end - first, _OPERAND)
            known = _operands(path)[first - begin:end - begin]
            self._operands[:len(known)] = known
        self.lines = self.scattered = 0
        """Of the trace: a hash of the lines that it names in their order (0 without a library), and how many times an
        instruction named one for each lane."""
        self._notes = np.zeros(_ROOM, np.uint32)
        self.steps: NDArray[np.uint32] = self._notes[:0]
        """The trace: the place of each step in the code. It stays until the next one."""

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace what happens within."""
        first, end = map(ctypes.c_uint64, self._code)
        self._library.steps_begin(first, end, ctypes.c_void_p(self._notes.ctypes.data), ctypes.c_uint64(_ROOM),
                                  None if self._operands is None else ctypes.c_void_p(self._operands.ctypes.data))
        try:
            yield
        finally:
            count = self._library.steps_end()
        assert 0 < count <= _ROOM, f"{count} steps were taken"
        self.steps = self._notes[:count]
        self.lines, self.scattered = self._library.steps_lines(), self._library.steps_scattered()

    def traced(self, kernel: Callable[[int], int]) -> Callable[[int], int]:
        """A kernel that is traced when it is called."""
        def run(call: int) -> int:
            with self.tracing():
                return kernel(call)
        return run

    @property
    def trace(self) -> tuple[bytes, int]:
        """Steps and lines. With AVX-512, no instruction may name a line for each lane: nobody would see which."""
        assert not self.scattered or "avx512f" not in Path("/proc/cpuinfo").read_text(), self.scattered
        return self.steps.tobytes(), self.lines
