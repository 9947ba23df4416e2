"""From a sealed model back to the GGUF file, byte for byte: to write it (`unseal`) or to check it
(`verify`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from appliance.errors import FormatError, TamperedError
from appliance.models.file import layout
from appliance.models.file.disk import Progress, ThreadBuffer
from appliance.models.file.tiling import Tile, Tiling
from appliance.models.sealed import order
from appliance.models.sealed.reader import SealedModel, open_sealed, structure
from appliance.models.sources.tile_threads import ordered
from appliance.sealing.output import PartialFile

Sink = Callable[[bytes, int], None]
"""Called with bytes of the GGUF file and their offset, from the first to the last."""


@dataclass(frozen=True)
class Verified:
    """The findings of `verify`; without a key, only what the file says about itself."""

    sha256: bytes  # of the GGUF file: computed from the tiles where `authenticated`
    header_sha256: bytes
    size: int  # of the GGUF file, bytes
    tiles: int
    tile_size: int
    authenticated: bool
    tensors: dict[str, bytes]  # SHA-256 of each tensor's bytes; empty without a key


def verify(path: Path, master_key: bytes | bytearray | memoryview | None, *, header_sha256: bytes | None = None,
           sha256: bytes | None = None, progress: Progress | None = None) -> Verified:
    """Check a sealed model. With the key: every tile is authenticated, and the reassembled file
    must have the SHA-256 that the header states. Without: structure, size and pins, none of it
    authenticated. Errors as `open_sealed`."""
    if master_key is None:
        header, tiles = structure(path, header_sha256, sha256)
        return Verified(header.sha256, header.digest, header.size, len(tiles), header.tile_size, False, {})
    with open_sealed(path, master_key, header_sha256=header_sha256, sha256=sha256) as model:
        tensors = _restore(model, lambda data, offset: None, progress)
        return Verified(model.sha256, model.header_sha256, model.tiling.size, len(model.tiling),
                        model.tiling.tile_size, True, tensors)


def unseal(path: Path, target: Path, master_key: bytes | bytearray | memoryview, *,
           header_sha256: bytes | None = None, sha256: bytes | None = None,
           progress: Progress | None = None) -> Verified:
    """Write the GGUF file to `target`, which must not exist; only its owner can read it. Errors as
    `open_sealed`, and ModelError for the disk; then there is no `target`."""
    with open_sealed(path, master_key, header_sha256=header_sha256, sha256=sha256) as model, PartialFile(
            target, mode=0o600, begins=bytes(model.header.gguf)) as part:
        part.anew()
        try:
            part.demand(model.tiling.size)
            tensors = _restore(model, part.write, progress)
            part.finish()
        except BaseException:
            part.discard()
            raise
        return Verified(model.sha256, model.header_sha256, model.tiling.size, len(model.tiling),
                        model.tiling.tile_size, True, tensors)


def _restore(model: SealedModel, sink: Sink, progress: Progress | None) -> dict[str, bytes]:
    """Send the whole GGUF file to `sink`; return the SHA-256 of each tensor. Raises TamperedError
    if the whole has another SHA-256 than the header says, or gaps are sealed that need not be: one
    file has one encoding."""
    whole, tensors = hashlib.sha256(model.header.gguf), {}
    sink(model.header.gguf, 0)
    part, name, blank = hashlib.sha256(), None, model.header.gaps
    for tile, data in _tiles(model):
        info = tile.segment.info
        blank = blank and (info is not None or data.count(0) == len(data))
        if info is not None and info.name != name:
            part, name = hashlib.sha256(), info.name
        sink(data, tile.source_offset)
        whole.update(data)
        if info is not None:
            part.update(data)
            if tile.source_offset + tile.source_nbytes == info.offset + info.nbytes:
                tensors[info.name] = part.digest()
        if progress is not None:
            progress(tile.source_offset + tile.source_nbytes, model.tiling.size)
    if blank:
        raise TamperedError(f"{model.path}: gaps are sealed, though every byte of them is zero")
    if whole.digest() != model.sha256:
        raise TamperedError(f"{model.path}: the tiles make a file with SHA-256 {whole.hexdigest()}; the header states "
                            f"{model.sha256.hex()}", hint="the sealer stated another model than this one")
    return tensors


def _tiles(model: SealedModel) -> Iterator[tuple[Tile, bytes]]:
    """Yield every tile of the GGUF file with its bytes there, gaps included, in the order of the
    file."""
    everything = Tiling(model.gguf, model.tiling.size, model.tiling.tile_size, gaps=True)
    stored = ordered(_Unsealer(model).rows, range(len(model.tiling)))
    for tile in everything:
        if tile.segment.kind == "gap" and not model.header.gaps:
            yield tile, bytes(tile.source_nbytes)
        else:
            yield tile, next(stored)


class _Unsealer:
    """Decrypts tiles and puts their rows back in order; used by several threads at once."""

    def __init__(self, model: SealedModel) -> None:
        self._model, self._scratch = model, ThreadBuffer(model.tiling.max_tile_nbytes)

    def rows(self, number: int) -> bytes:
        """Return the bytes of tile `number` in the GGUF file. Raises TamperedError if its padding
        is not zero.
        """
        tile = self._model.tiling.tile(number)
        packed = self._scratch.view(tile.nbytes)
        self._model.read_tile(number, packed)
        rows = bytearray(tile.source_nbytes)
        try:
            unpack(tile, packed, rows)
        except FormatError as error:
            raise TamperedError(f"{self._model.path}: {error.summary}") from None
        return bytes(rows)


def unpack(tile: Tile, packed: Any, out: Any) -> None:
    """The inverse of `tiling.pack`. Raises FormatError if rows of padding hold anything but
    zeros."""
    if tile.segment.kind != "matrix":
        np.frombuffer(out, np.uint8)[:] = np.frombuffer(packed, np.uint8)
        return
    order.deinterleave_into(tile.format, packed, tile.rows, tile.columns, out)
    if tile.rows % layout.GROUP_ROWS:
        tail = tile.rows % layout.GROUP_ROWS
        unit = tile.segment.unit_nbytes
        rows = np.frombuffer(out, np.uint8)[-tail * tile.format.row_nbytes(tile.columns):]
        again = order.interleave(tile.format, rows.tobytes(), tail, tile.columns)
        if np.frombuffer(packed, np.uint8)[-unit:].tobytes() != again:
            raise FormatError(f"tile {tile.number}: the rows that fill up its last group are not zero")
