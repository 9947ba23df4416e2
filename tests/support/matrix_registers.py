"""Runs a target's library as a CPU with AMX does, on one without it: `python -m tests.support.matrix_registers LIBRARY
FORMAT,...` prints JSON.

The library's own machine code runs. The CPU refuses each instruction of AMX, Linux reports that as SIGILL, and the
handler here decodes the instruction, does what Intel's manual says (Software Developer's Manual, volume 2, from
LDTILECFG on; TDPBSSD and its kin), and goes on behind it. What the manual forbids, such as matrices that do not fit,
ends the process. The other instructions (AVX-512 VNNI) are this CPU's own.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from appliance.boot.selftest import kernels as kernel_answers
from appliance.kernels.layouts import shapes
from appliance.kernels.runtime import ahead, targets
from appliance.kernels.runtime.table import KernelTable
from tests.support.kernel_bits import bits

AMX = targets.by_name("amx")
ROWS, ROW = 16, 64  # of palette 1
_REGISTERS = (13, 14, 12, 11, 15, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7)  # places in `gregs`, by an instruction's numbers
_RIP, _GREGS = 16, 40  # the place of the instruction's address there; the offset of `gregs` in ucontext_t
_SIGNED = {"tdpbssd": (np.int8, np.int8), "tdpbsud": (np.int8, np.uint8)}


class ForbiddenError(Exception):
    """An instruction that the CPU would refuse."""


class Matrices:
    """The matrix registers of one thread."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, int]] = []  # rows, bytes of a row; none before LDTILECFG
        self.values = np.zeros((8, ROWS, ROW), np.uint8)

    def configure(self, table: bytes) -> None:
        """LDTILECFG."""
        widths = np.frombuffer(table, "<u2", 16, offset=16)
        rows = np.frombuffer(table, np.uint8, 16, offset=48)
        if table[0] != 1 or any(table[1:16]) or widths[8:].any() or rows[8:].any():
            raise ForbiddenError("a palette other than 1, or reserved bytes")
        if (widths > ROW).any() or (rows > ROWS).any() or ((widths == 0) != (rows == 0)).any():
            raise ForbiddenError("the shape of a register")
        self.shapes = [(int(count), int(width)) for count, width in zip(rows[:8], widths[:8], strict=True)]
        self.values[:] = 0

    def shape(self, number: int) -> tuple[int, int]:
        """Rows and bytes of a row of a register in use."""
        if not self.shapes or self.shapes[number] == (0, 0):
            raise ForbiddenError("a register without a shape")
        return self.shapes[number]

    def load(self, number: int, base: int, stride: int) -> None:
        """TILELOADD: what lies beyond the register's shape is zero."""
        rows, width = self.shape(number)
        self.values[number] = 0
        for row in range(rows):
            self.values[number, row, :width] = np.frombuffer(ctypes.string_at(base + row * stride, width), np.uint8)

    def store(self, number: int, base: int, stride: int) -> None:
        """TILESTORED."""
        rows, width = self.shape(number)
        for row in range(rows):
            ctypes.memmove(base + row * stride, self.values[number, row].tobytes(), width)

    def product(self, name: str, total: int, left: int, right: int) -> None:
        """TDPBSSD and TDPBSUD: 32-bit sums of products of bytes, which wrap."""
        (rows, width), (inner, wide) = self.shape(total), self.shape(right)
        if len({total, left, right}) < 3 or self.shape(left) != (rows, 4 * inner) or width != wide or width % 4:
            raise ForbiddenError("matrices that do not fit")
        first, second = (self.values[number].view(kind).astype(np.int64)
                         for number, kind in zip((left, right), _SIGNED[name], strict=True))
        quads = second.reshape(ROWS, ROW // 4, 4).swapaxes(1, 2).reshape(ROW, ROW // 4)  # (4 k + i, column)
        sums = self.values[total].view(np.int32)
        sums[:] = (sums.astype(np.int64) + first @ quads).astype(np.int32)


class Emulator:
    """The instructions of AMX, for all threads of this process."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        """Instructions by name."""
        self._threads: dict[int, Matrices] = {}
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(self._refused)
        action = (ctypes.c_uint64 * 19)(ctypes.cast(self._handler, ctypes.c_void_p).value or 0)
        action[17] = 4  # SA_SIGINFO; before it the handler and a mask of 128 bytes
        if ctypes.CDLL(None).sigaction(int(signal.SIGILL), ctypes.byref(action), None):
            raise OSError("sigaction")

    @property
    def held(self) -> int:
        """Threads whose registers are in use."""
        return sum(bool(each.shapes) for each in self._threads.values())

    def _refused(self, _number: int, _information: int, context: int) -> None:
        registers = (ctypes.c_uint64 * 17).from_address(context + _GREGS)
        try:
            registers[_RIP] += self._run(registers, ctypes.string_at(registers[_RIP], 16))
        except BaseException:  # noqa: BLE001  nobody above here could see it
            traceback.print_exc()
            os._exit(1)

    def _run(self, registers: Any, code: bytes) -> int:
        """Do one instruction; its length in bytes."""
        if code[0] != 0xC4 or code[1] & 0x1F != 2 or code[2] & 0x84:  # VEX.128.0F38.W0
            raise ForbiddenError(f"an instruction that is not of AMX: {code.hex()}")
        matrices = self._threads.setdefault(threading.get_ident(), Matrices())
        prefix, third = code[2] & 3, ~code[2] >> 3 & 15
        register, direct = code[4] >> 3 & 7, code[4] >> 6 == 3
        name = {(0, 0x49, False): "ldtilecfg", (0, 0x49, True): "tilerelease", (3, 0x49, True): "tilezero",
                (3, 0x4B, False): "tileloadd", (2, 0x4B, False): "tilestored", (3, 0x5E, True): "tdpbssd",
                (2, 0x5E, True): "tdpbsud"}.get((prefix, code[3], direct))
        if name is None:
            raise ForbiddenError(f"an instruction that is not known: {code.hex()}")
        self.done[name] += 1
        if direct:
            if name == "tilerelease":
                matrices.shapes = []
                matrices.values[:] = 0
            elif name == "tilezero":
                matrices.shape(register)
                matrices.values[register] = 0
            else:
                matrices.product(name, register, code[4] & 7, third)
            return 5
        base, stride, length = _operand(registers, code)
        if name == "ldtilecfg":
            matrices.configure(ctypes.string_at(base + stride, 64))
        else:
            (matrices.load if name == "tileloadd" else matrices.store)(register, base, stride)
        return length


def _operand(registers: Any, code: bytes) -> tuple[int, int, int]:
    """The address in memory, the index times its scale, and the instruction's length."""
    extend, mode, low = ~code[1] >> 5 & 7, code[4] >> 6, code[4] & 7
    place, base, stride = 5, low, 0
    if low == 4:  # base and index follow
        base, index = code[5] & 7, (code[5] >> 3 & 7) + 8 * (extend >> 1 & 1)
        place = 6
        stride = 0 if index == 4 else _signed(registers[_REGISTERS[index]]) << (code[5] >> 6)
    if mode == 0 and base == 5:
        raise ForbiddenError(f"an address that is not known: {code.hex()}")
    nbytes = (0, 1, 4)[mode]
    offset = int.from_bytes(code[place:place + nbytes], "little", signed=True)
    return registers[_REGISTERS[base + 8 * (extend & 1)]] + offset, stride, place + nbytes


def _signed(number: int) -> int:
    return number - (number >> 63 << 64)


def table(library: Path) -> KernelTable:
    """The kernels of a library of this target."""
    opened, handle = ahead.open_library(library, AMX), ctypes.CDLL(str(library))

    def find(name: str) -> int:
        return int(ctypes.cast(getattr(handle, ahead.PREFIX + name), ctypes.c_void_p).value or 0)
    return KernelTable(AMX, "ahead", opened.signatures, find)


def main(library: str, *formats: str) -> None:
    """Print the digests of `kernel_bits`, the self-test's wrong answers, those after which registers were in use, and
    the instructions of each format's products."""
    emulator, kernels, done = Emulator(), table(Path(library)), {}
    wrong, held = [], []
    for name in kernel_answers.selection(kernels, frozenset(formats)):
        emulator.done.clear()
        expected, found = kernel_answers.answer(kernels, name)
        wrong += [name] * (expected != found)
        held += [name] * emulator.held
        done[name] = dict(emulator.done)
    products = {name: done[f"product_{shapes.SHAPES[name].suffix}"] for name in formats}
    print(json.dumps({"bits": bits(kernels, list(formats)), "wrong": wrong, "held": held, "done": products}))


if __name__ == "__main__":
    main(sys.argv[1], *sys.argv[2].split(","))
