"""A sealed model decrypted once, whole, into memory: each tile is authenticated on its way, and the
key is dropped."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from pathlib import Path

from appliance.models.file.disk import Progress
from appliance.models.file.roles import Role, Roles, by_rank, check_runnable
from appliance.models.sealed.header import Header, Layout
from appliance.models.sealed.reader import SealedModel, open_sealed
from appliance.models.sources.resident import ALIGNMENT, ResidentSource, held_nbytes, pad_row, vector
from appliance.models.sources.tile_threads import ordered
from appliance.secure.locked import anonymous, discard


def open_sealed_resident(path: Path, master_key: bytes | bytearray | memoryview, *, header_sha256: bytes | None,
                         sha256: bytes | None = None, progress: Progress | None = None,
                         layout: Layout = Header.layout, roles: Roles = by_rank) -> ResidentSource:
    """Decrypt the sealed model at `path` into memory. `progress` is called with bytes read; `roles`
    says what each tensor is. Other arguments and errors as `open_sealed`; ModelError also for too
    little memory."""
    with open_sealed(path, master_key, header_sha256=header_sha256, sha256=sha256, layout=layout) as model:
        kept = roles(model.gguf)
        check_runnable(model.gguf, kept)
        return _decrypted(model, kept, progress)


def _decrypted(model: SealedModel, roles: Mapping[str, Role], progress: Progress | None) -> ResidentSource:
    """Return every tensor of `model` in memory. Errors as `read_tile`."""
    offsets: dict[str, int] = {}
    nbytes = 0
    for segment in model.tiling.segments:
        if segment.info is not None and segment.info.name in roles:
            offsets[segment.info.name] = nbytes
            nbytes += held_nbytes(segment, roles[segment.info.name])
            nbytes += -nbytes % ALIGNMENT
    arena = anonymous(nbytes, "the model's weights", secret=True)
    try:
        _decrypt(model, arena, offsets, progress)
        with memoryview(arena) as view:
            vectors = {}
            for name, start in offsets.items():
                segment = model.tiling.of(name)
                if roles[name] == "vector":
                    vectors[name] = vector(model.tensors[name], view[start:start + segment.nbytes],
                                           packed=segment.kind == "matrix")
                elif segment.kind == "vector":
                    pad_row(segment, view[start:start + held_nbytes(segment, roles[name])])
    except BaseException:
        discard(arena, secret=True)
        raise
    return ResidentSource(model.gguf, roles, model.sha256, arena, offsets, vectors, model.header_sha256)


def _decrypt(model: SealedModel, arena: mmap.mmap, offsets: Mapping[str, int], progress: Progress | None) -> None:
    """Every tile straight to its place, by a few threads."""
    def read(number: int) -> int:
        tile = model.tiling.tile(number)
        segment = tile.segment
        if segment.info is not None and segment.info.name in offsets:
            start = offsets[segment.info.name] + (tile.run * segment.units + tile.first_unit) * segment.unit_nbytes
            with memoryview(arena) as view, view[start:start + tile.nbytes] as place:
                model.read_tile(number, place)
        return tile.record_nbytes

    done = 0
    for nbytes in ordered(read, range(len(model.tiling))):
        done += nbytes
        if progress is not None:
            progress(done, model.tiling.end - model.tiling.base)
