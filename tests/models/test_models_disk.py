"""Reading, pinning and inspecting model files, from disks that lie and as the command line shows it."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from appliance.boot.planning import inspection
from appliance.cli.main import main
from appliance.errors import FormatError, ModelError, PinError, TamperedError
from appliance.models.file import pins
from appliance.models.file.disk import RandomFile
from appliance.sealing import digests
from tests.support.ggufs import F32, STRING, U32, Tensor, build, kv, kv_array


@pytest.mark.parametrize("size", [0, 1, 4 << 20, (9 << 20) + 5])
def test_sha256_of_a_file(tmp_path: Path, size: int) -> None:
    """The digest and size are those of the whole file, and progress ends at its size."""
    path, seen = tmp_path / "m", []
    data = os.urandom(size)
    path.write_bytes(data)
    found, read = digests.hashes_of(path, lambda done, total: seen.append((done, total)))
    assert (hashlib.sha256(data).digest(), size, ()) == (found.pin, read, found.shards)
    assert [(size, size)] == seen[-1:] or size == 0


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A folder, a FIFO (without waiting for a writer), a socket, a device and a missing file are refused by kind."""
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        refusals = {tmp_path: "is a folder", tmp_path / "fifo": "is a FIFO", tmp_path / "s": "cannot be opened",
                    Path("/dev/null"): "is a character device", tmp_path / "none": "No such file"}
        for path, message in refusals.items():
            with pytest.raises(ModelError, match=message):
                digests.hashes_of(path)


def test_a_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    """Links are followed: what counts is the bytes."""
    (tmp_path / "m").write_bytes(b"abc")
    (tmp_path / "link").symlink_to(tmp_path / "m")
    assert hashlib.sha256(b"abc").digest() == digests.hashes_of(tmp_path / "link")[0].pin


def test_a_file_that_shrinks_is_refused(tmp_path: Path) -> None:
    """A file cut while it is read is refused with the place where it ended."""
    path = tmp_path / "m"
    path.write_bytes(bytes(100))
    with RandomFile(path) as file:
        path.write_bytes(bytes(40))
        with pytest.raises(ModelError, match="ends at byte 40; its size was 100 when it was opened") as caught:
            file.read_into(memoryview(bytearray(100)), 0)
    assert "model-tampered" == caught.value.code


def test_a_file_that_grows_is_refused(tmp_path: Path) -> None:
    """A file that goes on after its size at opening is refused."""
    path = tmp_path / "m"
    path.write_bytes(bytes(100))
    with RandomFile(path) as file:
        file.read_into(memoryview(bytearray(100)), 0)
        with path.open("ab") as more:
            more.write(b"x")
        with pytest.raises(ModelError, match="goes on after byte 100") as caught:
            file.expect_end()
    assert "model-malformed" == caught.value.code


def test_read_errors_are_named() -> None:
    """What the kernel says when a read fails is passed on, with the place."""
    with pytest.raises(ModelError, match="/proc/self/mem cannot be read at byte 0: Input/output error"):
        digests.hashes_of(Path("/proc/self/mem"))
    with RandomFile(Path("/proc/self/mem")) as file, pytest.raises(ModelError, match="at byte 0") as caught:
        file.read_into(memoryview(bytearray(8)), 0)
    assert "model-unreadable" == caught.value.code


def test_a_file_opened_again(tmp_path: Path) -> None:
    """The second descriptor leads to the same bytes, whatever has the name by now; errors tell that name."""
    path = tmp_path / "f"
    path.write_bytes(b"first" * 5000)
    with closing(RandomFile(path)) as file:
        path.unlink()
        path.write_bytes(b"other" * 5000)
        with closing(file.again()) as again:
            found = bytearray(25000)
            again.read_into(memoryview(found), 0)
            assert (b"first" * 5000, path, True) == (bytes(found), again.path, again.descriptor != file.descriptor)
            with pytest.raises(TamperedError, match=f"{path} ends at byte 25000"):
                again.read_into(memoryview(found), 25000)


