"""A model in shards is read as the one file that it was; shards that are not those of one model are refused by name."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.errors import FormatError, ModelError, PinError, TamperedError, UnsupportedError
from appliance.models.catalogue import ModelFile
from appliance.models.file import shards as product
from appliance.models.sources.streamed import StreamedSource
from appliance.sealing import digests, restore, sealing
from tests.support import shard_files
from tests.support.engines import synthetic_model
from tests.support.fetch_llama_samplers import LIBRARY
from tests.support.ggufs import I32, STRING, U16, Tensor, build, kv
from tests.support.plain import open_resident, open_tagged
from tests.support.sealed_models import KEY

DATA = synthetic_model("Q8_0")


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """A model in three shards."""
    return shard_files.shards(DATA, 3, tmp_path)


def _pins(paths: list[Path]) -> tuple[bytes, list[bytes]]:
    """The pin as documented, by other means than the product's: the digest of what `sha256sum` lists."""
    each = [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    return hashlib.sha256(b"".join(digest.hex().encode() + b"\n" for digest in each)).digest(), each


@pytest.mark.parametrize(("count", "bare_first"), [(2, False), (3, True), (7, False)])
def test_the_same_model(count: int, bare_first: bool, tmp_path: Path) -> None:
    """Every weight and vector has the bytes that it has in the whole file, resident and streamed; so have the
    metadata. The pin is that of the list."""
    paths = shard_files.shards(DATA, count, tmp_path, bare_first=bare_first)
    (tmp_path / "whole.gguf").write_bytes(DATA)
    pin, each = _pins(paths)
    with open_resident(tmp_path / "whole.gguf") as whole, open_resident(paths[0], pin, pinned_shards=each) as found:
        assert pin == found.sha256
        assert dict.fromkeys(whole.metadata) == dict.fromkeys(found.metadata)
        assert list(whole.tensors) == list(found.tensors)
        streamed = StreamedSource(open_tagged(paths[0], pin, pinned_shards=each), resident=frozenset())
        streamed.prepare(1)
        for name, info in whole.tensors.items():
            if len(info.shape) == 1:
                assert whole.vector(name).tobytes() == found.vector(name).tobytes() == streamed.vector(name).tobytes()
                continue
            expected, weight = whole.weight(name), found.weight(name)
            assert _bytes(expected.address, expected.nbytes) == _bytes(weight.address, weight.nbytes)
            tiles = b"".join(bytes(tile) for tile in streamed.reader.tiles_of(streamed.reader.segment(name)))
            assert _bytes(expected.address, expected.nbytes) == tiles
        streamed.close()


def _bytes(address: int, nbytes: int) -> bytes:
    return ctypes.string_at(address, nbytes)


def test_pins_name_the_shard(three: list[Path]) -> None:
    """The shard that is another one is named, where each is pinned; else the digest of the list is."""
    pin, each = _pins(three)
    with three[1].open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x55")
    for opened in (open_resident, open_tagged):
        with pytest.raises(PinError, match=three[1].name):
            opened(three[0], pin, pinned_shards=each)
        with pytest.raises(PinError, match=pin.hex()):
            opened(three[0], pin)
        with pytest.raises(PinError, match="3 files; the policy pins 2 shards"):
            opened(three[0], pin, pinned_shards=each[:2])


def _missing(paths: list[Path]) -> None:
    paths[1].unlink()


def _doubled(paths: list[Path]) -> None:
    paths[2].write_bytes(paths[1].read_bytes())


def _swapped(paths: list[Path]) -> None:
    one, two = paths[1].read_bytes(), paths[2].read_bytes()
    paths[1].write_bytes(two)
    paths[2].write_bytes(one)


def _shard(paths: list[Path], number: int, *keys: bytes, tensors: list[Tensor], total: int) -> None:
    paths[number].write_bytes(build([kv("split.no", U16, number), kv("split.count", U16, 3),
                                     kv("split.tensors.count", I32, total), *keys], tensors))


def _total(paths: list[Path]) -> int:
    return len(ModelFile(paths[0]).gguf.tensors)


def _of_another(paths: list[Path]) -> None:
    _shard(paths, 1, kv("general.architecture", STRING, "qwen2"), tensors=[], total=_total(paths))


def _another_total(paths: list[Path]) -> None:
    _shard(paths, 2, tensors=[Tensor("x", 0, (4,), bytes(16))], total=5)


def _too_few(paths: list[Path]) -> None:
    _shard(paths, 2, tensors=[Tensor("x", 0, (4,), bytes(16))], total=_total(paths))


def _twice(paths: list[Path]) -> None:
    _shard(paths, 2, tensors=[Tensor("token_embd.weight", 0, (4,), bytes(16))], total=_total(paths))


def _whole(paths: list[Path]) -> None:
    paths[2].write_bytes(DATA)


def _sealed(paths: list[Path]) -> None:
    paths[2].write_bytes(b"appliance/sealed-model/2" + bytes(4096))


def _cut(paths: list[Path]) -> None:
    paths[1].write_bytes(paths[1].read_bytes()[:-64])


def _folder(paths: list[Path]) -> None:
    paths[1].unlink()
    paths[1].mkdir()


@pytest.mark.parametrize(("attack", "error", "words"), [
    (_missing, ModelError, "shard 2 of 3.*m-00002-of-00003.gguf cannot be opened"),
    (_folder, ModelError, "shard 2 of 3.*is a folder"),
    (_doubled, FormatError, "m-00003-of-00003.gguf is shard 2 of 3 by its metadata; needed: shard 3"),
    (_swapped, FormatError, "m-00002-of-00003.gguf is shard 3 of 3"),
    (_of_another, FormatError, "m-00002-of-00003.gguf is of another model: general.architecture is 'qwen2'"),
    (_another_total, FormatError, "m-00003-of-00003.gguf is of another model: split.tensors.count is 5"),
    (_too_few, FormatError, "split.tensors.count is .*; the shards have"),
    (_twice, FormatError, "m-00003-of-00003.gguf: tensor 'token_embd.weight' stands in m-00001-of-00003.gguf too"),
    (_whole, FormatError, "m-00003-of-00003.gguf is no shard by its metadata"),
    (_sealed, FormatError, "m-00003-of-00003.gguf: byte 0: a sealed model"),
    (_cut, FormatError, "m-00002-of-00003.gguf: .*the end of tensor"),
])
def test_hostile_shards(attack: Callable[[list[Path]], None], error: type[ModelError], words: str,
                        three: list[Path]) -> None:
    """Each is refused by name, by everything that reads a header."""
    attack(three)
    for read in (lambda path: ModelFile(path).gguf, open_resident, open_tagged):
        with pytest.raises(error, match=f"(?s){words}"):
            read(three[0])


def test_another_shard_than_the_first(three: list[Path]) -> None:
    """It stands for nothing; the error names the one that stands for all."""
    with pytest.raises(UnsupportedError, match="part 2 of the 3 parts of a model; needed: the first") as raised:
        open_resident(three[1])
    assert three[0].name in str(raised.value.hint)


def test_a_shard_of_another_name(three: list[Path]) -> None:
    """Without the name of a shard nobody knows where the others are."""
    path = three[0].rename(three[0].with_name("m.gguf"))
    with pytest.raises(UnsupportedError, match="part 1 of the 3 parts"):
        open_resident(path)


def test_a_whole_file_with_the_name_of_a_shard(tmp_path: Path) -> None:
    """Its metadata say that it is whole: it runs."""
    path = tmp_path / shard_files.name("m", 1, 3)
    path.write_bytes(DATA)
    with open_resident(path) as found:
        assert hashlib.sha256(DATA).digest() == found.sha256


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    """Too many files are refused before one is opened."""
    path = tmp_path / shard_files.name("m", 1, 513)
    path.write_bytes(build([kv("split.no", U16, 0), kv("split.count", U16, 513), kv("split.tensors.count", I32, 0)]))
    with pytest.raises(UnsupportedError, match="one of 513 shards; supported: 512"):
        open_resident(path)


def test_a_changed_shard_is_seen_while_streaming(three: list[Path]) -> None:
    """The error of a tile names the shard and the place in it."""
    tiles = open_tagged(three[0])
    tile = next(tile for tile in tiles.tiling if tile.source_offset > tiles.file.parts[1][0])
    path, at = tiles.file.named(tile.source_offset)
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(1)
        file.seek(at)
        file.write(bytes([before[0] ^ 1]))
    with pytest.raises(TamperedError, match=f"{path.name}: [0-9]+ bytes from {at} on changed"):
        tiles.read_tile(tile.number, bytearray(tile.nbytes))
    tiles.close()


def test_sealing_makes_one_file(three: list[Path], tmp_path: Path) -> None:
    """A sealed file of shards unseals to the merged GGUF file, whose tensors are those of the shards."""
    done = sealing.seal(three[0], tmp_path / "m.sealed", KEY, tile_size=4096)
    found = restore.unseal(tmp_path / "m.sealed", tmp_path / "back.gguf", KEY)
    back = (tmp_path / "back.gguf").read_bytes()
    assert done.sha256 == found.sha256 == hashlib.sha256(back).digest()
    assert digests.of(three[0]).tensors == digests.of(tmp_path / "back.gguf").tensors
    (tmp_path / "whole.gguf").write_bytes(DATA)
    assert digests.of(tmp_path / "whole.gguf").tensors == found.tensors
    if LIBRARY.is_file():
        header = shard_files.merged_header(three, tmp_path / "header")
        assert header == back[:len(header)]
    again = tmp_path / "m.sealed.part"
    (tmp_path / "m.sealed").rename(again)
    with again.open("r+b") as part:
        part.truncate(again.stat().st_size - 5000)
    assert sealing.seal(three[0], tmp_path / "m.sealed", KEY, tile_size=4096).kept_tiles > 0


PIECES = st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 300_000)), min_size=1, max_size=20)


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(0, 9000), min_size=2, max_size=5), pieces=PIECES)
def test_any_read(sizes: list[int], pieces: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    """Reads that begin and end anywhere give what the files have, and zeros between them."""
    folder = tmp_path_factory.mktemp("any")
    data = [np.random.default_rng(number).bytes(size) for number, size in enumerate(sizes)]
    paths = [folder / str(number) for number in range(len(sizes))]
    for path, part in zip(paths, data, strict=True):
        path.write_bytes(part)
    file = product.ShardedFile(paths)
    whole = bytearray(file.size)
    for part, (start, size) in zip(data, file.parts, strict=True):
        assert (len(part), 0) == (size, start % 4096)
        whole[start:start + size] = part
    for offset, nbytes in pieces:
        view = memoryview(bytearray(b"\xff" * nbytes))
        if offset + nbytes <= file.size:
            file.read_into(view, offset)
            assert whole[offset:offset + nbytes] == bytes(view)
        elif nbytes:
            with pytest.raises(ModelError):
                file.read_into(view, offset)
    assert bytes(whole) == b"".join(file.chunks())
    file.close()
