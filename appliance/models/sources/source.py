"""Where the engine gets its weights from: the one interface that every way of keeping a model
implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.errors import FormatError
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.metadata import Metadata
from appliance.models.file.quants import BlockFormat
from appliance.models.file.tiling import Segment, Tile
from appliance.models.sources.native import Native

Access = Literal["hidden", "oblivious", "leaks"]
"""Which reads may depend on the text: none of the disk, none of memory either, or any."""


@dataclass(frozen=True, slots=True)
class KernelMatrix:
    """A matrix in kernel order (see `layout`), valid until its source is closed: whole at
    `address`, or tile by tile from `fetch`. Of a run, matrix i begins i times `nbytes` behind
    `address`, and its tiles are numbered from i times the tiles of one on."""

    format: BlockFormat
    rows: int  # as the model has them, of one matrix; memory holds them padded to whole groups of 16
    columns: int
    address: int  # of the first byte, a multiple of 64; 0 with `fetch`
    nbytes: int  # of one matrix, with the padding
    fetch: int = 0  # address of `int64 fetch(int64 context, int64 tile, int64 thread)`, which gives a tile's address
    context: int = 0
    tile_groups: int = 0  # groups of 16 rows of every tile but the last
    in_order: bool = False  # tiles come from a disk, which brings each once, in their order
    runs: int = 1  # matrices
    visited: bool = False  # each pass asks for all tiles; where it does not need a tile, for its complement
    every: bool = False  # each pass uses all of it for each row, so that nobody sees what a row needs


@dataclass(frozen=True, slots=True)
class TileTable:
    """The tiles of a matrix or a run that is streamed, for compiled code."""

    segment: Segment
    tiles: tuple[Tile, ...]  # of the first matrix of a run
    places: tuple[tuple[int, int], ...]  # offset and bytes of each tile in the file, see `TileReader.place`
    kept: int  # address of the records, where they are in memory; else 0
    stride: int  # bytes from the place of one matrix' tile to that of the next


class TileSource(Protocol):
    """A model's metadata, matrices and vectors. Every byte handed out was authenticated on the read
    that brought it."""

    @property
    def metadata(self) -> Metadata:
        """The model's key-value pairs."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """The model's tensors, by name; ask here whether an optional tensor exists."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 (32 bytes) of the model file that the weights came from."""

    def weight(self, name: str) -> KernelMatrix:
        """Return a matrix, or a run of them. Raises ModelError if there is none of this name and
        kind."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector, decoded, read-only: all numbers of the tensor, whatever its rank in the
        file. Raises ModelError if there is none of this name and kind."""

    def streams(self, name: str) -> bool:
        """Tell whether each pass reads this matrix anew, tile by tile. Raises ModelError if there
        is none of this name."""

    def table(self, name: str) -> TileTable:
        """Where the tiles of a matrix are that streams. Raises ModelError for another."""

    def prepare(self, threads: int) -> None:
        """Make the buffers for tiles of `threads` threads. Raises ModelError if there is no memory
        for them."""

    def native(self, threads: int, *, in_place: bool = False) -> Native | None:
        """Return the means of so many threads to fetch tiles without the interpreter; None where
        the source fetches them. With `in_place` each thread then has one place for a tile."""

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """The matrices that passes use, in this order; of those in one group tiles are used in
        turn. Raises ModelError if there is no memory to read ahead."""

    def passing(self) -> AbstractContextManager[None]:
        """Around a pass: what it decrypted is wiped at its end. Raises ModelError if a tile failed
        in it or before."""

    def rows(self, name: str, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """For each of the rows `numbers` of a matrix that streams, in an order of its own: (which
        of them, address of packed groups, row within those); valid until the next. Within `passing`
        only."""

    def groups(self, name: str) -> Iterator[tuple[int, int]]:
        """All groups of 16 rows of a matrix of which each pass uses all, some at a time, in their
        order: (address, how many); valid until the next. Within `passing` only."""

    def spare(self, name: str) -> tuple[int, int]:
        """The address of memory for groups of such a matrix until the pass ends, and for how many;
        not while tiles are fetched."""

    def close(self) -> None:
        """Give the memory back. Addresses handed out before are void from here on."""


class InMemory:
    """The answers of a source that streams nothing: all matrices are in memory, decrypted."""

    alive_limit = 0
    """Bytes of streamed plaintext that can exist at one moment."""

    def streams(self, name: str) -> bool:
        """Return False: nothing is streamed."""
        return False

    def table(self, name: str) -> TileTable:
        """Raise FormatError: the matrix is in memory."""
        raise FormatError(f"tensor {name!r} is in memory")

    def prepare(self, threads: int) -> None:
        """No buffers are needed."""

    def narrow(self) -> None:
        """There is no plaintext of tiles to make less of."""

    def native(self, threads: int, *, in_place: bool = False) -> Native | None:
        """Nothing is fetched."""
        return None

    def expect(self, groups: Sequence[Sequence[str]]) -> None:
        """Nothing is read ahead."""

    def passing(self) -> AbstractContextManager[None]:
        """Nothing is decrypted in a pass."""
        return nullcontext()

    def rows(self, name: str, numbers: Sequence[int]) -> Iterator[tuple[int, int, int]]:
        """Raise FormatError: the matrix is in memory."""
        raise FormatError(f"tensor {name!r} is in memory")

    def groups(self, name: str) -> Iterator[tuple[int, int]]:
        """Raise FormatError: the matrix is in memory."""
        raise FormatError(f"tensor {name!r} is in memory")

    def spare(self, name: str) -> tuple[int, int]:
        """Raise FormatError: the matrix is in memory."""
        raise FormatError(f"tensor {name!r} is in memory")
