"""Every part of a model's file, altered in every way, at every moment, by another process.

What comes of it is one of three: the file is refused, the answer ends with the error after tokens that are right, or
the answer is right to its end because the bytes are never used again. There is no fourth. `docs/concepts/memory.md`
has the table.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import ModelError
from appliance.models.file import tiling
from appliance.models.sealed import reader as sealed
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.streamed import StreamedSource
from appliance.sealing import sealing
from tests.support.engines import kernels, synthetic_model
from tests.support.extent import WHOLE
from tests.support.plain import open_tagged
from tests.support.sealed_models import KEY
from tests.support.vandal import failing_disk, vandal

Kind = Literal["sealed", "plain", "compiled sealed", "compiled plain", "ahead", "ahead plain"]  # how tiles are fetched
KINDS: tuple[Kind, ...] = ("sealed", "plain", "compiled sealed", "compiled plain", "ahead", "ahead plain")
Moment = Literal["before the boot", "before the first token", "during the answer"]
MOMENTS: tuple[Moment, ...] = ("before the boot", "before the first token", "during the answer")
TILE_SIZE = 65536
REQUEST = GenerationRequest([1, 5, 9, 200, 17], 5, Sampling(temperature=0, seed=1), ignore_end=True)
CODES = {"model-malformed", "model-unsupported", "model-pin-mismatch", "model-key", "model-tampered",
         "model-unreadable", "model-error"}


@dataclass(frozen=True)
class Stored:
    """A model's file with its pins, and another sealing (or another file) of the same size."""

    kind: Kind
    path: Path
    other: Path
    pins: tuple[bytes | None, bytes]

    def open(self) -> StreamedSource:
        """As a boot does it."""
        tiles = (open_tagged(self.path, self.pins[1], tile_size=TILE_SIZE) if self.plain else
                 open_sealed(self.path, KEY, header_sha256=self.pins[0], sha256=self.pins[1]))
        return StreamedSource(tiles, compiled=self.kind.startswith("compiled"),
                              drop=self.kind.startswith("ahead"))

    @property
    def plain(self) -> bool:
        """Whether the file is not sealed."""
        return _plain(self.kind)


def _plain(kind: Kind) -> bool:
    return kind.endswith("plain")


