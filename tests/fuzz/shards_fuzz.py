"""Fuzz target: the headers of a model in shards. The input is all shards, with a length before each; only errors of
the model tree may come out."""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from appliance.errors import ModelError
from appliance.models.file import shards
from tests.support.ggufs import I32, STRING, U16, Tensor, build, kv

_MOST = 4


def _parts(data: bytes) -> list[bytes]:
    found = []
    while len(data) >= 4 and len(found) < _MOST:
        size = struct.unpack("<I", data[:4])[0] % (1 << 20)
        found.append(data[4:4 + size])
        data = data[4 + size:]
    return found


def fuzz(data: bytes) -> None:
    """Read the headers both ways; what came out must lie in the shard that has it, and nothing overlap."""
    parts = _parts(data)
    if len(parts) < 2:
        return
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"m-{number:05}-of-{len(parts):05}.gguf" for number in range(1, len(parts) + 1)]
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        file = shards.ShardedFile(paths)
        try:
            _, found = shards.read(file)
            whole = bytearray(file.size)
            file.read_into(memoryview(whole), 0)
            again = shards.parse_whole(file, whole)
        except ModelError as error:
            if not error.summary or len(str(error)) > 2000 + len(folder):
                raise AssertionError(f"a useless error: {len(str(error))} characters") from error
            return
        finally:
            file.close()
        assert dict(found.tensors) == dict(again.tensors), "two readers see two models"
        end = 0
        for info in sorted(found.tensors.values(), key=lambda info: info.offset):
            start, size = max(part for part in file.parts if part[0] <= info.offset)
            assert end <= info.offset <= info.offset + info.nbytes <= start + size, "a tensor lies outside of its shard"
            end = info.offset + info.nbytes


def _input(*parts: bytes) -> bytes:
    return b"".join(struct.pack("<I", len(part)) + part for part in parts)


def seeds() -> list[bytes]:
    """Two and three shards in form, one of them without tensors."""
    def shard(number: int, count: int, total: int, *names: str) -> bytes:
        keys = [kv("general.architecture", STRING, "llama")] if number == 0 else []
        said = [kv("split.no", U16, number), kv("split.count", U16, count), kv("split.tensors.count", I32, total)]
        return build([*keys, *said], [Tensor(name, 8, (32, 2), bytes(68)) for name in names])

    return [_input(shard(0, 2, 3, "a", "b"), shard(1, 2, 3, "c")),
            _input(shard(0, 3, 2), shard(1, 3, 2, "a"), shard(2, 3, 2, "b")),
            _input(shard(0, 2, 2, "a"), shard(1, 2, 2, "a")), _input(build(), build())]
