"""Sealings that are interrupted: by kill -9, by a full disk, by someone else. There is a whole file, or none."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from appliance.errors import ModelError, TamperedError
from appliance.sealing import restore, sealing
from appliance.sealing.output import PartialFile
from tests.support import sealed_by_spec as spec
from tests.support.engines import synthetic_model
from tests.support.sealed_models import KEY, OTHER_KEY, TILE_SIZE, parts, sealed, small

SEAL = """
import os, resource, signal, sys
from pathlib import Path
from appliance.errors import ModelError
from appliance.sealing import sealing
source, target, stop, limit = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

def progress(step, done, total):
    if f"{step} {done}" == stop:
        os.kill(os.getpid(), signal.SIGKILL)

try:
    sealing.seal(source, target, bytes(range(32)), tile_size=4096, progress=progress)
except ModelError as error:
    print(error.code, error)
"""


def _run(source: Path, target: Path, stop: str = "", limit: int = 0) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", SEAL, source, target, stop, str(limit)], capture_output=True,
                          text=True, check=False, timeout=600)


@pytest.mark.parametrize(("stop", "kept"), [("hashing 7520", 0), ("sealing 8192", 1), ("sealing 28672", 6)])
def test_kill_9(stop: str, kept: int, tmp_path: Path) -> None:
    """After kill -9 there is no file of the final name; the next run keeps the good tiles, the salt, and ends well."""
    source, target = tmp_path / "m.gguf", tmp_path / "m.sealed"
    source.write_bytes(small())
    assert -9 == _run(source, target, stop).returncode
    assert not target.exists()
    part = (tmp_path / "m.sealed.part").read_bytes()
    made = sealing.seal(source, target, KEY, tile_size=TILE_SIZE)
    assert kept == made.kept_tiles
    whole = target.read_bytes()
    assert part[:4096 * (kept + 1)] == whole[:4096 * (kept + 1)] if kept else part == b""
    assert spec.seal(small(), *parts(small()), KEY, whole[48:80], TILE_SIZE) == whole
    assert not (tmp_path / "m.sealed.part").exists()


REST = """
import os, signal, sys
from pathlib import Path
from appliance.sealing import restore
from appliance.models.sources.sealed_resident import open_sealed_resident
from tests.support.plain import open_tagged
what, source, target, stop = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4])

def progress(done, total):
    if done >= stop * total:
        os.kill(os.getpid(), signal.SIGKILL)

if what == "unseal":
    restore.unseal(source, target, bytes(range(32)), progress=progress)
elif what == "load":
    open_sealed_resident(source, bytes(range(32)), header_sha256=None, progress=progress)
else:
    open_tagged(source, progress=progress)
