"""Where the engine gets its weights from: the one interface that every way of keeping a model implements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.models.file.gguf import TensorInfo
from appliance.models.file.metadata import Metadata
from appliance.models.file.quants import BlockFormat


@dataclass(frozen=True, slots=True)
class Weight:
    """A matrix in kernel order (see `layout`), valid until its source is closed: whole at `address`, or tile by tile
    from `fetch`."""

    format: BlockFormat
    rows: int  # as the model has them; memory holds them padded to whole groups of 16
    columns: int
    address: int  # of the first byte, a multiple of 64; 0 with `fetch`
    nbytes: int  # with the padding
    fetch: int = 0  # address of `int64 fetch(int64 context, int64 tile, int64 thread)`, which gives a tile's address
    context: int = 0
    tile_groups: int = 0  # groups of 16 rows of every tile but the last
    in_order: bool = False  # tiles come from a disk, which brings each once, in their order


class TileSource(Protocol):
    """A model's metadata, matrices and vectors. Every byte handed out was authenticated on the read that brought it."""

    @property
    def metadata(self) -> Metadata:
        """The model's key-value pairs."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """What the model has, by name; ask here whether an optional tensor exists."""

    @property
    def sha256(self) -> bytes:
        """SHA-256 (32 bytes) of the model file that the weights came from."""

    def weight(self, name: str) -> Weight:
        """A tensor of two dimensions; ModelError when there is none of this name and kind."""

    def vector(self, name: str) -> NDArray[np.float32]:
        """A tensor of one dimension, decoded, read-only; ModelError when there is none of this name and kind."""

    def close(self) -> None:
        """Give the memory back. Addresses handed out before are void from here on."""
