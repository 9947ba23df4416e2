"""The resident source: what the engine reads is what the file held, and nothing else gets that far."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.errors import EngineError, FormatError, ModelError, PinError, UnsupportedError
from appliance.models.file.quants import FORMATS
from tests.support.ggufs import STRING, U16, Tensor, build, kv
from tests.support.kernel_order import deinterleave
from tests.support.plain import open_resident


def _tensors(rows: int, columns: int) -> list[Tensor]:
    """One matrix of random bytes in every format."""
    random = np.random.default_rng(5)
    return [Tensor(f"w.{name}", each.ggml_id, (columns, rows), random.bytes(rows * each.row_nbytes(columns)))
            for name, each in FORMATS.items()]


@pytest.fixture(scope="module", params=[0, 1 << 20], ids=["in memory of its own", "in place"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Tensor]]:
    """A file with a matrix in every format, of a row count that is no multiple of 16, and two vectors. Kernel order
    pads the rows: with a mebibyte of metadata before them there is room for that where the file was read."""
    vectors = [Tensor("v32", 0, (5,), np.arange(5, dtype="<f4").tobytes()),
               Tensor("v16", 1, (3,), np.array([0.5, -1, 2], "<f2").tobytes())]
    tensors = [vectors[0], *_tensors(37, 512), vectors[1]]
    path = tmp_path_factory.mktemp("resident") / "m.gguf"
    path.write_bytes(build([kv("general.architecture", STRING, "llama"),
                            kv("filler", STRING, "x" * request.param)], tensors))
    return path, tensors


def test_every_weight_is_the_files(model: tuple[Path, list[Tensor]]) -> None:
    """Each matrix in memory is aligned and, put back in order, is byte for byte the tensor of the file."""
    path, tensors = model
    pin = hashlib.sha256(path.read_bytes()).digest()
    source = open_resident(path, pin)
    for tensor in tensors:
        if len(tensor.dimensions) == 2:
            weight = source.weight(tensor.name)
            assert (37, 512, 0) == (weight.rows, weight.columns, weight.address % 64)
            packed = ctypes.string_at(weight.address, weight.nbytes)
            assert tensor.data == deinterleave(weight.format, packed, weight.rows, weight.columns)
    assert [0, 1, 2, 3, 4] == source.vector("v32").tolist()
    assert [0.5, -1, 2] == source.vector("v16").tolist()
    assert pin == source.sha256
    assert "llama" == source.metadata["general.architecture"]
    assert {tensor.name for tensor in tensors} == set(source.tensors)
    source.close()


@pytest.mark.parametrize("metadata", [0, 1 << 12, 1 << 20])
def test_matrices_longer_than_a_run(tmp_path: Path, metadata: int) -> None:
    """Matrices that are repacked in several runs come out whole, with room for padding or without."""
    data = [np.random.default_rng(seed).bytes(20001 * 272) for seed in range(2)]
    path = tmp_path / "m"
    path.write_bytes(build([kv("filler", STRING, "x" * metadata)],
                           [Tensor(f"w{seed}", 8, (256, 20001), each) for seed, each in enumerate(data)]))
    source = open_resident(path)
    for seed, each in enumerate(data):
        weight = source.weight(f"w{seed}")
        packed = ctypes.string_at(weight.address, weight.nbytes)
        assert each == deinterleave(weight.format, packed, 20001, 256)
    source.close()


def test_what_is_not_there_is_named(model: tuple[Path, list[Tensor]]) -> None:
    """A missing tensor, one of another kind, and any tensor after closing are refused."""
    source = open_resident(model[0])
    with pytest.raises(FormatError, match="'none' is missing; needed: a matrix"):
        source.weight("none")
    with pytest.raises(FormatError, match=r"'v32' is of shape \(5,\); needed: a matrix"):
        source.weight("v32")
    with pytest.raises(FormatError, match=r"'w.F32' is of shape \(37, 512\); needed: a vector"):
        source.vector("w.F32")
    with pytest.raises(ValueError, match="read-only"):
        source.vector("v32")[0] = 1
    source.close()
    source.close()
    for get in (source.weight, source.vector):
        with pytest.raises(ModelError, match="the model was closed"):
            get("w.F32")


def test_another_file_is_refused_before_it_is_parsed(tmp_path: Path) -> None:
    """Bytes that do not carry the pin are refused as such, even where they would not parse."""
    path = tmp_path / "m"
    path.write_bytes(b"GGUF, or so it says")
    with pytest.raises(PinError, match="the policy pins 000000"):
        open_resident(path, bytes(32))
    with pytest.raises(FormatError, match="the version is"):
        open_resident(path)


@pytest.mark.parametrize("bit", [0, 8 * 100 + 3, -1])
def test_one_flipped_bit_is_refused(model: tuple[Path, list[Tensor]], tmp_path: Path, bit: int) -> None:
    """One bit anywhere makes another file."""
    data = bytearray(model[0].read_bytes())
    pin = hashlib.sha256(data).digest()
    data[bit // 8] ^= 1 << bit % 8
    path = tmp_path / "m"
    path.write_bytes(data)
    with pytest.raises(PinError):
        open_resident(path, pin)


@pytest.mark.parametrize("data", [b"", b"x", build()[:20]])
def test_tiny_files_are_refused(tmp_path: Path, data: bytes) -> None:
    """A file too short for a header is malformed."""
    path = tmp_path / "m"
    path.write_bytes(data)
    with pytest.raises(FormatError):
        open_resident(path)


def test_parts_of_a_model_are_refused(tmp_path: Path) -> None:
    """One part of a model that comes in several files is refused with the way to join them."""
    path = tmp_path / "m"
    path.write_bytes(build([kv("split.count", U16, 3)]))
    with pytest.raises(UnsupportedError, match="one of 3 parts"):
        open_resident(path)


def test_no_memory_is_named(tmp_path: Path) -> None:
    """A file larger than memory can be is refused with its size."""
    path = tmp_path / "m"
    path.touch()
    os.truncate(path, 1 << 42)
    script = ("import resource, sys; from pathlib import Path\n"
              "from tests.support.plain import open_resident\n"
              "resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))\n"
              "try: open_resident(Path(sys.argv[1]))\n"
              "except Exception as error: print(type(error).__name__, error.code, error)\n")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert f"ModelError memory no memory for the file {path}: 4398046511104 bytes" in done.stdout


def test_the_file_changes_while_it_is_read(tmp_path: Path) -> None:
    """A file that is cut after the first chunk is refused, wherever reading stands."""
    path = tmp_path / "m"
    path.write_bytes(bytes(10 << 20))

    def cut(done: int, _total: int) -> None:
        if done < 5 << 20:
            os.truncate(path, 6 << 20)

    with pytest.raises(ModelError, match=f"{path} ends at byte {6 << 20}; its size was {10 << 20}"):
        open_resident(path, None, cut)


@pytest.mark.parametrize("rows", [(16 << 20) // 34, ((16 << 20) // 34) & ~15], ids=["padded", "whole"])
def test_memory_stays_near_the_files_size(tmp_path: Path, rows: int) -> None:
    """Loading 96 MiB peaks at no more than 1.3 times that, with room for padding or without."""
    path = tmp_path / "m"
    tensors = [Tensor(f"w{i}", 8, (32, rows), bytes(34 * rows)) for i in range(6)]
    path.write_bytes(build([], tensors))
    script = ("import sys; from pathlib import Path\n"
              "from tests.support.plain import open_resident\n"
              "def memory(key):\n"
              "    lines = Path('/proc/self/status').read_text().splitlines()\n"
              "    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))\n"
              "before = memory('VmRSS')\n"
              "source = open_resident(Path(sys.argv[1]))\n"
              "print(memory('VmHWM') - before)\n")
    done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
    assert int(done.stdout) <= 1.3 * path.stat().st_size


def test_an_error_while_it_is_repacked(model: tuple[Path, list[Tensor]]) -> None:
    """What fails is told, whichever memory it happened in."""
    def fail(*_: object) -> None:
        raise EngineError("no table")

    with pytest.raises(EngineError, match="no table"):
        open_resident(model[0], interleave=fail)
