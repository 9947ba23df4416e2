"""System calls that Python has no function for, through the C library's `syscall` and `prctl`."""

from __future__ import annotations

import ctypes
import os
from typing import Final

# linux/prctl.h
PR_CAPBSET_DROP: Final = 24
PR_SET_SECUREBITS: Final = 28
PR_CAP_AMBIENT: Final = 47
PR_CAP_AMBIENT_CLEAR_ALL: Final = 4

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def _raise() -> None:
    code = ctypes.get_errno()
    raise OSError(code, os.strerror(code))


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2) with up to four arguments, the rest zero. OSError as the kernel says it."""
    four = (*arguments, 0, 0, 0, 0)[:4]
    result = int(_LIBC.prctl(ctypes.c_int(option), *(ctypes.c_ulong(argument) for argument in four)))
    if result < 0:
        _raise()
    return result


def syscall(number: int, *arguments: int | ctypes.Array[ctypes.c_char] | None) -> int:
    """Call syscall(2). A number is passed as 64 bits, a buffer as its address. OSError as the
    kernel says it."""
    given = [ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments]
    result = int(_LIBC.syscall(ctypes.c_long(number), *given))
    if result < 0:
        _raise()
    return result
