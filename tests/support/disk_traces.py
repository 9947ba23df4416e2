"""What a disk learns of a process: every read of a file, its place and bytes, in their order."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from appliance.models.sources import native

_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64 * 2), ctypes.c_int32,
                         ctypes.c_int64, ctypes.c_int32)  # preadv2, of one part


class DiskTracer:
    """Every read of a file by this process, compiled code's included: place and bytes, in their order."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.reads: list[tuple[int, int]] = []
        self._preadv, functions = os.preadv, native.functions
        self._call = _READ(self._compiled)
        patch.setattr(os, "preadv", self._read)
        patch.setattr(native, "functions", lambda library: functions(library) | {
            "READ": ctypes.cast(self._call, ctypes.c_void_p).value or 0})

    def _read(self, descriptor: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        self.reads.append((offset, sum(len(memoryview(buffer)) for buffer in buffers)))
        return self._preadv(descriptor, buffers, offset, flags)

    def _compiled(self, descriptor: int, place: Any, _parts: int, offset: int, _flags: int) -> int:
        address, nbytes = place.contents
        return self._read(descriptor, [(ctypes.c_char * nbytes).from_address(address)], offset)