def test_pins() -> None:
    """A pin is 64 lower-case digits; another digest is refused with both."""
    assert bytes(31) + b"\x1f" == digests.parse("0" * 62 + "1f")
    for text in ("", "0" * 63, "0" * 65, "F" * 64, "0" * 64 + "\n", "g" * 64):
        with pytest.raises(PinError, match="allowed: 64 digits"):
            digests.parse(text)
    pins.check(Path("m"), bytes(32), bytes(32))
    with pytest.raises(PinError, match=f"m has SHA-256 {'01' * 32}; the policy pins {'00' * 32}"):
        pins.check(Path("m"), bytes(32), b"\1" * 32)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small model file with most of what an inspection reports."""
    keys = [kv("general.architecture", STRING, "llama"), kv("general.name", STRING, "a\x1b[31m"),
            kv("general.license", STRING, "mit"), kv("llama.context_length", U32, 99), kv("llama.block_count", U32, 2),
            kv("llama.rope.freq_base", F32, 1e4), kv_array("tokenizer.ggml.tokens", STRING, ["a", "b", "c"]),
            kv("tokenizer.ggml.model", STRING, "gpt2"), kv("tokenizer.chat_template", STRING, "{{ x }}")]
    path = tmp_path / "tiny ${x}.gguf"
    path.write_bytes(build(keys, [Tensor("a", 0, (4, 2), bytes(32)), Tensor("b", 2, (32, 9), bytes(162))]))
    return path


def test_inspection(model: Path) -> None:
    """An inspection tells architecture, sizes, formats by bytes, tokenizer, template and licence."""
    found = inspection.inspect(model)
    assert ("llama", 99, 2, None, 3, True, {"general.license": "mit"}) == (
        found.architecture, found.context_length, found.blocks, found.heads, found.vocabulary, found.chat_template,
        found.licence)
    assert [("Q4_0", 1, 288, 162), ("F32", 1, 8, 32)] == [
        (use.name, use.tensors, use.weights, use.nbytes) for use in found.formats]
    assert (296, model.stat().st_size) == (found.weights, found.size)


def test_inspection_reads_long_headers_in_steps(tmp_path: Path) -> None:
    """A header longer than the first read is read on, and a broken one of that length is refused."""
    path = tmp_path / "m"
    data = build([kv_array(f"a{i}", STRING, ["x" * 1000] * 1500) for i in range(20)])
    path.write_bytes(data)
    assert len(data) > 20 << 20
    assert 20 == inspection.inspect(path).keys
    path.write_bytes(data[:-1])
    with pytest.raises(FormatError, match="past the end"):
        inspection.inspect(path)


def test_what_is_no_model_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A sparse file of 8 GiB is refused within 3 GiB of address space where only the header is looked at first."""
    path = tmp_path / "m"
    with path.open("wb") as file:
        file.truncate(8 << 30)
    for action in ("inspect", "verify"):
        done = subprocess.run([sys.executable, "-m", "appliance", "model", action, path], capture_output=True,
                              text=True, check=False, timeout=600,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30)))
        assert done.stderr.startswith(f"error[model-malformed]: {path}: byte 0: the magic is"), done.stderr


def test_model_inspect_prints_safely(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The report is printed with control characters of the file made visible, and in full as JSON."""
    assert 0 == main(["model", "inspect", str(model)])
    text = capsys.readouterr().out
    assert "\x1b" not in text
    assert r"'a\x1b[31m'" in text
    assert 0 == main(["model", "inspect", str(model), "--json"])
    assert "a\x1b[31m" == json.loads(capsys.readouterr().out)["name"]


def test_an_error_about_a_model_prints_safely(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A text in the place of the alignment neither drives the terminal nor fills it, and writes no line of its own."""
    for text in ("\x1b]0;x\x07", "1\nerror[x]: y", "A" * 100_000):
        (tmp_path / "m").write_bytes(build([kv("general.alignment", STRING, text)]))
        assert 2 == main(["model", "inspect", str(tmp_path / "m")])
        first, *rest = capsys.readouterr().err.splitlines()
        assert (True, 2) == (first.isprintable(), len(rest)), first  # a hint, and where more is said
        assert len(first) < 200 + len(str(tmp_path))


def test_model_pin_prints_a_block(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The pin is printed as a block of the policy language, with interpolation escaped, and as JSON."""
    digest = hashlib.sha256(model.read_bytes()).hexdigest()
    assert 0 == main(["model", "pin", str(model)])
    assert (f'model "tiny $${{x}}" {{\n  file   = "tiny $${{x}}.gguf"\n  sha256 = "{digest}"\n}}\n'
            == capsys.readouterr().out)
    assert 0 == main(["model", "pin", "--json", str(model)])
    assert digest == json.loads(capsys.readouterr().out)["sha256"]


def test_model_errors_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that cannot be read or parsed ends with exit code 2 and one error, no traceback."""
    (tmp_path / "bad").write_bytes(b"GGUFxxxx")
    for arguments in (["inspect", str(tmp_path / "bad")], ["pin", str(tmp_path / "none")]):
        assert 2 == main(["model", *arguments])
        assert "error[model-" in capsys.readouterr().err