"""


@pytest.mark.parametrize("stop", [0, 0.5, 1])
@pytest.mark.parametrize("what", ["unseal", "load", "tag"])
def test_kill_9_of_whoever_reads(what: str, stop: float, tmp_path: Path) -> None:
    """Unsealing leaves no file of the final name, and begins anew; loading leaves nothing at all."""
    (tmp_path / "m.gguf").write_bytes(synthetic_model("mixed"))
    path = tmp_path / "m.sealed"
    sealing.seal(tmp_path / "m.gguf", path, KEY, tile_size=TILE_SIZE)
    before, source = path.read_bytes(), tmp_path / "m.gguf" if what == "tag" else path
    done = subprocess.run([sys.executable, "-c", REST, what, source, tmp_path / "back", str(stop)],
                          capture_output=True, check=False, timeout=600)
    assert -9 == done.returncode, done.stderr
    left = {found.name for found in tmp_path.iterdir()}
    assert {"m.gguf", "m.sealed"} | ({"back.part"} if what == "unseal" else set()) == left
    assert before == path.read_bytes()
    restore.unseal(path, tmp_path / "back", KEY)
    assert synthetic_model("mixed") == (tmp_path / "back").read_bytes()
    assert not (tmp_path / "back.part").exists()


def test_a_full_disk(tmp_path: Path) -> None:
    """A write that fails ends with an error, without a file, and the next run goes on from there."""
    source, target = tmp_path / "m.gguf", tmp_path / "m.sealed"
    source.write_bytes(small())
    done = _run(source, target, limit=13000)
    assert done.stdout.startswith(f"model-unwritable {target}.part cannot be written: File too large")
    assert not target.exists()
    assert 2 == sealing.seal(source, target, KEY, tile_size=TILE_SIZE).kept_tiles
    assert restore.verify(target, KEY).authenticated


def _part(folder: Path, tiles: int) -> tuple[Path, bytes]:
    """A part with the first tiles of a sealing, and the whole of it."""
    whole = sealed(folder, small()).read_bytes()
    (folder / "m.sealed").unlink()
    (folder / "m.sealed.part").write_bytes(whole[:4096 * (tiles + 1)])
    return folder / "m.gguf", whole


def test_more_than_the_disk_has_room_for(tmp_path: Path) -> None:
    """Refused before a byte is written, with what is missing and what to do; no part is left behind."""
    with PartialFile(tmp_path / "m", mode=0o600, begins=b"") as part, pytest.raises(
            ModelError, match=r"needs \d+ bytes; the file system lacks \d+\n  hint: make room, or name"):
        part.demand(1 << 60)
    assert [] == list(tmp_path.iterdir())


def test_damage_in_a_part_is_mended(tmp_path: Path) -> None:
    """Tiles count only up to the first that does not authenticate; what follows is written again, bit for bit."""
    source, whole = _part(tmp_path, 5)
    with (tmp_path / "m.sealed.part").open("r+b") as file:
        file.seek(4096 * 3 + 7)
        file.write(bytes(9000))
    assert 2 == sealing.seal(source, tmp_path / "m.sealed", KEY, tile_size=TILE_SIZE).kept_tiles
    assert whole == (tmp_path / "m.sealed").read_bytes()


def test_a_part_of_something_else_is_not_continued(tmp_path: Path) -> None:
    """Another source, key or tile size, or a damaged header: the sealing starts over, with a salt of its own."""
    source, whole = _part(tmp_path, 3)
    cases: list[tuple[bytes, bytes, int, bytes]] = [
        (small(9), KEY, TILE_SIZE, whole), (small(), OTHER_KEY, TILE_SIZE, whole), (small(), KEY, 8192, whole),
        (small(), KEY, TILE_SIZE, whole[:200] + b"x" + whole[201:]), (small(), KEY, TILE_SIZE, whole[:100])]
    for gguf, key, tile_size, part in cases:
        source.write_bytes(gguf)
        (tmp_path / "m.sealed.part").write_bytes(part)
        made = sealing.seal(source, tmp_path / "m.sealed", key, tile_size=tile_size)
        assert 0 == made.kept_tiles
        body = (tmp_path / "m.sealed").read_bytes()
        assert whole[48:80] != body[48:80]
        assert spec.seal(gguf, *parts(gguf), key, body[48:80], tile_size) == body
        (tmp_path / "m.sealed").unlink()


def test_files_of_others_are_left_alone(tmp_path: Path) -> None:
    """An existing file, a part that is none, and one that another process writes are refused and stay as they are."""
    source, target, part = tmp_path / "m.gguf", tmp_path / "m.sealed", tmp_path / "m.sealed.part"
    source.write_bytes(small())
    target.write_bytes(b"precious")
    with pytest.raises(ModelError, match=r"m.sealed exists"):
        sealing.seal(source, target, KEY)
    assert b"precious" == target.read_bytes()
    target.unlink()
    part.write_bytes(b"precious")
    with pytest.raises(ModelError, match="is not what this command left"):
        sealing.seal(source, target, KEY)
    assert b"precious" == part.read_bytes()
    part.unlink()
    with part.open("wb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="is being written by another process\n  hint: wait for it"):
            sealing.seal(source, target, KEY)
    part.unlink()
    part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ModelError, match="cannot be opened"):
        sealing.seal(source, target, KEY)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(("output", "why"), [
    (".", r"^\. exists"), ("/", "^/ exists"), ("link", "link exists"),
    ("x" * 300, "cannot be opened: File name too long\n  hint: choose a shorter name"),
    ("none/m", "cannot be opened: No such file or directory\n  hint: name a file in a folder"),
    ("fifo", "fifo.part is not a regular file"), ("folder", "cannot be opened: Is a directory")])
def test_outputs_that_cannot_be(output: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that no file can have, or one that something else has, is refused at once, in words, and left alone."""
    source = tmp_path / "m.gguf"
    source.write_bytes(small())
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to("nowhere")
    os.mkfifo("fifo.part")
    Path("folder.part").mkdir()
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ModelError) as caught:
        sealing.seal(source, Path(output), KEY)
    assert re.search(why, str(caught.value))
    assert before == sorted(tmp_path.iterdir())


