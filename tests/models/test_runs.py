"""Roles of tensors: runs of matrices, vectors of two dimensions and matrices of one, however a model is kept."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.forward.tile_tables import Streaming
from appliance.errors import FormatError, ModelError, TamperedError, UnsupportedError
from appliance.kernels.runtime.threads import Pool
from appliance.models.file.gguf import GGUFFile
from appliance.models.file.quants import FORMATS
from appliance.models.file.roles import Role, Roles, by_rank
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.resident import ResidentSource
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.models.sources.source import Access
from appliance.models.sources.streamed import StreamedSource
from appliance.sealing import restore
from tests.support import shard_files
from tests.support.engines import kernels
from tests.support.ggufs import STRING, Tensor, build, kv
from tests.support.kernel_order import deinterleave
from tests.support.plain import open_resident, open_tagged
from tests.support.sealed_models import KEY, sealed

RUNS, ROWS, COLUMNS = 3, (5, 16, 37), 256
_RANDOM = np.random.default_rng(11)
VECTORS = {"bias.F32": (0, "<f4"), "bias.F16": (1, "<f2"), "bias.BF16": (30, "<u2")}
ROW = {"row.F32": 0, "row.F16": 1, "row.Q8_0": 8}
KINDS = ("plain", "plain, in place", "plain shards", "sealed", "streamed sealed", "streamed plain")


def _tensors() -> list[Tensor]:
    """A run in every format and of each count of rows, vectors of 3 x 20 and 17 x 4 numbers, and matrices of one
    row."""
    found = [Tensor(f"{each.name}.{rows}", each.ggml_id, (COLUMNS, rows, RUNS),
                    _RANDOM.bytes(RUNS * rows * each.row_nbytes(COLUMNS)))
             for each in FORMATS.values() for rows in ROWS]
    found += [Tensor(f"{name}.{rows}", number, (60 // rows, rows), _RANDOM.bytes(60 * np.dtype(kind).itemsize))
              for name, (number, kind) in VECTORS.items() for rows in (3, 20)]
    found += [Tensor(name, number, (COLUMNS,), _RANDOM.bytes(
        next(each for each in FORMATS.values() if each.ggml_id == number).row_nbytes(COLUMNS)))
        for name, number in ROW.items()]
    return [Tensor("token_embd.weight", 0, (32, 40), _RANDOM.bytes(40 * 128)), *found]


TENSORS = _tensors()
MODEL = build([kv("general.architecture", STRING, "llama")], TENSORS)


def roles(file: GGUFFile) -> Mapping[str, Role]:
    """As a card might say: what is called a bias is a vector, what is called a row is a matrix."""
    said: dict[str, Role] = {name: "vector" if name.startswith("bias") else "matrix" for name in file.tensors
                             if name.startswith(("bias", "row"))}
    return {**by_rank(file), **said}


def _plain(folder: Path, data: bytes) -> Path:
    path = folder / "m.gguf"
    path.write_bytes(data)
    return path


def _open(kind: str, path: Path, roles: Roles, resident: Collection[str] = ()) -> ResidentSource | StreamedSource:
    if kind.startswith("plain"):
        return open_resident(path, roles=roles)
    if kind == "sealed":
        return open_sealed_resident(path, KEY, header_sha256=None, roles=roles)
    tiles = (open_tagged(path, tile_size=8192) if kind == "streamed plain" else
             open_sealed(path, KEY, header_sha256=None))
    return StreamedSource(tiles, resident=resident, roles=roles)


@contextmanager
def opened(kind: str, folder: Path) -> Iterator[ResidentSource | StreamedSource]:
    """The model as it is kept in one of the KINDS; streamed ones have all matrices resident."""
    keys = [kv("general.architecture", STRING, "llama")]
    if kind == "plain, in place":
        path = _plain(folder, build([*keys, kv("filler", STRING, "x" * (1 << 20))], TENSORS))
    elif kind == "plain shards":
        path = shard_files.shards(MODEL, 3, folder)[0]
    else:
        path = _plain(folder, MODEL) if "plain" in kind else sealed(folder, MODEL)
    with closing(_open(kind, path, roles, [tensor.name for tensor in TENSORS])) as source:
        yield source


@pytest.mark.parametrize("kind", KINDS)
def test_each_matrix_of_a_run_stands_alone(kind: str, tmp_path: Path) -> None:
    """Matrix i of a run begins i times its bytes behind the first, is padded to whole groups of 16 rows with zeros,
    and has the bytes of the file."""
    with opened(kind, tmp_path) as source:
        for tensor in TENSORS:
            if len(tensor.dimensions) != 3:
                continue
            weight, rows, each = source.weight(tensor.name), tensor.dimensions[1], len(tensor.data) // RUNS
            assert (RUNS, rows, COLUMNS, 0) == (weight.runs, weight.rows, weight.columns, weight.address % 64)
            assert weight.nbytes == -(-rows // 16) * 16 * weight.format.row_nbytes(COLUMNS)
            for index in range(RUNS):
                packed = ctypes.string_at(weight.address + index * weight.nbytes, weight.nbytes)
                expected = tensor.data[index * each:(index + 1) * each]
                assert expected == deinterleave(weight.format, packed, rows, COLUMNS)
                whole = deinterleave(weight.format, packed, -(-rows // 16) * 16, COLUMNS)
                if weight.format.name not in ("Q8_0", "Q8_1"):  # whose zero bytes are flipped
                    assert not any(whole[len(expected):])


@pytest.mark.parametrize("kind", KINDS)
def test_roles_are_no_ranks(kind: str, tmp_path: Path) -> None:
    """A vector may have two dimensions in the file, and is decoded in their order; a matrix of one row has one."""
    with opened(kind, tmp_path) as source:
        for tensor in TENSORS:
            if tensor.name.startswith("bias"):
                number, dtype = VECTORS[tensor.name.rpartition(".")[0]]
                numbers = np.frombuffer(tensor.data, dtype)
                expected = ((numbers.astype(np.uint32) << 16).view(np.float32) if number == 30 else
                            numbers.astype(np.float32))
                found = source.vector(tensor.name)
                assert expected.tobytes() == found.tobytes()
                assert not found.flags.writeable
                with pytest.raises(FormatError, match="needed: a matrix"):
                    source.weight(tensor.name)
            if tensor.name.startswith("row"):
                weight = source.weight(tensor.name)
                assert (1, 1, COLUMNS) == (weight.runs, weight.rows, weight.columns)
                packed = ctypes.string_at(weight.address, weight.nbytes)
                assert tensor.data == deinterleave(weight.format, packed, 1, COLUMNS)
                with pytest.raises(FormatError, match="needed: a vector"):
                    source.vector(tensor.name)


NAMES = ("F32.37", "Q4_K.5", "Q6_K.37", "IQ4_NL.16")
KEPT = {"F32.37", "Q4_K.5"}


class _Fetcher:
    """A streamed model's tiles as a pass asks for them, by compiled code or by the interpreter."""

    def __init__(self, source: StreamedSource, pool: Pool) -> None:
        self.source = source
        source.prepare(1)
        self._streaming = Streaming.of(source, kernels(), pool)
        matrices = {name: (source.weight(name).fetch, source.weight(name).context) if self._streaming is None else
                    (self._streaming.kernel, self._streaming.matrix(name)) for name in NAMES}
        source.expect([[name] for name in NAMES])
        self._fetch = {name: (ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 3)(function), context)
                       for name, (function, context) in matrices.items()}

    @contextmanager
    def passing(self) -> Iterator[None]:
        """One pass."""
        with self.source.passing():
            if self._streaming is not None:
                self._streaming.begin()
            yield
            if self._streaming is not None:
                self._streaming.end()

    def tile(self, name: str, number: int) -> int:
        """The address of a tile."""
        fetch, context = self._fetch[name]
        return int(fetch(context, number, 0))

    def matrix(self, name: str, index: int) -> bytes:
        """A matrix of a run, in kernel order."""
        weight = self.source.weight(name)
        groups, each = -(-weight.rows // 16), self.tiles(name)
        group = weight.nbytes // groups
        return b"".join(ctypes.string_at(
            self.tile(name, index * each + tile), min(weight.tile_groups, groups - tile * weight.tile_groups) * group)
            for tile in range(each))

    def tiles(self, name: str) -> int:
        """How many tiles a matrix of a run has."""
        weight = self.source.weight(name)
        return math.ceil(math.ceil(weight.rows / 16) / weight.tile_groups)


@contextmanager
def _streamed(kind: str, folder: Path, tile_size: int = 4096, **how: Any) -> Iterator[_Fetcher]:
    tiles = (open_tagged(_plain(folder, MODEL), tile_size=tile_size) if "plain" in kind else
             open_sealed(sealed(folder, MODEL, tile_size=tile_size), KEY, header_sha256=None))
    with closing(StreamedSource(tiles, roles=roles, compiled="compiled" in kind, **how)) as source, \
            closing(Pool(kernels(), 1)) as pool:
        yield _Fetcher(source, pool)


@pytest.mark.parametrize("kind", ["sealed", "plain", "compiled sealed", "compiled plain"])
@pytest.mark.parametrize(("tile_size", "how"), [
    (4096, {}), (65536, {}), (4096, {"kept": KEPT}), (4096, {"access": "leaks", "drop": True}), (8192, {"drop": True}),
    (4096, {"access": "oblivious", "kept": KEPT})])
def test_tiles_of_a_run_are_numbered_through(kind: str, tile_size: int, how: dict[str, Any], tmp_path: Path) -> None:
    """Tile t of matrix i is number i times the tiles of one, plus t, wherever its record comes from: together they are
    the matrices as a resident model has them. In a second pass they still are."""
    with _streamed(kind, tmp_path, tile_size, **how) as fetcher, opened("plain", tmp_path) as resident:
        for _ in range(2):
            with fetcher.passing():
                for name in NAMES:
                    weight, expected = fetcher.source.weight(name), resident.weight(name)
                    assert (0, RUNS, expected.nbytes) == (weight.address, weight.runs, weight.nbytes)
                    for index in range(RUNS):
                        assert fetcher.matrix(name, index) == ctypes.string_at(
                            expected.address + index * expected.nbytes, expected.nbytes)


@pytest.mark.parametrize("kind", ["sealed", "plain", "compiled sealed", "compiled plain"])
@pytest.mark.parametrize("access", ["hidden", "oblivious", "leaks"])
@pytest.mark.parametrize("drop", [False, True])
def test_bytes_are_counted_where_they_are_decrypted_and_read(kind: str, access: Access, drop: bool,
                                                             tmp_path: Path) -> None:
    """Of one matrix of three that is used, its tiles are decrypted. Of a run on the disk, all records are read, and of
    one in memory none; the others are neither where all may show. Where nothing may, all are used."""
    with _streamed(kind, tmp_path, access=access, kept=KEPT, drop=drop) as fetcher:
        for name in NAMES:
            source, weight, each = fetcher.source, fetcher.source.weight(name), fetcher.tiles(name)
            workers = source.workers
            kept = name in KEPT and "sealed" in kind
            assert weight.visited == (access == "oblivious" or (access == "hidden" and not kept))
            opened_nbytes, read_nbytes = workers.opened_nbytes, workers.read_nbytes
            with fetcher.passing():
                for index in range(RUNS):
                    for tile in range(index * each, (index + 1) * each):
                        if index == 1 or weight.every:
                            fetcher.tile(name, tile)
                        elif weight.visited:
                            fetcher.tile(name, ~tile)
            table = source.table(name)
            whole = sum(nbytes for _, nbytes in table.places)
            assert weight.nbytes * (RUNS if access == "oblivious" else 1) == workers.opened_nbytes - opened_nbytes
            assert (0 if kept else whole * (RUNS if weight.visited else 1)) == workers.read_nbytes - read_nbytes


@pytest.mark.parametrize("kind", ["sealed", "compiled sealed"])
@pytest.mark.parametrize("access", ["hidden", "leaks"])
def test_a_spoilt_tile_of_a_run(kind: str, access: Access, tmp_path: Path) -> None:
    """A changed record of one matrix is refused when it is used, and only then; that of another is not its."""
    with _streamed(kind, tmp_path, access=access) as fetcher:
        name, each = "Q6_K.37", fetcher.tiles("Q6_K.37")
        offset, _ = fetcher.source.table(name).places[0]
        with (tmp_path / "m.sealed").open("r+b") as file:
            file.seek(offset + 2 * fetcher.source.table(name).stride)
            file.write(b"other")
        with fetcher.passing():
            assert any(fetcher.matrix(name, 0))
            assert any(fetcher.matrix(name, 1))
            if access == "hidden":
                fetcher.tile(name, ~(2 * each))
        with pytest.raises(TamperedError, match=r"'Q6_K\.37'"), fetcher.passing():
            fetcher.tile(name, 2 * each)


def test_a_sealed_model_with_runs_is_restored(tmp_path: Path) -> None:
    """Unsealing gives back the file, byte for byte."""
    path = sealed(tmp_path, MODEL)
    restore.unseal(path, tmp_path / "again.gguf", KEY, header_sha256=None)
    assert (tmp_path / "again.gguf").read_bytes() == MODEL


@pytest.mark.parametrize(("tensor", "role", "error", "text"), [
    (Tensor("w", 0, (4, 2, 2, 2), bytes(128)), "run", UnsupportedError, "'w' has 4 dimensions; supported: 1 to 3"),
    (Tensor("w", 0, (4, 2, 2), bytes(64)), "matrix", FormatError, r"'w' is of shape \(2, 2, 4\); needed: a matrix"),
    (Tensor("w", 0, (4, 2, 2), bytes(64)), "vector", FormatError, r"'w' is of shape \(2, 2, 4\); needed: a vector"),
    (Tensor("w", 0, (4, 2), bytes(32)), "run", FormatError, r"'w' is of shape \(2, 4\); needed: a run"),
    (Tensor("w", 8, (32, 2), bytes(68)), "vector", UnsupportedError, "'w' is a vector of Q8_0")])
@pytest.mark.parametrize("kind", ["plain", "sealed", "streamed sealed", "streamed plain"])
def test_a_shape_that_has_not_the_role_is_refused(kind: str, tensor: Tensor, role: Role, error: type[ModelError],
                                                  text: str, tmp_path: Path) -> None:
    """A tensor whose rank or format is none of its role ends in one error that names it, before it takes memory."""
    data = build([kv("general.architecture", STRING, "llama")], [tensor])
    path = _plain(tmp_path, data) if "plain" in kind else sealed(tmp_path, data)
    with pytest.raises(error, match=text):
        _open(kind, path, lambda file: {"w": role})


@pytest.mark.parametrize("kind", ["plain", "sealed"])
def test_a_tensor_without_a_role_is_not_kept(kind: str, tmp_path: Path) -> None:
    """It is handed out neither as a matrix nor as a vector; its neighbours are."""
    def but(file: GGUFFile) -> Mapping[str, Role]:
        return {name: role for name, role in roles(file).items() if name != "F32.5"}

    path = _plain(tmp_path, MODEL) if kind == "plain" else sealed(tmp_path, MODEL)
    with closing(_open(kind, path, but)) as source, opened(kind, tmp_path) as whole:
        for get in (source.weight, source.vector):
            with pytest.raises(FormatError, match=r"'F32\.5' is of shape"):
                get("F32.5")
        one, two = source.weight("F32.16"), whole.weight("F32.16")
        assert ctypes.string_at(one.address, RUNS * one.nbytes) == ctypes.string_at(two.address, RUNS * two.nbytes)
