"""The resident source: a plain GGUF file, read once into memory, checked, and kept there in kernel
order.

Reading, hashing and checking come first; only bytes that carry the pinned hash are parsed. Then
each matrix is repacked where those very bytes are, a run of rows at a time. Memory peaks a few MiB
above the file's size, not at twice it. No page is asked of the system twice.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.models.file import gguf, layout, pins, quants, shards
from appliance.models.file.disk import CHUNK_NBYTES, Progress, RandomFile
from appliance.models.file.gguf import GGUFFile, Parse, TensorInfo
from appliance.models.file.opened import OpenModel
from appliance.models.file.roles import MatrixRun, Role, Roles, by_rank, check_runnable
from appliance.models.file.tiling import Segment
from appliance.models.sealed import order
from appliance.models.sources.source import InMemory, KernelMatrix
from appliance.secure import interrupts
from appliance.secure.locked import address, anonymous, discard, protect
from appliance.secure.wipe import wipe

ALIGNMENT = 64  # bytes; a cache line, and a 512-bit register
_PIECE_NBYTES = 2 << 20  # of source rows repacked at a time


class ResidentSource(InMemory, OpenModel):
    """A whole model in memory. Made by `open_resident` and `open_sealed_resident`; close it when
    the engine is gone."""

    def __init__(self, file: GGUFFile, roles: Mapping[str, Role], sha256: bytes, arena: mmap.mmap,
                 offsets: Mapping[str, int], vectors: Mapping[str, NDArray[np.float32]],
                 header_sha256: bytes | None = None, *, locked: bool = True) -> None:
        """`roles`: the role of each tensor. `header_sha256`: of a sealed model. `locked`: whether
        its memory is protected."""
        self.gguf, self.roles, self.sha256, self.header_sha256 = file, roles, sha256, header_sha256
        self._arena, self._base = arena, address(arena)
        self._offsets = offsets  # bytes from the start of the arena
        self._vectors, self._locked = vectors, locked

    def weight(self, name: str) -> KernelMatrix:
        """Return a matrix, or a run of them. Raises FormatError if there is none of this name and
        kind."""
        run = self.matrix_run(name)
        return KernelMatrix(run.info.format, run.rows, run.columns, self._base + self._offsets[name], run.nbytes,
                            runs=run.runs)

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector, decoded, read-only. Raises FormatError if there is none of this name and
        kind."""
        self.vector_info(name)
        return self._vectors[name]

    def close(self) -> None:
        """Wipe the vectors, and the weights of a sealed model, and give the memory back. Addresses
        handed out before are void from here on."""
        if not self.closed:
            discard(self._arena, secret=self._locked)
            self.closed = True
            for values in self._vectors.values():
                values.flags.writeable = True
                values.fill(0)


def open_resident(path: Path, sha256: bytes | None = None, progress: Progress | None = None, *,
                  interleave: layout.Interleave, parse: Parse = gguf.parse,
                  pinned_shards: Sequence[bytes] = (), roles: Roles = by_rank, unseen: bool = False) -> ResidentSource:
    """Load the model at `path`, the first shard where it has several. Its pin must be `sha256` (32
    bytes) unless that is None, and its shards' those of `pinned_shards` unless there are none.

    `progress` is called with the bytes read so far; `interleave` puts rows in kernel order; `parse`
    finds the header in bytes that have the pin; `roles` says what each tensor is. `unseen`: experts
    are locked in memory, so that no swap disk shows which of them are used. Raises PinError
    for other bytes than pinned, FormatError and UnsupportedError for the file's content,
    TamperedError for a file that is cut short meanwhile, and ModelError for the disk and for too
    little memory.
    """
    with shards.open_model(path) as whole:
        source, digest = _read(whole, sha256, pinned_shards, progress)
        try:
            file = shards.parse_whole(whole, source, parse)
            kept = roles(file)
            check_runnable(file, kept)
            return _repack(file, kept, digest, source, interleave, locked=unseen and "run" in kept.values())
        except BaseException:
            discard(source)
            raise


def _read(file: RandomFile, pin: bytes | None, pinned_shards: Sequence[bytes],
          progress: Progress | None) -> tuple[mmap.mmap, bytes]:
    """Read the file into memory and check its pins; hashing runs beside the next read."""
    hashes = pins.Hashes(file.parts)
    if not file.size:
        gguf.parse(b"")  # says so
    source = anonymous(file.size, f"the file {file.path}")
    try:
        with memoryview(source) as view, ThreadPoolExecutor(1, "model-hash") as hasher:
            hashed: Future[None] | None = None
            for start in range(0, file.size, CHUNK_NBYTES):
                end = min(start + CHUNK_NBYTES, file.size)
                file.read_into(view[start:end], start)
                if hashed is not None:
                    hashed.result()
                hashed = hasher.submit(hashes.update, view[start:end])
                if progress is not None:
                    progress(end, file.size)
            file.expect_end()
        return source, hashes.check(file.paths, pin, pinned_shards)
    except BaseException:
        discard(source)
        raise