def test_a_part_that_is_finished_while_another_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that gets its final name between opening and locking by another unsealing stays as it was finished."""
    sealed(tmp_path, small())
    lock = fcntl.flock
    (tmp_path / "back.part").touch()

    def late(descriptor: int, operation: int) -> None:
        (tmp_path / "back.part").write_bytes(small(2))
        (tmp_path / "back.part").rename(tmp_path / "back")
        lock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(ModelError, match=r"back.part was finished or removed by another process"):
        restore.unseal(tmp_path / "m.sealed", tmp_path / "back", KEY)
    assert small(2) == (tmp_path / "back").read_bytes()


def test_a_finished_file_that_is_still_named_a_part_is_left_alone(tmp_path: Path) -> None:
    """After a power cut between the final name and the end of the part's, the file that has both is not written."""
    path = sealed(tmp_path, small())
    whole = path.read_bytes()
    (tmp_path / "m.sealed.part").hardlink_to(path)
    path.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match=r"m.sealed.part is another file, too: it has 2 names"):
        sealing.seal(tmp_path / "m.gguf", path, OTHER_KEY)
    assert whole == (tmp_path / "moved").read_bytes()


def test_a_file_that_comes_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """A file of the final name that appears while tiles are written stays."""
    source, target = tmp_path / "m.gguf", tmp_path / "m.sealed"
    source.write_bytes(small())

    def appear(step: str, done: int, total: int) -> None:
        if step == "sealing" and done == total:
            target.write_bytes(b"precious")

    with pytest.raises(ModelError, match="cannot be completed: File exists"):
        sealing.seal(source, target, KEY, progress=appear)
    assert b"precious" == target.read_bytes()


def test_unsealing_leaves_no_plaintext_of_a_spoiled_file(tmp_path: Path) -> None:
    """A tile that does not authenticate leaves neither a file nor a part with plaintext."""
    path = sealed(tmp_path, small())
    body = bytearray(path.read_bytes())
    body[-5000] ^= 1
    path.write_bytes(body)
    with pytest.raises(TamperedError):
        restore.unseal(path, tmp_path / "back", KEY)
    assert ["m.gguf", "m.sealed"] == sorted(found.name for found in tmp_path.iterdir())


def test_plaintext_is_not_written_into_a_file_that_was_there(tmp_path: Path) -> None:
    """A part that others may read, or have open since, gets no plaintext: what is unsealed is a file of its own."""
    path, part = sealed(tmp_path, small()), tmp_path / "back.part"
    part.write_bytes(b"GGUF")
    part.chmod(0o666)
    with part.open("rb") as reader:
        restore.unseal(path, tmp_path / "back", KEY)
        assert b"GGUF" == reader.read()
    assert small() == (tmp_path / "back").read_bytes()
    assert 0o600 == (tmp_path / "back").stat().st_mode & 0o777


def test_another_models_part_is_not_unsealed_over(tmp_path: Path) -> None:
    """A part of another GGUF file, as a download leaves it, stays; one with this model's first bytes does not."""
    path, part = sealed(tmp_path, small()), tmp_path / "back.part"
    part.write_bytes(small(2))
    with pytest.raises(ModelError, match=r"back.part is not what this command left"):
        restore.unseal(path, tmp_path / "back", KEY)
    assert small(2) == part.read_bytes()
    part.write_bytes(small()[:5000])
    restore.unseal(path, tmp_path / "back", KEY)
    assert small() == (tmp_path / "back").read_bytes()


def test_a_resumed_sealing_hashes_the_source_again(tmp_path: Path) -> None:
    """A source that changed since the interruption gets another salt: no nonce serves two plaintexts."""
    source, whole = _part(tmp_path, 3)
    changed = bytearray(small())
    changed[-100] ^= 1
    source.write_bytes(changed)
    made = sealing.seal(source, tmp_path / "m.sealed", KEY, tile_size=TILE_SIZE)
    assert 0 == made.kept_tiles
    assert whole[48:80] != (tmp_path / "m.sealed").read_bytes()[48:80]


def test_a_source_that_is_refused_leaves_no_part(tmp_path: Path) -> None:
    """Where nothing was written, nothing stays, and the next file of that name can be sealed."""
    (tmp_path / "m").write_bytes(b"no model")
    for _ in range(2):
        with pytest.raises(ModelError, match=f"{tmp_path / 'm'}: byte 0: this is a text"):
            sealing.seal(tmp_path / "m", tmp_path / "m.sealed", KEY)
        assert ["m"] == [path.name for path in tmp_path.iterdir()]
