"""The resident source: a plain GGUF file, read once into memory, checked, and kept there in kernel
order.

Reading, hashing and checking come first; only bytes that carry the pinned hash are parsed. Then
each matrix is repacked where those very bytes are, a run of rows at a time. Memory peaks a few MiB
above the file's size, not at twice it. No page is asked of the system twice.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from appliance.models.file import gguf, layout, pins, quants, shards
from appliance.models.file.disk import CHUNK_NBYTES, Progress, RandomFile
from appliance.models.file.gguf import GGUFFile, Parse, TensorInfo
from appliance.models.file.opened import OpenModel, check_runnable
from appliance.models.sources.source import InMemory, KernelMatrix
from appliance.secure import interrupts
from appliance.secure.locked import address, anonymous, discard

ALIGNMENT = 64  # bytes; a cache line, and a 512-bit register
_RUN_NBYTES = 2 << 20  # of source rows repacked at a time


class ResidentSource(InMemory, OpenModel):
    """A whole model in memory. Made by `open_resident` and `open_sealed_resident`; close it when
    the engine is gone."""

    def __init__(self, file: GGUFFile, sha256: bytes, arena: mmap.mmap, offsets: Mapping[str, int],
                 vectors: Mapping[str, NDArray[np.float32]], header_sha256: bytes | None = None) -> None:
        """`header_sha256`: of a sealed model."""
        self.gguf, self.sha256, self.header_sha256 = file, sha256, header_sha256
        self._arena, self._base = arena, address(arena)
        self._offsets = offsets  # bytes from the start of the arena
        self._vectors = vectors

    def weight(self, name: str) -> KernelMatrix:
        """Return a tensor of two dimensions. Raises FormatError if there is none of this name and
        kind."""
        info = self.tensor(name, 2)
        address = self._base + self._offsets[name]
        return KernelMatrix(info.format, info.rows, info.columns, address, _packed_nbytes(info))

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a tensor of one dimension, decoded, read-only. Raises FormatError if there is none
        of this name and kind."""
        self.tensor(name, 1)
        return self._vectors[name]

    def close(self) -> None:
        """Wipe the vectors, and the weights of a sealed model, and give the memory back. Addresses
        handed out before are void from here on."""
        if not self.closed:
            discard(self._arena, secret=self.header_sha256 is not None)
            self.closed = True
            for values in self._vectors.values():
                values.flags.writeable = True
                values.fill(0)


def open_resident(path: Path, sha256: bytes | None = None, progress: Progress | None = None, *,
                  interleave: layout.Interleave, parse: Parse = gguf.parse,
                  pinned_shards: Sequence[bytes] = ()) -> ResidentSource:
    """Load the model at `path`, the first shard where it has several. Its pin must be `sha256` (32
    bytes) unless that is None, and its shards' those of `pinned_shards` unless there are none.

    `progress` is called with the bytes read so far; `interleave` puts rows in kernel order; `parse`
    finds the header in bytes that have the pin. Raises PinError for other bytes than pinned,
    FormatError and UnsupportedError for the file's content, TamperedError for a file that is cut
    short meanwhile, and ModelError for the disk and for too little memory.
    """
    with shards.open_model(path) as whole:
        source, digest = _read(whole, sha256, pinned_shards, progress)
        try:
            file = shards.parse_whole(whole, source, parse)
            check_runnable(file)
            return _repack(file, digest, source, interleave)
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


def _repack(file: GGUFFile, digest: bytes, source: mmap.mmap, interleave: layout.Interleave) -> ResidentSource:
    """Bring every matrix into kernel order: within `source`, which then belongs to the model, or in
    memory of their own where that has no room for padding (few metadata, many tensors)."""
    with memoryview(source) as view:
        vectors = {info.name: vector(info, view[info.offset:info.offset + info.nbytes])
                   for info in file.tensors.values() if len(info.shape) == 1}
    matrices = sorted((info for info in file.tensors.values() if len(info.shape) == 2), key=lambda info: info.offset)
    places, end = _places(matrices)
    within = end <= len(source) and all(places[info.name] <= info.offset for info in matrices)
    room = anonymous(max((_run_nbytes(info) for info in matrices), default=0), "rows in kernel order")
    arena = source if within else anonymous(end, "the model's weights")
    try:
        with memoryview(source) as old, memoryview(arena) as new, memoryview(room) as between:
            for info in matrices:
                _repack_matrix(info, old, new, places[info.name], between, interleave)
                if not within:
                    _give_back(source, info.offset, info.offset + info.nbytes)
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
    return ResidentSource(file, digest, arena, places, vectors)


def _places(matrices: Iterable[TensorInfo]) -> tuple[dict[str, int], int]:
    """Where each matrix begins in kernel order, one after the other, by its name; and where the
    last ends."""
    places, end = {}, 0
    for info in matrices:
        places[info.name] = end + -end % ALIGNMENT
        end = places[info.name] + _packed_nbytes(info)
    return places, end


def _run(info: TensorInfo) -> int:
    """Rows that are repacked at a time: whole groups."""
    group_nbytes = layout.group_nbytes(info.format, info.columns)
    return min(max(_RUN_NBYTES // group_nbytes, 1), layout.groups(info.rows)) * layout.GROUP_ROWS


def _run_nbytes(info: TensorInfo) -> int:
    return layout.interleaved_nbytes(info.format, _run(info), info.columns)


def _repack_matrix(info: TensorInfo, old: memoryview, new: memoryview, place: int, between: memoryview,
                   interleave: layout.Interleave) -> None:
    """Repack one matrix from `old` to `new` at `place`, which may be the same memory if it begins
    no later there: a run goes to `between` first, and what it overwrites was read before."""
    row_nbytes, run = info.format.row_nbytes(info.columns), _run(info)
    for first in range(0, info.rows, run):
        rows = min(run, info.rows - first)
        start, nbytes = info.offset + first * row_nbytes, layout.interleaved_nbytes(info.format, rows, info.columns)
        interleave(info.format, old[start:start + rows * row_nbytes], rows, info.columns, between[:nbytes])
        new[place:place + nbytes] = between[:nbytes]
        place += nbytes


def _give_back(pages: mmap.mmap, start: int, end: int) -> None:
    """Give back the whole pages from byte `start` to `end`, and the last page of all."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end == len(pages):
        last = end
    if first < last:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)


def vector(info: TensorInfo, data: memoryview) -> NDArray[np.float32]:
    """Return the tensor of one dimension in `data`, which is released: decoded, read-only, in
    protected pages of its own that are gone with the last that refers to them."""
    values = np.frombuffer(anonymous(4 * info.columns, "vectors", secret=True), np.float32, info.columns)
    with interrupts.later(), data:
        numbers = np.frombuffer(data, quants.layout(info.format)["x"])
        if info.format.name == "BF16":
            words = values.view(np.uint32)
            words[:] = numbers
            words <<= np.uint32(16)
        else:
            values[:] = numbers
        del numbers
    values.flags.writeable = False
    return values


def _packed_nbytes(info: TensorInfo) -> int:
    """Bytes of a matrix in kernel order."""
    return layout.interleaved_nbytes(info.format, info.rows, info.columns)
