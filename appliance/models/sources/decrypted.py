"""The decrypted part of a streamed source: every vector, and the matrices that are to be resident.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from appliance.models.file.gguf import TensorInfo
from appliance.models.file.roles import Role
from appliance.models.file.tiling import Segment, Tiling
from appliance.models.sources.resident import ALIGNMENT, held_nbytes, pad_row, vector
from appliance.secure.locked import address, anonymous, discard
from appliance.secure.wipe import wipe

ReadTiles = Callable[[Segment], Iterator[memoryview]]
"""The tiles of a tensor, decrypted, one after the other; each is valid until the next."""


class Decrypted:
    """Empty at first. `close` wipes what was read, also when reading fails on the way."""

    def __init__(self) -> None:
        self._vectors: dict[str, NDArray[np.float32]] = {}
        self._offsets: dict[str, int] = {}  # of matrices in the arena
        self._arena: mmap.mmap | None = None

    def read(self, tiling: Tiling, roles: Mapping[str, Role], resident: frozenset[str], tiles_of: ReadTiles) -> None:
        """Decrypt the vectors, the matrices in `resident`, and those of one row that are tiled as
        vectors. `roles`: the role of each tensor. Errors as `tiles_of`. Raises ModelError for
        memory."""
        nbytes = 0
        for name, role in sorted(roles.items()):
            segment = tiling.of(name)
            if role == "vector":  # one by one: if one fails, `close` wipes the earlier ones
                self._vectors[name] = _vector(tiling.gguf.tensors[name], segment, tiles_of(segment))
            elif name in resident or segment.kind == "vector":
                self._offsets[name] = nbytes
                nbytes += -(-held_nbytes(segment, role) // ALIGNMENT) * ALIGNMENT
        if not nbytes:
            return
        self._arena = anonymous(nbytes, "the model's resident weights", secret=True)
        for name, first in self._offsets.items():
            segment, start = tiling.of(name), first
            for part in tiles_of(segment):
                self._arena[start:start + len(part)] = part
                start += len(part)
            if segment.kind == "vector":
                with memoryview(self._arena) as view:
                    pad_row(segment, view[first:first + held_nbytes(segment, roles[name])])

    @property
    def nbytes(self) -> int:
        """Bytes of matrices."""
        return 0 if self._arena is None else len(self._arena)

    @property
    def vectors_nbytes(self) -> int:
        """Bytes of vectors."""
        return sum(values.nbytes for values in self._vectors.values())

    def has(self, name: str) -> bool:
        """Whether a matrix is here."""
        return name in self._offsets

    def address(self, name: str) -> int:
        """Of a matrix that is here; 0 for another."""
        return 0 if self._arena is None or name not in self._offsets else address(self._arena) + self._offsets[name]

    def vector(self, name: str) -> NDArray[np.float32]:
        """Return a vector, read-only."""
        return self._vectors[name]

    def close(self) -> None:
        """Wipe, and give the memory back."""
        if self._arena is not None:
            discard(self._arena, secret=True)
            self._arena = None
        while self._vectors:
            _, values = self._vectors.popitem()
            values.flags.writeable = True
            values.fill(0)


def _vector(info: TensorInfo, segment: Segment, tiles: Iterator[memoryview]) -> NDArray[np.float32]:
    data, end = bytearray(segment.nbytes), 0
    try:
        for part in tiles:
            memoryview(data)[end:end + len(part)] = part  # a bytearray makes a copy of what it is given first
            end += len(part)
        return vector(info, memoryview(data), packed=segment.kind == "matrix")
    finally:
        wipe(data)
