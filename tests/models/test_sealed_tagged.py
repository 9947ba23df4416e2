"""Plain files after their pin was checked: every later read is compared with the bytes that carried it."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from appliance.errors import FormatError, ModelError, PinError, TamperedError, UnsupportedError
from appliance.models.file.tiling import Tile
from appliance.models.sealed import order as kernel_order
from appliance.models.sources.tagged import PlainTiles
from appliance.sealing import restore
from tests.support.engines import synthetic_model
from tests.support.ggufs import Tensor, build
from tests.support.plain import open_tagged
from tests.support.sealed_models import data, parts, small, with_gaps


def _opened(folder: Path, gguf: bytes, tile_size: int = 4096) -> PlainTiles:
    path = folder / "m.gguf"
    path.write_bytes(gguf)
    return open_tagged(path, hashlib.sha256(gguf).digest(), tile_size=tile_size)


def _unpacked(tile: Tile, buffer: bytearray) -> bytes:
    """The rows of a tile that was read, as the file has them."""
    out = bytearray(tile.source_nbytes)
    restore.unpack(tile, buffer[:tile.nbytes], out)
    return bytes(out)


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "F16", "Q8_0"])
def test_tiles_of_a_model(name: str, tmp_path: Path) -> None:
    """Tiles in kernel order: together each tensor, and nothing else, in that order and in the file's."""
    gguf = synthetic_model(name)
    with _opened(tmp_path, gguf, 65536) as plain:
        rows: dict[str, bytes] = {}
        packed: dict[str, bytes] = {}
        buffer = bytearray(plain.tiling.max_tile_nbytes)
        for tile in plain.tiling:
            assert tile.segment.info is not None
            key = tile.segment.info.name
            packed[key] = packed.get(key, b"") + bytes(buffer[:plain.read_tile(tile.number, buffer)])
            rows[key] = rows.get(key, b"") + _unpacked(tile, buffer)
        assert not plain.gaps
        for info in plain.tensors.values():
            original = gguf[info.offset:info.offset + info.nbytes]
            assert original == rows[info.name]
            if len(info.shape) == 2:
                original = kernel_order.interleave(info.format, original, info.rows, info.columns)
            assert original == packed[info.name]


def test_progress_and_pin(tmp_path: Path) -> None:
    """The one pass counts every byte; another hash than pinned is refused; the hash is the file's."""
    path = tmp_path / "m.gguf"
    path.write_bytes(small())
    seen: list[tuple[int, int]] = []
    with open_tagged(path, progress=lambda done, total: seen.append((done, total))) as plain:
        assert hashlib.sha256(small()).digest() == plain.sha256
        assert small()[:plain.tiling.header_nbytes] == plain.header
    assert (7520, 7520) == seen[-1]
    with pytest.raises(PinError):
        open_tagged(path, bytes(32))


def test_every_byte_of_every_tile(tmp_path: Path) -> None:
    """A flipped bit in any tensor or gap is refused on the next read, and what was read is wiped, wherever it is."""
    with _opened(tmp_path, with_gaps(small())[0]) as plain, (tmp_path / "m.gguf").open("r+b", buffering=0) as file:
        assert plain.gaps
        buffer, room = bytearray(plain.tiling.max_tile_nbytes), bytearray(plain.tiling.max_tile_nbytes)
        for tile in plain.tiling:
            for at in range(tile.source_offset, tile.source_offset + tile.source_nbytes):
                old = os.pread(file.fileno(), 1, at)
                os.pwrite(file.fileno(), bytes([old[0] ^ 1 << at % 8]), at)
                buffer[:] = b"\xaa" * len(buffer)
                with pytest.raises(TamperedError, match="changed since the file was hashed"):
                    plain.read(tile, buffer, memoryview(room) if at % 2 else None)
                assert bytes(tile.nbytes) + b"\xaa" * (len(buffer) - tile.nbytes) == buffer, at
                assert not any(room), at
                os.pwrite(file.fileno(), old, at)
            assert tile.nbytes == plain.read_tile(tile.number, buffer)


