"""Self-test of the kernels that fetch tiles: two records each must take, and each kind of damage it
must refuse. Then four records of a run of two matrices, of which the last is passed by as well.

Records and tags are made by `cryptography`, and checked by the kernel through libcrypto: each
vouches for the other.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from appliance.boot.selftest import inputs
from appliance.engine.forward.packing import Packing, blocks
from appliance.errors import EngineError
from appliance.kernels.layouts.fetch import FAULTS, Matrix, Stream, Worker
from appliance.kernels.layouts.tables import Table
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.table import KernelTable
from appliance.models.file import quants
from appliance.models.file.tiling import RECORD_ALIGNMENT, record_nbytes
from appliance.models.sources import native
from appliance.secure import libcrypto

TILES = (2 * 4096, 1024)  # bytes of plaintext of each; the first crosses pieces
FIRST = 259  # number of the first tile: its nonce has two bytes that are not zero
FORMAT, COLUMNS, _OFFSET = quants.FORMATS["F16"], 16, 70000  # of the plain tiles; where they begin in their file
_STRIDE = record_nbytes(TILES[0])
_READ = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int32, ctypes.POINTER(ctypes.c_int64 * 2), ctypes.c_int32,
                         ctypes.c_int64, ctypes.c_int32)  # preadv2, of one part
DAMAGE = ((5, "tag"), (TILES[0] + 3, "tag"), (_STRIDE - 1, "padding"))  # offset in the first record, what is found


RUNS = ("", " 1")
"""Matrices of a run, by what the names of their inputs end in."""


def plaintext(run: str = "") -> bytes:
    """Of both tiles of a matrix."""
    return inputs.stream(f"fetch plaintext{run}", sum(TILES)).tobytes()


def _words(memory: Memory, table: type[Table], values: dict[str, int]) -> None:
    for name, value in values.items():
        memory.view(np.int64)[table.offsets[name] // 8] = value


class _Case:
    """A file of two records, and the tables that lead a kernel to them. A function in the place of
    preadv2 hands them out: the sandbox may leave no file to write."""

    def __init__(self, table: KernelTable, library: libcrypto.Libcrypto, kernel: str, records: bytes,
                 stream: dict[str, int], matrix: dict[str, int], *used: object) -> None:
        """`used`: what has the memory that the tables name."""
        self._used = used
        self._call, self._cipher = table.function(kernel), libcrypto.Cipher(library, _secret("key"))
        self.records, self._read = records, _READ(self._hand_out)
        self.tile, self._kept = Memory(TILES[0]), Memory(len(records) + RECORD_ALIGNMENT)
        self._piece = Memory(RECORD_ALIGNMENT)
        self._stream, self._worker, self._matrix = (Memory(nbytes) for nbytes in (
            Stream.nbytes, Worker.nbytes, Matrix.nbytes))
        _words(self._stream, Stream, {
            **native.functions(library), "READ": ctypes.cast(self._read, ctypes.c_void_p).value or 0,
            "PIECE": RECORD_ALIGNMENT, "WORKERS": self._worker.address, "TILE_NBYTES": TILES[0], **stream})
        _words(self._worker, Worker, {
            "CONTEXT": self._cipher.address, "TILE": self.tile.address, "OTHER": self.tile.address,
            "RECORD": self._piece.address})
        _words(self._matrix, Matrix, {
            "STREAM": self._stream.address, "FIRST_TILE": FIRST, "TILES": len(TILES), "RUN_TILES": len(TILES),
            "NBYTES": TILES[0], "LAST_NBYTES": TILES[1], **matrix})

    def _hand_out(self, _file: int, place: Any, _parts: int, offset: int, _flags: int) -> int:
        address, nbytes = place.contents
        data = self._now[offset:offset + nbytes]
        ctypes.memmove(address, data, len(data))
        return len(data)

    def fetch(self, records: bytes, number: int, *, kept: bool = False) -> bytes:
        """The tile's content afterwards, and the fault that was found."""
        self._now = records
        ctypes.memmove(self._kept.address, records, len(records))
        self.tile.view(np.uint8)[:] = 0xff
        _words(self._stream, Stream, {"FAULT": 0})
        _words(self._worker, Worker, {"HELD": 0, "OTHER_HELD": 0})
        _words(self._matrix, Matrix, {"KEPT": self._kept.address if kept else 0})
        self._call(self._matrix.address, number, 0)
        fault = int(self._stream.view(np.int64)[Stream.offsets["FAULT"] // 8])
        return self.tile.view(np.uint8).tobytes() + f"{FAULTS[fault >> 48]} {fault & 0xffff}".encode()

    def close(self) -> None:
        """Free the key."""
        self._cipher.close()


def _secret(name: str) -> bytes:
    return inputs.stream(f"fetch {name}", 32).tobytes()


def _library() -> libcrypto.Libcrypto:
    library = libcrypto.load()
    if library is None:
        raise EngineError("no libcrypto", code="libcrypto")
    return library


def _damaged(records: bytes, at: int) -> bytes:
    return records[:at] + bytes([records[at] ^ 1]) + records[at + 1:]


def _found(case: _Case, whole: tuple[bool, ...], damage: tuple[int, ...], cut: int) -> bytes:
    """The kernel's answers to whole records (kept or not), damaged ones, one that is cut off, and a
    third."""
    try:
        found = [case.fetch(case.records, number, kept=kept) for number in range(2) for kept in whole]
        found += [case.fetch(_damaged(case.records, at), 0) for at in damage]
        found += [case.fetch(case.records[:cut], 1), case.fetch(case.records, 2)]
        return b"".join(found)
    finally:
        case.close()


def _found_of_run(case: _Case, whole: tuple[bool, ...]) -> bytes:
    """The kernel's answers to all records of a run of two matrices, to the last when it is passed
    by and when it is used, and to a number without a record."""
    try:
        tiles = len(RUNS) * len(TILES)
        found = [case.fetch(case.records, number, kept=kept) for number in range(tiles) for kept in whole]
        found += [case.fetch(case.records, number) for number in (~(tiles - 1), tiles - 1)]
        found += [case.fetch(case.records[:-1], ~(tiles - 1)), case.fetch(case.records, tiles)]
        return b"".join(found)
    finally:
        case.close()


def _sealed(table: KernelTable, runs: tuple[str, ...]) -> _Case:
    library, records, number = _library(), b"", FIRST
    key, extra = _secret("key"), inputs.placed(np.frombuffer(_secret("header"), np.uint8))
    for run in runs:
        text, start = plaintext(run), 0
        for nbytes in TILES:
            sealed = AESGCM(key).encrypt(number.to_bytes(12, "big"), text[start:start + nbytes], _secret("header"))
            records += sealed.ljust(record_nbytes(nbytes), b"\0")
            start, number = start + nbytes, number + 1
    last = record_nbytes(TILES[1])
    return _Case(table, library, "fetch_sealed", records, {"EXTRA": extra.address, "EXTRA_NBYTES": extra.nbytes}, {
        "RECORD_NBYTES": _STRIDE, "LAST_RECORD_NBYTES": last, "TILES": len(runs) * len(TILES),
        "RUN_STRIDE": _STRIDE + last}, extra)


def fetch_sealed(table: KernelTable) -> bytes:
    """The kernel's answers to whole and to damaged records. EngineError where there is no
    libcrypto."""
    return _found(_sealed(table, RUNS[:1]), (False, True), tuple(at for at, _ in DAMAGE), _STRIDE + 100)


def fetch_sealed_run(table: KernelTable) -> bytes:
    """The same of a run of matrices."""
    return _found_of_run(_sealed(table, RUNS), (False, True))


def plain_rows(run: str = "") -> tuple[bytes, bytes]:
    """Of both tiles as a plain file has them: rows of 16 columns, the last group not full."""
    data = inputs.stream(f"fetch rows{run}", sum(TILES)).tobytes()
    return data[:TILES[0]], data[TILES[0]:-3 * FORMAT.row_nbytes(COLUMNS)]


def _plain(table: KernelTable, runs: tuple[str, ...]) -> _Case:
    library, packing, tags, records = _library(), Packing(table), b"", b""
    for rows in (rows for run in runs for rows in plain_rows(run)):
        nonce = (_OFFSET + len(records)).to_bytes(12, "big")
        tags, records = tags + AESGCM(_secret("key")).encrypt(nonce, b"", rows), records + rows
    placed, last = inputs.placed(np.frombuffer(tags, np.uint8)), len(plain_rows()[1])
    return _Case(table, library, "fetch_plain", bytes(_OFFSET) + records, {}, {
        "OFFSET": _OFFSET, "RECORD_NBYTES": TILES[0], "LAST_RECORD_NBYTES": last, "CHUNK": RECORD_ALIGNMENT,
        "ROW_NBYTES": FORMAT.row_nbytes(COLUMNS), "PACK": packing.table(FORMAT), "BLOCKS": blocks(FORMAT, COLUMNS),
        "TAGS": placed.address, "TILES": len(runs) * len(TILES), "RUN_STRIDE": TILES[0] + last}, placed, packing)


def fetch_plain(table: KernelTable) -> bytes:
    """The kernel's answers to whole and to damaged rows. EngineError where there is no libcrypto.
    """
    return _found(_plain(table, RUNS[:1]), (False,), (_OFFSET, _OFFSET + TILES[0] - 1), _OFFSET + TILES[0] + 100)


def fetch_plain_run(table: KernelTable) -> bytes:
    """The same of a run of matrices."""
    return _found_of_run(_plain(table, RUNS), (False,))
