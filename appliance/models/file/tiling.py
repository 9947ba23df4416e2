"""How a GGUF file is cut into tiles, so that each can be authenticated and used on its own.

A tile is a whole number of groups of 16 rows of one matrix, or a run of blocks of one vector, or a
run of bytes that belong to no tensor (a gap). Tiles are numbered in the order of the file. A tensor
of more than two dimensions is a run of matrices, and no tile spans two of them, so an expert of a
mixture can be read by itself.

Everything here follows from the header of the GGUF file, its size and the tile size; there is no
table to keep or to believe. Sealed files hold tiles in kernel order, as records (see
docs/formats/sealed-model.md); for plain files the same numbers name the rows in place.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from appliance.errors import FormatError, UnsupportedError
from appliance.models.file import layout
from appliance.models.file.gguf import GGUFFile, TensorInfo
from appliance.models.file.quants import BlockFormat

RECORD_ALIGNMENT = 4096  # bytes: what O_DIRECT needs
TAG_NBYTES = 16
MIN_TILE_SIZE, MAX_TILE_SIZE = 4096, 16 << 20  # bytes
DEFAULT_TILE_SIZE = 1 << 20
SHARES = 4
"""Tiles of a run are a multiple of this, or one: two or four threads that take a tile each end at the same time."""

MAX_TILES = 1 << 22  # 4 TiB at the default size; 64 MiB of tags
MAX_OUTSIDE_NBYTES = 1 << 30
"""Of gaps, together. A sealed file that leaves them out has none of them, and yet they are hashed to restore it."""

Kind = Literal["matrix", "vector", "gap"]


def record_nbytes(nbytes: int) -> int:
    """Bytes of the record of a tile: its ciphertext, the tag, zeros up to the alignment."""
    return -(-(nbytes + TAG_NBYTES) // RECORD_ALIGNMENT) * RECORD_ALIGNMENT


@dataclass(frozen=True, slots=True)
class Segment:
    """A tensor or a gap: `runs` matrices (else 1), each cut alike into `run_tiles` tiles of
    `tile_units` units."""

    kind: Kind
    info: TensorInfo | None  # None for a gap
    source_offset: int  # bytes from the start of the GGUF file
    runs: int
    run_nbytes: int  # in the GGUF file
    rows: int  # of one matrix; 1 for a vector, 0 for a gap
    unit_nbytes: int  # 16 rows, a block, or a byte
    tile_units: int  # of every tile but a run's last
    run_tiles: int
    first_tile: int
    offset: int  # of the first record, in bytes from the start of the sealed file

    @property
    def units(self) -> int:
        """Units of one run, the last one padded where it is a group of fewer than 16 rows."""
        return -(-self.run_nbytes // self.unit_nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes of all runs, in kernel order where it is a matrix."""
        return self.runs * self.units * self.unit_nbytes

    @property
    def tiles(self) -> int:
        """Tiles of all runs."""
        return self.runs * self.run_tiles

    @property
    def tile_rows(self) -> int:
        """Rows of every tile of a matrix but a run's last."""
        return self.tile_units * layout.GROUP_ROWS

    def nbytes_of(self, index: int) -> int:
        """Bytes of the tile `index` of a run, in kernel order."""
        return min(self.tile_units, self.units - index * self.tile_units) * self.unit_nbytes

    @property
    def record_stride(self) -> int:
        """Bytes of every record of a run but the last."""
        return record_nbytes(self.nbytes_of(0))

    @property
    def run_stride(self) -> int:
        """Bytes of the records of one run."""
        return (self.run_tiles - 1) * self.record_stride + record_nbytes(self.nbytes_of(self.run_tiles - 1))

    @property
    def records_nbytes(self) -> int:
        """Bytes of all records."""
        return self.runs * self.run_stride


@dataclass(frozen=True, slots=True)
class Tile:
    """One tile: where its bytes are in the GGUF file, and where its record is in the sealed one."""

    number: int
    segment: Segment
    run: int  # which matrix of the tensor
    first_unit: int  # of that run
    first_row: int  # of that matrix; 0 for vectors and gaps
    rows: int  # without padding
    source_offset: int  # bytes from the start of the GGUF file
    source_nbytes: int
    nbytes: int  # in kernel order, padding of the last group included
    offset: int  # bytes from the start of the sealed file
    record_nbytes: int

    @property
    def columns(self) -> int:
        """Weights of a row; 0 for a gap."""
        return 0 if self.segment.info is None else self.segment.info.columns

    @property
    def format(self) -> BlockFormat:
        """How the weights are stored. Raises FormatError for a gap, which has none."""
        if self.segment.info is None:
            raise FormatError(f"tile {self.number} belongs to no tensor")
        return self.segment.info.format