def test_exchanged_rolled_back_and_cut(tmp_path: Path) -> None:
    """Two equal-sized tiles exchanged, the bytes of an older file, a cut file, a vanished disk: each is refused."""
    gguf = build([], [Tensor("a", 0, (64, 64), data(16384, 1))])
    path = tmp_path / "m.gguf"
    with _opened(tmp_path, gguf) as plain:
        one, two = plain.tiling.tile(0), plain.tiling.tile(1)
        swapped = bytearray(gguf)
        swapped[one.source_offset:][:4096] = b""
        first, second = (gguf[tile.source_offset:tile.source_offset + tile.source_nbytes] for tile in (one, two))
        swapped[one.source_offset:two.source_offset + two.source_nbytes] = second + first
        older = build([], [Tensor("a", 0, (64, 64), data(16384, 2))])
        for body in (bytes(swapped), older):
            with path.open("r+b") as file:
                file.write(body)
            for number in (0, 1):
                with pytest.raises(TamperedError):
                    plain.read_tile(number, bytearray(4096))
        os.truncate(path, one.source_offset + 10)
        with pytest.raises(TamperedError, match=f"ends at byte {one.source_offset + 10}"):
            plain.read_tile(0, bytearray(4096))
        path.write_bytes(gguf)
        path.unlink()
        assert 4096 == plain.read_tile(0, bytearray(4096))
    with pytest.raises(ModelError, match="was closed"):
        plain.read_tile(0, bytearray(4096))


def test_the_file_changes_during_the_pass(tmp_path: Path) -> None:
    """What changes before the pass comes by misses the pin; what changes after it misses its tag; growth is refused."""
    gguf = build([], [Tensor("a", 0, (64, 64), data(16384, 1))]) + bytes(18 << 20)
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf)

    def alter(at: int, size: int = len(gguf)) -> None:
        with path.open("r+b") as file:
            file.seek(at)
            file.write(b"\xff")
            file.truncate(size)

    def early(done: int, total: int) -> None:
        alter(len(gguf) - 1)

    with pytest.raises(PinError):
        open_tagged(path, hashlib.sha256(gguf).digest(), progress=early)
    path.write_bytes(gguf)
    with open_tagged(path, hashlib.sha256(gguf).digest(), progress=lambda done, total: alter(200)) as plain, \
            pytest.raises(TamperedError):
        plain.read_tile(0, bytearray(16384))
    path.write_bytes(gguf)
    with pytest.raises(FormatError, match="goes on after byte"):
        open_tagged(path, None, progress=lambda done, total: alter(200, len(gguf) + 1))
    path.write_bytes(gguf)
    with pytest.raises(TamperedError, match="ends at byte"):
        open_tagged(path, None, progress=lambda done, total: alter(200, len(gguf) - 5000))


def test_files_that_are_refused(tmp_path: Path) -> None:
    """Malformed files and folders are refused; a tensor of a billion tiny matrices takes no memory for tags."""
    with pytest.raises(FormatError):
        _opened(tmp_path, b"GGUF")
    with pytest.raises(ModelError, match="allowed: a regular file"):
        open_tagged(tmp_path)
    huge = build([], [Tensor("a", 0, (1, 1, 1 << 30), b"")])
    path = tmp_path / "m.gguf"
    path.write_bytes(huge)
    os.truncate(path, (4 << 30) + 4096)
    with pytest.raises(UnsupportedError, match="tensor 'a' takes the file beyond 4194304 tiles"):
        open_tagged(path)
    path.write_bytes(build([], [Tensor("a", 0, (1 << 19, 1), b"")]))
    os.truncate(path, 8 << 20)
    with pytest.raises(UnsupportedError, match="16 rows of tensor 'a' have 33554432 bytes"):
        open_tagged(path)


def test_no_memory_for_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is none, the file does not stay open."""
    (tmp_path / "m.gguf").write_bytes(small())

    def none(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr("appliance.secure.locked.mmap.mmap", none)
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    with pytest.raises(ModelError, match="no memory for the key of a model"):
        open_tagged(tmp_path / "m.gguf")
    assert before == {path.name for path in Path("/proc/self/fd").iterdir()}


def test_many_threads(tmp_path: Path) -> None:
    """Eight threads read all tiles at the same time and get the same bytes."""
    gguf = small()
    _, found = parts(gguf)
    with _opened(tmp_path, gguf) as plain:
        results: list[bytes] = []

        def read() -> None:
            rows = bytearray()
            for _ in range(20):
                rows.clear()
                for tile in plain.tiling:
                    buffer = bytearray(tile.nbytes)
                    plain.read_tile(tile.number, buffer)
                    rows += _unpacked(tile, buffer)
            results.append(bytes(rows))

        threads = [threading.Thread(target=read) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [b"".join(gguf[part.offset:part.offset + part.nbytes] for part in found)] * 8 == results