@functools.cache
def _files(plain: bool) -> tuple[bytes, bytes, tuple[bytes | None, bytes]]:
    """A model's file, the other one, and the pins of the first."""
    with tempfile.TemporaryDirectory() as folder:
        model, path, other = (Path(folder, name) for name in ("m.gguf", "m.sealed", "other"))
        model.write_bytes(synthetic_model("mixed"))
        if plain:
            body = bytearray(model.read_bytes())
            for at in range(len(body) // 4, len(body), 999):
                body[at] ^= 1
            with closing(open_tagged(model)) as found:
                return model.read_bytes(), bytes(body), (None, found.sha256)
        sealing.seal(model, path, KEY, tile_size=TILE_SIZE)
        sealing.seal(model, other, KEY, tile_size=TILE_SIZE)
        header, _ = sealed.structure(path)
        return path.read_bytes(), other.read_bytes(), (header.digest, header.sha256)


def _stored(kind: Kind, folder: Path) -> Stored:
    folder.mkdir(exist_ok=True)
    path, other = folder / ("m.gguf" if _plain(kind) else "m.sealed"), folder / "other"
    first, second, pins = _files(_plain(kind))
    path.write_bytes(first)
    other.write_bytes(second)
    return Stored(kind, path, other, pins)


@functools.cache
def _right(kind: Kind) -> tuple[list[int], list[tiling.Tile]]:
    """The right answer of a model that nobody alters, and its tiles."""
    with tempfile.TemporaryDirectory() as folder, closing(_stored(kind, Path(folder)).open()) as source:
        return _tokens(source), list(source.reader.tiles.tiling)


def _place(kind: Kind, tile: tiling.Tile) -> tuple[int, int]:
    """Where a tile is in the file, and its bytes there."""
    return (tile.offset, tile.nbytes) if not _plain(kind) else (tile.source_offset, tile.source_nbytes)


def _regions(kind: Kind, tiles: list[tiling.Tile]) -> dict[str, int]:
    """A byte in each part of the file. Those of `HEADER` and of vectors and embeddings are read at boot alone."""
    found = {"magic": 0, "GGUF header": 200}
    if not _plain(kind):
        found |= {"version": 23, "tile size": 25, "flags": 28, "size": 33, "header size": 41, "salt": 50,
                  "plaintext hash": 90, "commitment": 120, "header MAC": tiles[0].offset - 4096 + 3000}
        start = tiles[0].offset
        found["header padding"] = start - 1
        del found["header MAC"]
    for tile in tiles:
        info = tile.segment.info
        name = "gap" if info is None else info.name
        at, nbytes = _place(kind, tile)
        found[f"{name}, tile {tile.number}, start"] = at
        found[f"{name}, tile {tile.number}, middle"] = at + nbytes // 2
        if not _plain(kind):
            found[f"{name}, tile {tile.number}, tag"] = at + nbytes + 7
            if tile.record_nbytes > tile.nbytes + 16:
                found[f"{name}, tile {tile.number}, padding"] = at + tile.record_nbytes - 1
    return found


@pytest.fixture(scope="module", params=KINDS)
def stored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Stored:
    """A model that tests alter and put back."""
    return _stored(request.param, tmp_path_factory.mktemp("matrix") / request.param)


@pytest.fixture(scope="module")
def tell() -> Iterator[Callable[..., None]]:
    """The other process."""
    with vandal() as found:
        yield found


def _tokens(source: StreamedSource, alter: Callable[[], None] | None = None, after: int | None = None) -> list[int]:
    """An answer's tokens. `alter` is called before the first token, or when `after` are there."""
    with Engine.open(source, EngineOptions(threads=2, slots=1), kernels=kernels()) as engine:
        found: list[int] = []
        if alter is not None and not after:
            alter()
        for step in engine.generate(REQUEST):
            assert step.token is not None
            _SO_FAR.append(step.token)
            found.append(step.token)
            if alter is not None and len(found) == after:
                alter()
        return found


_SO_FAR: list[int] = []  # tokens of the answer that is made, whether it ends well or not


def _outcome(stored: Stored, moment: Moment, alter: Callable[[], None], expected: list[int]) -> str:
    """refused, ended or right; fails for anything else."""
    _SO_FAR.clear()
    source = None
    if moment == "before the boot":
        alter()
    try:
        source = stored.open()
    except ModelError as error:
        failure = error
    else:
        with closing(source):
            try:
                after = {"before the boot": None, "before the first token": 0, "during the answer": 2}[moment]
                assert expected == _tokens(source, None if after is None else alter, after)
                return "right"
            except ModelError as error:
                failure = error
            assert str(stored.path) in failure.summary
            assert expected[:len(_SO_FAR)] == _SO_FAR
            assert not any(any(tile) for worker in source.workers for tile in worker.tiles)
    assert failure.code in CODES
    return "refused" if source is None else "ended"


def _read_again(region: str) -> bool:
    """Whether a pass reads the region: matrices but the embeddings."""
    return "tile" in region and "norm" not in region and "token_embd" not in region and "tile size" not in region


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_every_part_flipped(moment: Moment, stored: Stored, tell: Callable[..., None]) -> None:
    """One bit in every part of the file: refused at boot or found by the next pass; what is not read again cannot
    matter."""
    expected, tiles = _right(stored.kind)
    every = 9 if stored.kind.startswith("ahead") else 1 if WHOLE else 5  # reads past the page cache are slow here
    regions = _regions(stored.kind, tiles)
    of_tiles = [region for region in regions if ", tile " in region]
    chosen = {*of_tiles[::every], *(regions.keys() - set(of_tiles) if every < 9 else ())}
    for region in filter(chosen.__contains__, regions):
        at = regions[region]
        found = _outcome(stored, moment, lambda at=at: tell("flip", stored.path, at), expected)  # type: ignore[misc]
        tell("flip", stored.path, at)
        if moment == "before the boot":
            wanted = "ended" if _read_again(region) and not stored.plain else "refused"
        else:
            wanted = "ended" if _read_again(region) else "right"
        assert wanted == found, region


WAYS = ("blank", "cut", "swap", "roll back a tile", "roll back the file", "replace", "remove")
# What comes of each way, of a sealed model and a plain one: at boot, later. A file that is replaced or removed by name
# stays open as it was.
WANTED = {
    "blank": ("ended", "refused", "ended"), "cut": ("refused", "refused", "ended"),
    "swap": ("ended", "refused", "ended"), "roll back a tile": ("ended", "refused", "ended"),
    "roll back the file": ("refused", "refused", "ended"), "replace": ("refused", "refused", "right"),
    "remove": ("refused", "refused", "right"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_way(kind: Kind, way: str, moment: Moment, tell: Callable[..., None], tmp_path: Path) -> None:
    """Zeros, a shorter file, tiles exchanged, one tile or all of another version, another file of the name, none."""
    stored = _stored(kind, tmp_path / "m")
    expected, tiles = _right(kind)
    path, size = stored.path, stored.path.stat().st_size
    matrices = [tile for tile in tiles if tile.segment.info is not None
                and "ffn_up" in tile.segment.info.name and tile.segment.info.name.startswith("blk.1")]
    last = [tile for tile in tiles if tile.segment.kind == "matrix"][-1]
    at, nbytes = _place(kind, matrices[0])
    whole = (0, size)
    how: dict[str, tuple[object, ...]] = {
        "blank": ("blank", path, at, nbytes), "cut": ("cut", path, at + nbytes // 2),
        "swap": ("swap", path, at, _place(kind, matrices[-1])[0], nbytes // 2),
        "roll back a tile": ("put", path, *_place(kind, last), stored.other),
        "roll back the file": ("put", path, *whole, stored.other),
        "replace": ("become", path, stored.other), "remove": ("gone", path)}
    found = _outcome(stored, moment, lambda: tell(*how[way]), expected)
    sealed_boot, plain_boot, later = WANTED[way]
    wanted = later if moment != "before the boot" else plain_boot if _plain(kind) else sealed_boot
    assert wanted == found


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_disk_that_fails(kind: Kind, moment: Moment, tmp_path: Path) -> None:
    """Input/output errors of the kernel, from a block device that lost its bytes: an error that says so."""
    with failing_disk(tmp_path, 16 << 20) as (folder, fail):
        stored = _stored(kind, folder / "m")
        found = _outcome(stored, moment, lambda: fail(stored.path), _right(kind)[0])
        assert ("refused" if moment == "before the boot" else "ended") == found


SCRIBBLE = """
import os, sys, time
path, size = sys.argv[1], int(sys.argv[2])
file = os.open(path, os.O_RDWR)
print("writing", flush=True)
at = rounds = 0
while True:
    rounds += 1
    at = (at * 6364136223846793005 + 1442695040888963407) % 2**64
    place = at % size
    old = os.pread(file, 64, place)
    os.pwrite(file, bytes(byte ^ 255 for byte in old), place)
    time.sleep(0.002 * (rounds % 16 == 0))  # altered for most of the time, whoever gets the processor
    os.pwrite(file, old, place)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_never_stands_still(kind: Kind, tmp_path: Path) -> None:
    """Another process alters the file and puts it back, all the time: what comes of it is the right answer or an error,
    whenever a byte is read, and never a wrong token."""
    stored, (expected, _) = _stored(kind, tmp_path / "m"), _right(kind)
    found, body = [], stored.path.read_bytes()
    with subprocess.Popen([sys.executable, "-c", SCRIBBLE, str(stored.path), str(stored.path.stat().st_size)],
                          stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        while len(found) < 20 or set(found) == {"right"}:  # where they never ran at one time, again
            found.append(_outcome(stored, "before the first token", lambda: None, expected))
        child.kill()
    assert set(found) <= {"refused", "ended", "right"}
    stored.path.write_bytes(body)  # it may have been killed half-way
    assert "right" == _outcome(stored, "before the first token", lambda: None, expected)
