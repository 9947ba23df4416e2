"""The GGUF file that the shards of a model are together, which a sealed file of it holds and
unsealing gives.

It is laid out as `llama-gguf-split --merge` of llama.cpp does it. First come the first shard's
keys, `split.count` last and 0. Then come all tensors in the order of the shards, each padded with
zeros to the alignment.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from appliance.models.file import gguf
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.shards import COUNT
from appliance.models.sources.tagged import PlainTiles
from appliance.secure.wipe import wipe

_VERSION, _U16 = 3, 2


@dataclass(frozen=True, slots=True)
class Merged:
    """A GGUF file to seal."""

    header: bytes  # up to the tensor data
    size: int  # bytes
    sha256: bytes


def of(plain: PlainTiles) -> Merged:
    """Return the file that is sealed: the plain file itself, or its shards as one. Reads all tiles
    of a sharded model again. Errors as `PlainTiles.read`."""
    if len(plain.file.parts) == 1:
        return Merged(plain.header, plain.tiling.size, plain.sha256)
    alignment = plain.gguf.alignment
    tensors = sorted(plain.gguf.tensors.values(), key=lambda info: info.offset)
    header = _header(plain.header, tensors, alignment)
    whole, size = hashlib.sha256(header), len(header)
    buffer = memoryview(bytearray(plain.tiling.max_tile_nbytes))
    for info in tensors:
        segment = plain.tiling.of(info.name)
        for index in range(segment.tiles):
            tile = plain.tiling.tile(segment.first_tile + index)
            rows = buffer[:tile.source_nbytes]
            plain.file.read_into(rows, tile.source_offset)
            plain.check(tile, rows)
            whole.update(rows)
        padding = -info.nbytes % alignment
        whole.update(bytes(padding))
        size += info.nbytes + padding
    wipe(buffer)
    return Merged(header, size, whole.digest())


def _header(first: bytes, tensors: list[TensorInfo], alignment: int) -> bytes:
    """Return the header of the whole, from that of the first shard."""
    keys = [data for key, data in gguf.keys(first) if key != COUNT]
    name = COUNT.encode()
    keys.append(struct.pack("<Q", len(name)) + name + struct.pack("<IH", _U16, 0))
    table, offset = [], 0
    for info in tensors:
        name = info.name.encode()
        table.append(struct.pack("<Q", len(name)) + name + struct.pack(
            f"<I{len(info.shape)}QIQ", len(info.shape), *reversed(info.shape), info.format.ggml_id, offset))
        offset += info.nbytes + -info.nbytes % alignment
    head = b"".join((gguf.MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(keys)), *keys, *table))
    return head + bytes(-len(head) % alignment)
