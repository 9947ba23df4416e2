"""Self-test of the kernel that fetches tiles: two records it must decrypt, and each kind of damage it must refuse.

The records are made by `cryptography`, decrypted by the kernel through libcrypto: each vouches for the other.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.boot import kernel_inputs
from appliance.engine.kernels import fetch_layout
from appliance.engine.kernels.memory import Memory, aligned
from appliance.engine.kernels.table import KernelTable
from appliance.errors import EngineError
from appliance.models import libcrypto, native
from appliance.models.tiling import RECORD_ALIGNMENT, record_nbytes

TILES = (2 * 4096, 1024)  # bytes of plaintext of each; the first crosses pieces
_FIRST = 259  # number of the first tile: its nonce has two bytes that are not zero
_STRIDE = record_nbytes(TILES[0])
_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64 * 2), ctypes.c_int32,
                         ctypes.c_int64, ctypes.c_int32)  # preadv2, of one part
_DAMAGE = ((5, "tag"), (TILES[0] + 3, "tag"), (_STRIDE - 1, "padding"))  # offset in the first record, what is found


def plaintext() -> bytes:
    """Of both tiles."""
    return kernel_inputs.stream("fetch plaintext", sum(TILES)).tobytes()


def _words(memory: Memory, names: dict[str, int], values: dict[str, int]) -> None:
    for name, value in values.items():
        memory.view(np.int64)[names[name] // 8] = value


class _Case:
    """Two records, and the tables that lead the kernel to them. A function in the place of preadv2 hands them out: the
    sandbox may leave no file to write."""

    def __init__(self, table: KernelTable, library: libcrypto.Library) -> None:
        key, extra = (kernel_inputs.stream(f"fetch {name}", 32).tobytes() for name in ("key", "header"))
        self._call, self._cipher = table.function("fetch_sealed"), libcrypto.Cipher(library, key)
        self.records, start = b"", 0
        for index, nbytes in enumerate(TILES):
            sealed = AESGCM(key).encrypt((_FIRST + index).to_bytes(12, "big"), plaintext()[start:start + nbytes], extra)
            self.records += sealed.ljust(record_nbytes(nbytes), b"\0")
            start += nbytes
        self._read = _READ(self._hand_out)
        self.tile, self._kept = aligned(TILES[0]), aligned(len(self.records) + RECORD_ALIGNMENT)
        self._piece, self._extra = aligned(RECORD_ALIGNMENT), aligned(len(extra))
        self._extra.view(np.uint8)[:] = np.frombuffer(extra, np.uint8)
        self._stream, worker, self._matrix = (aligned(nbytes) for nbytes in (
            fetch_layout.STREAM_NBYTES, fetch_layout.WORKER_NBYTES, fetch_layout.MATRIX_NBYTES))
        self._worker = worker
        _words(self._stream, fetch_layout.STREAM, {
            **native.functions(library), "READ": ctypes.cast(self._read, ctypes.c_void_p).value or 0,
            "EXTRA": self._extra.address, "EXTRA_NBYTES": len(extra), "PIECE": RECORD_ALIGNMENT,
            "WORKERS": worker.address, "TILE_NBYTES": TILES[0]})
        _words(worker, fetch_layout.WORKER, {
            "CONTEXT": self._cipher.address, "TILE": self.tile.address, "OTHER": self.tile.address,
            "RECORD": self._piece.address})
        _words(self._matrix, fetch_layout.MATRIX, {
            "STREAM_TABLE": self._stream.address, "FIRST_TILE": _FIRST, "LAST": 1, "NBYTES": TILES[0],
            "LAST_NBYTES": TILES[1], "RECORD_NBYTES": _STRIDE, "LAST_RECORD_NBYTES": record_nbytes(TILES[1])})

    def _hand_out(self, _file: int, place: Any, _parts: int, offset: int, _flags: int) -> int:
        address, nbytes = place.contents
        data = self._now[offset:offset + nbytes]
        ctypes.memmove(address, data, len(data))
        return len(data)

    def fetch(self, records: bytes, number: int, *, kept: bool = False) -> bytes:
        """What is in the tile afterwards, and what was found wrong."""
        self._now = records
        ctypes.memmove(self._kept.address, records, len(records))
        self.tile.view(np.uint8)[:] = 0xff
        _words(self._stream, fetch_layout.STREAM, {"FAULT": 0})
        _words(self._matrix, fetch_layout.MATRIX, {"KEPT": self._kept.address if kept else 0})
        self._call(self._matrix.address, number, 0)
        fault = int(self._stream.view(np.int64)[fetch_layout.STREAM["FAULT"] // 8])
        return self.tile.view(np.uint8).tobytes() + f"{fetch_layout.FAULTS[fault >> 48]} {fault & 0xffff}".encode()

    def close(self) -> None:
        """Free the key."""
        self._cipher.close()


def _damaged(records: bytes, at: int) -> bytes:
    return records[:at] + bytes([records[at] ^ 1]) + records[at + 1:]


def fetch(table: KernelTable, _name: str = "") -> bytes:
    """What the kernel makes of whole and of damaged records. EngineError where there is no libcrypto."""
    library = libcrypto.load()
    if library is None:
        raise EngineError("no libcrypto", code="libcrypto")
    case = _Case(table, library)
    try:
        found = [case.fetch(case.records, number, kept=kept) for number in range(2) for kept in (False, True)]
        found += [case.fetch(_damaged(case.records, at), 0) for at, _ in _DAMAGE]
        found += [case.fetch(case.records[:_STRIDE + 100], 1), case.fetch(case.records, 2)]
        return b"".join(found)
    finally:
        case.close()


def expected() -> bytes:
    """The right answer, from the plaintext alone."""
    whole, empty = plaintext(), bytes(TILES[0])
    first, second = whole[:TILES[0]] + b"none 0", (whole[TILES[0]:].ljust(TILES[0], b"\xff")) + b"none 0"
    found = [first, first, second, second, *(empty + f"{fault} {_FIRST}".encode() for _, fault in _DAMAGE)]
    return b"".join([*found, empty + f"end {_FIRST + 1}".encode(), empty + f"range {_FIRST + 2}".encode()])