def _repack(file: GGUFFile, roles: Mapping[str, Role], digest: bytes, source: mmap.mmap,
            interleave: layout.Interleave, *, locked: bool) -> ResidentSource:
    """Bring every matrix into kernel order: within `source`, which then belongs to the model, or in
    memory of their own where that has no room for padding (few metadata, many tensors). They are
    `locked` there."""
    kept = sorted((file.tensors[name] for name in roles), key=lambda info: info.offset)
    with memoryview(source) as view:
        vectors = {info.name: vector(info, view[info.offset:info.offset + info.nbytes])
                   for info in kept if roles[info.name] == "vector"}
    runs = [MatrixRun.of(info) for info in kept if roles[info.name] != "vector"]
    places, end = _places(runs)
    within = end <= len(source) and all(
        places[run.info.name] + index * run.nbytes <= run.info.offset + index * run.source_nbytes
        for run in runs for index in (0, run.runs - 1))
    room = anonymous(max(map(_piece_nbytes, runs), default=0), "rows in kernel order")
    arena = source if within else anonymous(end, "the model's weights")
    try:
        with memoryview(source) as old, memoryview(arena) as new, memoryview(room) as between:
            for run in runs:
                for index in range(run.runs):
                    _repack_matrix(run, index, old, new, places[run.info.name], between, interleave)
                if not within:
                    _give_back(source, run.info.offset, run.info.offset + run.info.nbytes)
    except BaseException:
        if not within:  # else the caller does
            discard(arena)
        raise
    finally:
        discard(room)
    if within:
        _give_back(source, end, len(source))
    else:
        discard(source)
    if locked:
        protect(address(arena), len(arena), "experts")
    return ResidentSource(file, roles, digest, arena, places, vectors, locked=locked)


def _places(runs: Iterable[MatrixRun]) -> tuple[dict[str, int], int]:
    """Where each matrix or run begins in kernel order, one after the other, by its name; and where
    the last ends."""
    places, end = {}, 0
    for run in runs:
        places[run.info.name] = end + -end % ALIGNMENT
        end = places[run.info.name] + run.runs * run.nbytes
    return places, end


def _piece(run: MatrixRun) -> int:
    """Rows that are repacked at a time: whole groups."""
    group_nbytes = layout.group_nbytes(run.info.format, run.columns)
    return min(max(_PIECE_NBYTES // group_nbytes, 1), layout.groups(run.rows)) * layout.GROUP_ROWS


def _piece_nbytes(run: MatrixRun) -> int:
    return layout.interleaved_nbytes(run.info.format, _piece(run), run.columns)


def _repack_matrix(run: MatrixRun, index: int, old: memoryview, new: memoryview, place: int, between: memoryview,
                   interleave: layout.Interleave) -> None:
    """Repack one matrix of a run from `old` to `new`, where the run begins at `place`. Both may be
    the same memory if the matrix begins no later there: a piece goes to `between` first, and what
    it overwrites was read before."""
    block_format, columns, piece = run.info.format, run.columns, _piece(run)
    row_nbytes, source = block_format.row_nbytes(columns), run.info.offset + index * run.source_nbytes
    place += index * run.nbytes
    for first in range(0, run.rows, piece):
        rows = min(piece, run.rows - first)
        start, nbytes = source + first * row_nbytes, layout.interleaved_nbytes(block_format, rows, columns)
        interleave(block_format, old[start:start + rows * row_nbytes], rows, columns, between[:nbytes])
        new[place:place + nbytes] = between[:nbytes]
        place += nbytes


def _give_back(pages: mmap.mmap, start: int, end: int) -> None:
    """Give back the whole pages from byte `start` to `end`, and the last page of all."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end == len(pages):
        last = end
    if first < last:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def vector(info: TensorInfo, data: memoryview, *, packed: bool = False) -> NDArray[np.float32]:
    """Return the vector in `data`, which is released: decoded, read-only, in protected pages of its
    own that are gone with the last that refers to them. `packed`: its rows are in kernel order."""
    count = math.prod(info.shape)
    values = np.frombuffer(anonymous(4 * count, "vectors", secret=True), np.float32, count)
    with interrupts.later(), data:
        _decode(info, data, values.view(np.uint32) if info.format.name == "BF16" else values, packed)
    if info.format.name == "BF16":
        values.view(np.uint32)[:] <<= np.uint32(16)
    values.flags.writeable = False
    return values


def _decode(info: TensorInfo, data: memoryview, values: NDArray[Any], packed: bool) -> None:
    """Write the numbers in `data` to `values`, row by row; no copy of them is made."""
    numbers, rows, first = np.frombuffer(data, quants.layout(info.format)["x"]), values.reshape(-1, info.columns), 0
    groups = numbers.reshape(-1, info.columns, layout.GROUP_ROWS).swapaxes(1, 2) if packed else [
        numbers.reshape(rows.shape)]
    for group in groups:
        rows[first:first + len(group)] = group[:len(rows) - first]
        first += len(group)


def held_nbytes(segment: Segment, role: Role) -> int:
    """Bytes of memory for a tensor of a sealed or streamed model, decrypted."""
    if role == "vector" or segment.info is None or segment.kind == "matrix":
        return segment.nbytes
    return MatrixRun.of(segment.info).nbytes


def pad_row(segment: Segment, place: memoryview) -> None:
    """Bring a matrix of one row that is tiled as a vector into kernel order, within `place`, which
    begins with the row. `place` is released."""
    row = bytearray(segment.nbytes)
    with place:
        memoryview(row)[:] = place[:segment.nbytes]
        if segment.info is not None:
            order.interleave_into(segment.info.format, row, 1, segment.info.columns, place)
    wipe(row)
