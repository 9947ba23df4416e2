"""Sealing and unsealing: the same bytes come back, and the engine gets the same weights."""

from __future__ import annotations

import ctypes
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import gguf_reader as reader

from appliance.boot.planning import inspection
from appliance.cli.main import main
from appliance.errors import FormatError, ModelError, UnsupportedError
from appliance.models.file import gguf
from appliance.models.sealed import order as kernel_order
from appliance.models.sealed.reader import open_sealed
from appliance.models.sources.sealed_resident import open_sealed_resident
from appliance.policy.enforcement import places
from appliance.sealing import digests, restore, sealing
from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.engines import synthetic_model
from tests.support.ggufs import STRING, U32, Tensor, build, kv
from tests.support.plain import open_resident
from tests.support.sealed_models import KEY, data, parts, sealed, small, with_gaps


def _many() -> bytes:
    """Every block format as a matrix of 37 rows and as a vector, and a matrix of one column of floats."""
    tensors = []
    for name, kind in gguf.quants.FORMATS.items():
        columns = kind.elements * 2
        tensors += [Tensor(f"m.{name}", kind.ggml_id, (columns, 37), data(37 * kind.row_nbytes(columns), 3)),
                    Tensor(f"v.{name}", kind.ggml_id, (columns,), data(kind.row_nbytes(columns), 4))]
    return build([kv("general.alignment", U32, 64)], [*tensors, Tensor("one", 0, (1, 3), data(12, 5))], alignment=64)


