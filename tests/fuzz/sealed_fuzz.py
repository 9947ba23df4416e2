"""Fuzz target: any bytes as a sealed model, with the right key. Only model errors come out, and nothing false is read.

Most mutations die at the MAC, so each input is also tried with its commitment and MAC made right again, as a sealer
with the key could write it: then the layout behind them is what is tested.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from appliance.errors import FormatError, ModelError
from appliance.models.file import tiling
from appliance.models.file.disk import RandomFile
from appliance.models.sealed import header as sealed_header
from appliance.sealing import restore
from appliance.sealing.sealing import make_header
from tests.support import sealed_by_spec as spec
from tests.support.sealed_models import KEY, mixture, mixture_parts, parts, small, with_gaps

_GOOD = {hashlib.sha256(gguf).digest() for gguf in (small(), with_gaps(small())[0], mixture())}


def fuzz(data: bytes) -> None:
    """Verify `data`, as it is and mended."""
    descriptor = os.memfd_create("fuzz")
    try:
        path = Path(f"/proc/self/fd/{descriptor}")
        for attempt in (data, _mended(data)):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, attempt, 0)
            _verify(path)
        _layout(path)
    finally:
        os.close(descriptor)


def _verify(path: Path) -> None:
    try:
        found = restore.verify(path, KEY)
    except ModelError as error:
        if not error.summary or len(str(error)) > 2000:
            raise AssertionError(f"a useless error: {len(str(error))} characters") from error
        return
    if found.sha256 not in _GOOD:
        raise AssertionError(f"a file that nobody sealed verifies: {found}")


def _layout(path: Path) -> None:
    """The header as it stands, believed: its tiles must be in order, apart, and of the size that they say."""
    file = RandomFile(path)
    try:
        header = sealed_header.read_header(file)
        _, tiles = header.layout()
    except ModelError:
        return
    finally:
        file.close()
    at, source = header.nbytes, 0
    for number in range(min(len(tiles), 1000)):
        tile = tiles.tile(number)
        if tile.offset != at or tile.source_offset < source or tile.nbytes > tiling.MAX_TILE_SIZE:
            raise AssertionError(f"{tile} does not follow byte {at}")
        at, source = at + tile.record_nbytes, tile.source_offset + tile.source_nbytes
        if source > header.size:
            raise AssertionError(f"{tile} lies outside of {header.size} bytes")


def _mended(data: bytes) -> bytes:
    """The same header, authentic for the key, where it can be read at all."""
    if len(data) < 144:
        return data
    size = int.from_bytes(data[40:48], "little")
    if size > len(data) - 176:
        return data
    try:
        header, keys = make_header(
            KEY, tile_size=int.from_bytes(data[24:28], "little"), gaps=bool(data[28] & 1),
            size=int.from_bytes(data[32:40], "little"), salt=data[48:80], sha256=data[80:112],
            header=data[144:144 + size])
    except FormatError:
        return data
    keys.wipe()
    return header.encode() + data[len(header.encode()):]


def seeds() -> list[bytes]:
    """A small sealed file, one with gaps, one with larger tiles, and a mixture of experts with both sizes."""
    gguf, experts = small(), mixture()
    mixed = mixture_parts(experts)
    start, tensors = parts(gguf)
    gapped, everything = with_gaps(gguf)
    return [spec.seal(gguf, start, tensors, KEY, bytes(32), 4096),
            spec.seal(gapped, start, everything, KEY, bytes(32), 4096, gaps=True),
            spec.seal(gguf, start, tensors, KEY, bytes(32), 65536),
            spec.seal(experts, *mixed, KEY, bytes(32), 4096), spec.seal(experts, *mixed, KEY, bytes(32), 65536)]