class Tiling:
    """All tiles of one file. Immutable; memory is in proportion to the number of tensors."""

    def __init__(self, file: GGUFFile, size: int, tile_size: int, *, gaps: bool, base: int = 0) -> None:
        """Cut a GGUF file of `size` bytes whose header is `file`. With `gaps`, bytes between
        tensors also get tiles. The first record is at byte `base` of the sealed file. Raises
        UnsupportedError for too many tiles or large gaps."""
        self.gguf, self.size, self.tile_size, self.base = file, size, tile_size, base
        self.header_nbytes = min(file.data_offset, size)
        outside = size - self.header_nbytes - sum(info.nbytes for info in file.tensors.values())
        if outside > MAX_OUTSIDE_NBYTES:
            raise UnsupportedError(f"{outside} bytes of the GGUF file belong neither to its header nor to a tensor; "
                                   f"supported: {MAX_OUTSIDE_NBYTES}", hint="cut off what follows the last tensor")
        self._gaps, self._count, self._end = gaps, 0, base
        self.segments = tuple(self._cut())
        self._firsts = [segment.first_tile for segment in self.segments]
        self._by_name = {segment.info.name: segment for segment in self.segments if segment.info is not None}
        self.max_tile_nbytes = max((segment.nbytes_of(0) for segment in self.segments), default=0)
        self.max_record_nbytes = max((segment.record_stride for segment in self.segments), default=0)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Tile]:
        return (self.tile(number) for number in range(self._count))

    @property
    def end(self) -> int:
        """Bytes of the sealed file."""
        return self._end

    def of(self, name: str) -> Segment:
        """Return the tiles of a tensor. Raises FormatError if there is none of this name."""
        if name not in self._by_name:
            raise FormatError(f"tensor {name!r} is missing")
        return self._by_name[name]

    def tile(self, number: int) -> Tile:
        """Tile `number`. Raises IndexError if there is none."""
        if not 0 <= number < self._count:
            raise IndexError(f"tile {number} of {self._count}")
        segment = self.segments[bisect.bisect_right(self._firsts, number) - 1]
        run, index = divmod(number - segment.first_tile, segment.run_tiles)
        first_unit = index * segment.tile_units
        start = first_unit * segment.unit_nbytes
        nbytes = segment.nbytes_of(index)
        source_nbytes = min(nbytes, segment.run_nbytes - start)
        first_row = index * segment.tile_rows if segment.kind == "matrix" else 0
        rows = min(segment.tile_rows, segment.rows - first_row) if segment.kind == "matrix" else segment.rows
        offset = segment.offset + run * segment.run_stride + index * segment.record_stride
        return Tile(number, segment, run, first_unit, first_row, rows,
                    segment.source_offset + run * segment.run_nbytes + start, source_nbytes, nbytes, offset,
                    record_nbytes(nbytes))

    def _cut(self) -> Iterator[Segment]:
        """Segments in the order of the file; gaps where bytes are left between them."""
        at = self.header_nbytes
        for info in sorted(self.gguf.tensors.values(), key=lambda info: info.offset):
            if self._gaps and info.offset > at:
                yield self._segment("gap", None, at, 1, info.offset - at, 0, 1)
            yield self._tensor(info)
            at = info.offset + info.nbytes
        if self._gaps and self.size > at:
            yield self._segment("gap", None, at, 1, self.size - at, 0, 1)

    def _tensor(self, info: TensorInfo) -> Segment:
        if len(info.shape) == 1:
            return self._segment("vector", info, info.offset, 1, info.nbytes, 1, info.format.nbytes)
        runs, rows = math.prod(info.shape[:-2]), info.shape[-2]
        return self._segment("matrix", info, info.offset, runs, info.nbytes // runs, rows,
                             layout.group_nbytes(info.format, info.columns))

    def _segment(self, kind: Kind, info: TensorInfo | None, at: int, runs: int, run_nbytes: int, rows: int,
                 unit_nbytes: int) -> Segment:
        """Cut runs evenly: as few tiles of at most the tile size as can be, in whole `SHARES`, and
        all of one size but the last."""
        if unit_nbytes > MAX_TILE_SIZE:
            raise UnsupportedError(f"16 rows of tensor {info.name if info else ''!r} have {unit_nbytes} bytes; "
                                   f"supported: {MAX_TILE_SIZE}")
        units = -(-run_nbytes // unit_nbytes)
        most = max(self.tile_size // unit_nbytes, 1)
        least = -(-units // most)
        tile_units = -(-units // (least if least == 1 else -(-least // SHARES) * SHARES))
        run_tiles = -(-units // tile_units)
        segment = Segment(kind, info, at, runs, run_nbytes, rows, unit_nbytes, tile_units, run_tiles,
                          self._count, self._end)
        self._count += segment.tiles
        self._end += runs * segment.run_stride
        if self._count > MAX_TILES:
            what = "a gap" if info is None else f"tensor {info.name!r}"
            raise UnsupportedError(f"{what} takes the file beyond {MAX_TILES} tiles of {self.tile_size} bytes",
                                   hint="choose larger tiles")
        return segment


def check_tile_size(tile_size: int) -> int:
    """Return the size itself. Raises FormatError unless it is allowed."""
    if not MIN_TILE_SIZE <= tile_size <= MAX_TILE_SIZE or tile_size % RECORD_ALIGNMENT:
        raise FormatError(f"the tile size is {tile_size} bytes; allowed: multiples of {RECORD_ALIGNMENT} from "
                          f"{MIN_TILE_SIZE} to {MAX_TILE_SIZE}", hint="262144 to 1048576 suit the cache of a core")
    return tile_size


def pack(tile: Tile, source: Any, out: Any, interleave: layout.Interleave) -> None:
    """Write a tile's bytes of the GGUF file (`source_nbytes`) to `out` (`nbytes`) in kernel order.
    """
    if tile.segment.kind == "matrix":
        interleave(tile.format, source, tile.rows, tile.columns, out)
    else:
        np.frombuffer(out, np.uint8)[:] = np.frombuffer(source, np.uint8)