FILES = {
    "empty": build(), "no tensors": build([kv("general.architecture", STRING, "llama")]), "small": small(),
    "gaps": with_gaps(small())[0], "every format": _many(),
    "out of order": build([], [Tensor("b", 0, (4, 4), data(64, 1), offset=64), Tensor("a", 0, (4, 4), data(64, 2),
                                                                                   offset=0)]),
    "version 2": build([], [Tensor("a", 1, (8,), data(16, 1))], version=2),
    "cut padding": build([], [Tensor("a", 0, (3,), data(12, 1))])[:-20],
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("tile_size", [4096, 1 << 20])
def test_what_was_sealed_comes_back(name: str, tile_size: int, tmp_path: Path) -> None:
    """Byte for byte, whatever the order, alignment and padding of the GGUF file; each tensor's SHA-256 is right."""
    original = FILES[name]
    path = sealed(tmp_path, original, tile_size=tile_size)
    done = restore.unseal(path, tmp_path / "back", KEY)
    assert original == (tmp_path / "back").read_bytes()
    assert 0o600 == (tmp_path / "back").stat().st_mode & 0o777
    assert {info.name: hashlib.sha256(original[info.offset:info.offset + info.nbytes]).digest()
            for info in gguf.parse(original).tensors.values()} == done.tensors
    assert ["back", "m.gguf", "m.sealed"] == sorted(found.name for found in tmp_path.iterdir())


@pytest.mark.parametrize("name", [variant.name for variant in synthetic.FORMAT_VARIANTS])
def test_models_of_every_format(name: str, tmp_path: Path) -> None:
    """A whole synthetic model: sealed, restored, and resident with the same matrices and vectors as its plain file."""
    original = synthetic_model(name)
    path = sealed(tmp_path, original, tile_size=256 << 10)
    restore.unseal(path, tmp_path / "back", KEY)
    assert original == (tmp_path / "back").read_bytes()
    plain, secret = open_resident(tmp_path / "m.gguf"), open_sealed_resident(path, KEY, header_sha256=None)
    assert hashlib.sha256(original).digest() == plain.sha256 == secret.sha256
    for info in plain.tensors.values():
        if len(info.shape) == 1:
            assert np.array_equal(plain.vector(info.name), secret.vector(info.name))
            continue
        left, right = plain.weight(info.name), secret.weight(info.name)
        assert (left.format, left.rows, left.columns, left.nbytes) == (
            right.format, right.rows, right.columns, right.nbytes)
        assert 0 == right.address % 64
        assert ctypes.string_at(left.address, left.nbytes) == ctypes.string_at(right.address, right.nbytes)
    plain.close()
    secret.close()


@pytest.mark.slow
def test_the_demo_model(tmp_path: Path) -> None:
    """The demo model at the default tile size: the reassembled plaintext has the file's SHA-256, and each tensor the
    one of its bytes as another reader of GGUF finds them."""
    path = tmp_path / "demo.sealed"
    progress: list[tuple[str, int, int]] = []
    made = sealing.seal(demo_model(), path, KEY, progress=lambda *step: progress.append(step))
    assert hashlib.sha256(demo_model().read_bytes()).digest() == made.sha256
    found = restore.verify(path, KEY, header_sha256=made.header_sha256)
    assert made.sha256 == found.sha256
    assert {tensor.name: hashlib.sha256(tensor.data.tobytes()).digest()
            for tensor in reader.GGUFReader(demo_model()).tensors} == found.tensors == digests.of(demo_model()).tensors
    assert path.stat().st_size == made.size < 1.02 * demo_model().stat().st_size
    assert {("hashing", demo_model().stat().st_size), ("sealing", made.size)} == {
        (step, done) for step, done, total in progress if done == total}


MEMORY = """
import sys
from pathlib import Path
from appliance.sealing import sealing
from appliance.models.sources.sealed_resident import open_sealed_resident
def memory(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))
before = memory("VmRSS")
if sys.argv[3] == "seal":
    sealing.seal(Path(sys.argv[1]), Path(sys.argv[2]), bytes(range(32)))
else:
    source = open_sealed_resident(Path(sys.argv[2]), bytes(range(32)), header_sha256=None)
print(memory("VmHWM") - before)
"""


def test_memory(tmp_path: Path) -> None:
    """Sealing 96 MiB takes at most 72 MiB, most of it for the first read; a resident load peaks below 1.1 times the
    file."""
    rows = (48 << 20) // 34
    (tmp_path / "m").write_bytes(build([], [Tensor(f"w{i}", 8, (32, rows), bytes(34 * rows)) for i in range(2)]))
    sealing_nbytes, resident_nbytes = (
        int(subprocess.run([sys.executable, "-c", MEMORY, tmp_path / "m", tmp_path / "s", step], capture_output=True,
                           text=True, check=True).stdout) for step in ("seal", "load"))
    assert sealing_nbytes <= 72 << 20
    assert resident_nbytes <= 1.1 * (tmp_path / "s").stat().st_size


def test_tiles_are_groups_in_kernel_order(tmp_path: Path) -> None:
    """A tile is a whole number of groups of one tensor as the layout has them; a matrix's tiles are all of it."""
    original = small()
    _, (matrix, vector, experts) = parts(original)
    with open_sealed(sealed(tmp_path, original), KEY, header_sha256=None) as model:
        buffer = bytearray(model.tiling.max_tile_nbytes)
        got: dict[str, list[bytes]] = {}
        for tile in model.tiling:
            nbytes = model.read_tile(tile.number, buffer)
            assert tile.nbytes == nbytes
            assert tile.segment.info is not None
            got.setdefault(tile.segment.info.name, []).append(bytes(buffer[:nbytes]))
        info = model.tensors["token_embd.weight"]
        assert kernel_order.interleave(info.format, original[matrix.offset:matrix.offset + 6800], 100, 64) == b"".join(
            got[info.name])
        assert [2 * 16 * 68, 2 * 16 * 68, 2 * 16 * 68, 16 * 68] == [len(tile) for tile in got[info.name]]
        assert [original[vector.offset:vector.offset + 36]] == got["norm.weight"]
        floats = model.tensors["experts.weight"].format
        assert [kernel_order.interleave(floats, original[at:at + 160], 5, 8)
                for at in (experts.offset, experts.offset + 160)] == got["experts.weight"]
        segment = model.tiling.of("token_embd.weight")
        assert (0, 4, 32, 7) == (segment.first_tile, segment.tiles, segment.tile_rows,
                                 model.tiling.of("experts.weight").first_tile + 2)
        assert 0 == model.tiling.tile(2).offset % 4096
        with pytest.raises(FormatError, match="'none' is missing"):
            model.tiling.of("none")
        with pytest.raises(FormatError, match="2176 bytes do not fit into a buffer of 1087"):
            model.read_tile(2, bytearray(1087))
        with pytest.raises(FormatError, match="read-only"):
            model.read_tile(2, bytes(2176))
        with pytest.raises(IndexError):
            model.read_tile(7, buffer)
    with pytest.raises(ModelError, match="was closed"):
        model.read_tile(0, buffer)


def test_direct_reads(tmp_path: Path) -> None:
    """With O_DIRECT the same tiles come, or the file system says that it cannot."""
    path = sealed(tmp_path, small())
    with open_sealed(path, KEY, header_sha256=None) as model, open_sealed(path, KEY, header_sha256=None) as buffered:
        try:
            model.file.bypass_cache()
        except ModelError as error:
            pytest.skip(error.summary)
        for number in range(len(model.tiling)):
            one, two = bytearray(4096), bytearray(4096)
            assert buffered.read_tile(number, two) == model.read_tile(number, one)
            assert two == one


def test_a_resident_model_refuses_what_does_not_run(tmp_path: Path) -> None:
    """Tensors of four dimensions and parts of a split model can be sealed, not run; both are named."""
    with pytest.raises(UnsupportedError, match=r"'a' has 4 dimensions"):
        open_sealed_resident(sealed(tmp_path, build([], [Tensor("a", 0, (4, 2, 2, 1), data(64, 1))])), KEY,
                             header_sha256=None)
    split = sealed(tmp_path, build([kv("split.count", U32, 3)]), name="split")
    with pytest.raises(UnsupportedError, match="one of 3 parts"):
        open_sealed_resident(split, KEY, header_sha256=None)
    plain = sealed(tmp_path, build([], [Tensor("a", 0, (4, 4), data(64, 1))]), name="plain")
    source = open_sealed_resident(plain, KEY, header_sha256=None)
    with pytest.raises(FormatError, match=r"'a' is of shape \(4, 4\); needed: a vector"):
        source.vector("a")
    source.close()
    with pytest.raises(ModelError, match="was closed"):
        source.weight("a")


def test_inspection_of_a_sealed_file(tmp_path: Path) -> None:
    """An inspection says the same of a sealed model as of its plain file, and how it is sealed."""
    path = sealed(tmp_path, small())
    plain, found = inspection.inspect(tmp_path / "m.gguf"), inspection.inspect(path)
    assert plain.formats == found.formats
    assert plain.architecture == found.architecture == "llama"
    assert None is plain.sealed
    assert found.sealed is not None
    assert (hashlib.sha256(small()).hexdigest(), 7520, 7) == (
        found.sealed.sha256, found.sealed.plain_size, found.sealed.tiles)
    assert list(gguf.parse(small()).tensors) == list(inspection.header(path).tensors)


def _tensors(original: bytes) -> dict[str, str]:
    return {info.name: hashlib.sha256(original[info.offset:info.offset + info.nbytes]).hexdigest()
            for info in gguf.parse(original).tensors.values()}


def _json(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> dict[str, object]:
    capsys.readouterr()
    assert code == main(["model", *map(str, words), "--json"])
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    assert code == answer.get("exit_code", 0)
    return answer


def test_the_printed_block_names_providers_that_boot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The comment beside `provider` names no kind of key that the boot refuses."""
    plain, key = tmp_path / "m.gguf", tmp_path / "key"
    plain.write_bytes(small())
    assert 0 == main(["model", "key", str(key)])
    assert 0 == main(["model", "seal", str(plain), "-o", str(tmp_path / "m.sealed"), "--key", str(key)])
    line = capsys.readouterr().out.partition("provider = ")[2].splitlines()[0]
    named = set(re.findall(r'"([a-z-]+)"', line)) - {"simulated"}
    assert named == {"file", "broker", "tpm"}
    assert named < set(places()["model.key.provider"].enforced.values("model.key.provider"))


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From a new key to a signed, sealed, verified and restored model, with the pins for a policy."""
    key, publisher, plain, secret, other = (
        tmp_path / name for name in ("key", "publisher", "m.gguf", "m.sealed", "other.gguf"))
    plain.write_bytes(small())
    assert 0 == main(["model", "key", str(key)]) == main(["model", "key", str(publisher)])
    made = _json(capsys, "seal", plain, "-o", secret, "--key", key, "--tile-size", 4096)
    assert hashlib.sha256(small()).hexdigest() == made["sha256"]
    pinned = ("--sha256", made["sha256"], "--header-sha256", made["sealed_header_sha256"])
    signed = _json(capsys, "sign", secret, "--key", key, "--signing-key", publisher)
    by = ("--publisher", signed["public_key"], "--signature", signed["signature"])
    assert "authentic" == _json(capsys, "verify", secret, "--key", key, *pinned, *by)["verdict"]
    assert "well formed, not authenticated" == _json(capsys, "verify", secret, *pinned)["verdict"]
    assert "model-key" == _json(capsys, "verify", secret, "--key", publisher, code=1)["code"]
    same = _json(capsys, "verify", secret, "--key", key, "--against", plain)
    assert (3, _tensors(small())) == (same["equal_tensors"], same["tensors"])
    assert _tensors(small()) == _json(capsys, "verify", plain)["tensors"]
    other.write_bytes(small(2))
    assert "model-tensors" == _json(capsys, "verify", secret, "--key", key, "--against", other, code=1)["code"]
    assert "model-key" == _json(capsys, "verify", secret, "--against", plain, code=2)["code"]
    assert "model-signature" == _json(capsys, "verify", plain, *by, code=1)["code"]
    assert "model-pin-mismatch" == _json(capsys, "verify", secret, "--sha256", "00" * 32, code=1)["code"]
    assert made["sealed_header_sha256"] == _json(capsys, "pin", secret)["sealed_header_sha256"]
    assert made["sha256"] == _json(capsys, "unseal", secret, "-o", tmp_path / "back", "--key", key, *pinned)["sha256"]
    assert small() == (tmp_path / "back").read_bytes()
    assert 2 == main(["model", "sign", str(secret), "--signing-key", str(publisher)])
    assert 0 == main(["model", "inspect", str(secret)])
    assert "nothing below is authenticated" in capsys.readouterr().out


@pytest.mark.parametrize("words", [
    ("--sha256", "zz"), ("--header-sha256", "AB" * 32), ("--publisher", "x"), ("--signature", "ed25519:00"),
    ("--publisher", "ed25519:" + "00" * 32, "--signature", "zz")])
def test_what_cannot_be_read_refuses_no_file(words: tuple[str, ...], tmp_path: Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    """Pins, keys and signatures that are none are bad usage, and no verdict on the file."""
    plain = tmp_path / "m.gguf"
    plain.write_bytes(small())
    assert 2 == main(["model", "verify", str(plain), "--json", *words])
    said = capsys.readouterr()
    assert said.err.startswith("error[model-")
    assert {"exit_code", "code", "reason", "hint"} == set(json.loads(said.out))


@pytest.mark.parametrize(("given", "lacking", "nbytes"), [
    ("--signature", "--publisher", 64), ("--publisher", "--signature", 32)])
def test_a_signature_or_a_publisher_alone_refuses_no_file(given: str, lacking: str, nbytes: int, tmp_path: Path,
                                                          capsys: pytest.CaptureFixture[str]) -> None:
    """Bad usage, told before the file is looked at: the option that is missing is named."""
    assert 2 == main(["model", "verify", str(tmp_path / "none"), "--json", given, "ed25519:" + "00" * nbytes])
    said = json.loads(capsys.readouterr().out)
    assert (2, f"{given} needs {lacking}") == (said["exit_code"], said["reason"])


@pytest.mark.parametrize("data", [b"", KEY.hex().encode(), small()[:-64]])
def test_what_is_no_model_is_not_signed(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An empty file, a key, a model that was cut off: no publisher's signature, and the file is named."""
    key, path = tmp_path / "key", tmp_path / "m.gguf"
    main(["model", "key", str(key)])
    path.write_bytes(data)
    capsys.readouterr()
    assert 2 == main(["model", "sign", str(path), "--signing-key", str(key)])
    said = capsys.readouterr()
    assert ("", True) == (said.out, said.err.startswith(f"error[model-malformed]: {path}: byte"))


def test_inputs_that_cannot_be_read_refuse_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A key file that is missing, open to others or no key, and an original that is damaged or sealed, are errors of
    their own: the file, which is as it should be, is not called refused."""
    path, bad, key, open_to_others = sealed(tmp_path, small()), tmp_path / "bad", tmp_path / "key", tmp_path / "open"
    key.write_text(KEY.hex())
    key.chmod(0o600)
    open_to_others.write_text(KEY.hex())
    open_to_others.chmod(0o644)
    bad.write_bytes(small()[:40])
    bad.chmod(0o600)
    for words in (("--key", tmp_path / "none"), ("--key", open_to_others), ("--key", bad),
                  ("--key", key, "--against", bad), ("--key", key, "--against", path)):
        assert 2 == main(["model", "verify", str(path), "--json", *map(str, words)])
        said = capsys.readouterr()
        told = json.loads(said.out)
        assert (2, True, True) == (told["exit_code"], str(words[-1]) in told["reason"], told["hint"] is not None)
        assert (True, True) == (str(words[-1]) in said.err, "\n  hint: " in said.err)
    assert "authentic" == _json(capsys, "verify", path, "--key", key, "--against", tmp_path / "m.gguf")["verdict"]


def test_a_plain_file_does_not_pass_for_a_sealed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a key or a header's pin is given and the file has nothing to check it with, verifying refuses
    and signing signs nothing."""
    key, plain = tmp_path / "key", tmp_path / "m.sealed"
    plain.write_bytes(small())
    main(["model", "key", str(key)])
    digest = hashlib.sha256(small()).hexdigest()
    assert "model-malformed" == _json(capsys, "verify", plain, "--key", key, code=1)["code"]
    assert "model-malformed" == _json(capsys, "verify", plain, "--header-sha256", "00" * 32, code=1)["code"]
    assert "not sealed" == _json(capsys, "verify", plain, "--sha256", digest)["verdict"]
    assert 2 == main(["model", "sign", str(plain), "--key", str(key), "--signing-key", str(key)])
    said = capsys.readouterr()
    assert ("", True) == (said.out, f"{plain} is not sealed; a key was given" in said.err)


def test_a_signature_of_another_model_does_not_vouch_for_a_claim(tmp_path: Path,
                                                                 capsys: pytest.CaptureFixture[str]) -> None:
    """A header that states the SHA-256 of a model whose publisher signed it gets no publisher without key and pin."""
    key, plain = tmp_path / "key", tmp_path / "plain.gguf"
    main(["model", "key", str(key)])
    plain.write_bytes(small())
    signed = _json(capsys, "sign", plain, "--signing-key", key)
    by = ("--publisher", signed["public_key"], "--signature", signed["signature"])
    path = sealed(tmp_path, small(2), key=bytes.fromhex(key.read_text()))
    body = bytearray(path.read_bytes())
    body[80:112] = hashlib.sha256(small()).digest()
    (tmp_path / "other.sealed").write_bytes(body)
    assert "model-signature" == _json(capsys, "verify", tmp_path / "other.sealed", *by, code=1)["code"]
    honest = sealed(tmp_path, small(), key=bytes.fromhex(key.read_text()), name="honest")
    pin = _json(capsys, "pin", honest)["sealed_header_sha256"]
    for more in (("--key", key), ("--header-sha256", pin)):
        assert signed["public_key"] == _json(capsys, "verify", honest, *by, *more)["publisher"]
    both = _json(capsys, "sign", honest, "--key", key, "--signing-key", key)
    assert both["public_key"] == _json(
        capsys, "verify", honest, "--publisher", both["public_key"], "--signature", both["signature"])["publisher"]


def test_the_printed_block_is_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `seal` prints can be pasted into a policy."""
    from tests.support.policies import BASE, valid

    key, plain = tmp_path / "key", tmp_path / "demo.gguf"
    plain.write_bytes(small())
    main(["model", "key", str(key)])
    capsys.readouterr()
    assert 0 == main(["model", "seal", str(plain), "-o", str(tmp_path / "demo.sealed"), "--key", str(key)])
    start, end = BASE.index('model "demo"'), BASE.index("privacy {")
    model = valid(BASE[:start] + capsys.readouterr().out + BASE[end:]).models[0]
    assert hashlib.sha256(small()).hexdigest() == model.sha256
    assert model.key is not None
    assert (str(key), "demo.sealed") == (model.key.path, model.file)
    key.chmod(0o644)
    assert 2 == main(["model", "unseal", str(tmp_path / "demo.sealed"), "-o", str(tmp_path / "x"), "--key", str(key)])
    assert "has mode 0644" in capsys.readouterr().err
