"""An interpreter of classic BPF, from the instruction set's description (Documentation/networking/filter.rst)."""

from __future__ import annotations

import struct


def run(program: bytes, number: int, architecture: int, arguments: tuple[int, ...] = ()) -> int:
    """The filter's verdict on one call, as struct seccomp_data would show it to the kernel."""
    six = [value & (1 << 64) - 1 for value in (*arguments, 0, 0, 0, 0, 0, 0)[:6]]
    data = struct.pack("<iIQ6Q", number if number < 1 << 31 else number - (1 << 32), architecture, 0, *six)
    code = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        op, yes, no, k = code[at]
        at += 1
        if op == 0x20:
            accumulator = struct.unpack_from("<I", data, k)[0]
        elif op == 0x54:
            accumulator &= k
        elif op == 0x15:
            at += yes if accumulator == k else no
        elif op == 0x35:
            at += yes if accumulator >= k else no
        elif op == 0x06:
            return int(k)
        else:
            raise AssertionError(f"instruction {op:#x} is unknown to this machine")
