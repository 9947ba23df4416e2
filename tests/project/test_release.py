"""`make release`: its files are what `contents.json` says, openssl takes the signature, and the log has the entry.

Leftovers, rehearsals, other versions and kernels of other sources get into no release.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance import __version__
from appliance.attestation.case import measurements
from appliance.errors import ImageError
from appliance.signed import releases
from release import __main__ as command
from release import parts, problems
from tests.support import fake_appliance
from tests.support.packs import BUILDER
from tests.support.require import absent

ROOT = Path(__file__).parents[2]


def _made(out: Path, *more: str | Path) -> subprocess.CompletedProcess[str]:
    key = out.parent / "releaser.pem"
    key.write_bytes(BUILDER.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return subprocess.run([sys.executable, "-m", "release", out, "--key", key, *more], cwd=ROOT, capture_output=True,
                          text=True, check=False)


def _image(folder: Path, version: str = __version__) -> Path:
    """Signed measurements of an image of a version, in a file."""
    path = folder / "measurements.json"
    measured = fake_appliance.measured()
    data = measured.model_copy(update={"build": measured.build.model_copy(update={"version": version})}).to_json()
    path.write_bytes(data)
    (folder / "measurements.json.sig").write_bytes(measurements.sign(data, BUILDER))
    return path


def _logged(folder: Path) -> set[str]:
    """The measurements in a release log, as verifiers read it."""
    found = releases.read((folder / "log.jsonl").read_bytes(), (folder / "checkpoint").read_bytes(),
                          BUILDER.public_key().public_bytes_raw())
    return {each if isinstance(each, str) else each.hex() for each in found.measurements}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rehearsal, with an image's measurements."""
    if not (ROOT / ".git").exists():
        absent("the repository's history")
    folder = tmp_path_factory.mktemp("release")
    done = _made(folder / "out", "--rehearse", "--measurements", _image(folder))
    assert 0 == done.returncode, done.stderr
    return folder / "out"


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_the_contents_are_the_files(made: Path) -> None:
    """Wheel, kernels and recipe by their digests; a rehearsal says what it lacks."""
    told = json.loads((made / "contents.json").read_text())
    assert ("appliance/release/v1", __version__) == (told["format"], told["version"])
    assert {f"appliance-{__version__}-py3-none-any.whl"} == told["wheels"].keys()
    assert told["wheels"] == {path.name: _sha256(path) for path in made.glob("*.whl")}
    assert told["recipe"] == {name: _sha256(ROOT / name) for name in told["recipe"]}
    assert {"image/packages.lock", "image/wheels.lock", "image/init/init.c", "requirements-image.lock"} <= set(
        told["recipe"])
    files = {name: digest for each in told["kernels"].values() for name, digest in each.items()}
    assert files == {path.name: _sha256(path) for path in (made / "kernels").glob("*")}
    assert (list(problems.of(ROOT)) or ["asked for by --rehearse"]) == told["rehearsal"]


def test_openssl_takes_the_signature(made: Path) -> None:
    """By the public key beside it, and not of other contents."""
    words = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", made / "release.pub", "-sigfile",
             made / "contents.json.sig", "-in"]
    assert 0 == subprocess.run([*words, made / "contents.json"], capture_output=True, check=False).returncode
    (made.parent / "other").write_bytes((made / "contents.json").read_bytes() + b" ")
    assert 0 != subprocess.run([*words, made.parent / "other"], capture_output=True, check=False).returncode


def test_a_rehearsal_writes_to_no_log(made: Path) -> None:
    """Its image is named by its digest, as nobody's release."""
    assert not (made / "releases").exists()
    digest = hashlib.sha384((made.parent / "measurements.json").read_bytes()).hexdigest()
    assert digest == json.loads((made / "contents.json").read_text())["measurements_sha384"]


def test_the_release_log_has_the_image(made: Path, tmp_path: Path) -> None:
    """As verifiers read it, behind what an earlier log says. That log stays as it was."""
    image = _image(tmp_path)
    arguments = argparse.Namespace(out=tmp_path / "out", key=made.parent / "releaser.pem", measurements=image, log=None)
    command._write(arguments, [])
    digest = hashlib.sha384(image.read_bytes()).hexdigest()
    told, log = json.loads((tmp_path / "out/contents.json").read_text()), tmp_path / "out/releases"
    assert (digest, []) == (told["measurements_sha384"], told["rehearsal"])
    assert {digest} == _logged(log)
    before = (log / "log.jsonl").read_bytes()
    command._append(tmp_path / "next", log, "ab" * 48, BUILDER)
    assert {digest, "ab" * 48} == _logged(tmp_path / "next")
    assert before == (log / "log.jsonl").read_bytes()


def test_a_folder_with_leftovers_is_refused(made: Path) -> None:
    """A wheel or a log of another run would be signed with it."""
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    arguments = argparse.Namespace(out=made, key=made.parent / "releaser.pem", measurements=None, log=None)
    with pytest.raises(ImageError, match="is not empty"):
        command._write(arguments, [])
    assert before == {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}


def test_an_image_of_another_version_is_refused(tmp_path: Path) -> None:
    """Though the releaser signed its measurements."""
    assert command._image(_image(tmp_path), BUILDER)
    with pytest.raises(ImageError, match=r"version 0\.0\.9, of which"):
        command._image(_image(tmp_path, "0.0.9"), BUILDER)


def test_kernels_of_other_sources_are_no_release(tmp_path: Path) -> None:
    """The loader's own check, and no table of a target that nobody knows."""
    folder = tmp_path / "appliance/kernels/prebuilt"
    folder.mkdir(parents=True)
    assert [] == list(parts.stale(tmp_path))
    told = {"schema": 1, "target": "portable", "machine": "x86_64", "llvm_cpu": "x86-64", "llvm_features": "",
            "sources": {"code/sums.py": "00" * 32}, "compilers": {}}
    for name in ("portable", "z80"):
        (folder / f"kernels-{name}.json").write_text(json.dumps(told))
        (folder / f"kernels-{name}.so").write_bytes(b"ELF")
    other, unknown = parts.stale(tmp_path)
    assert "built from other sources (code/sums.py): build them" in other
    assert "kernels-z80.json: no target has this name" in unknown


def test_a_log_without_an_image_is_refused(tmp_path: Path) -> None:
    """Nothing would be appended to it."""
    done = _made(tmp_path / "out", "--rehearse", "--log", tmp_path)
    assert (2, False) == (done.returncode, (tmp_path / "out").exists())
    assert "--log goes with --measurements" in done.stderr


def test_the_wheel_is_the_same_again(made: Path, tmp_path: Path) -> None:
    """Byte for byte, of the same commit."""
    assert 0 == _made(tmp_path / "out", "--rehearse").returncode
    [first], [second] = made.glob("*.whl"), (tmp_path / "out").glob("*.whl")
    assert _sha256(first) == _sha256(second)


def test_a_tree_that_cannot_be_released_is_refused(tmp_path: Path) -> None:
    """With each reason, and nothing is written."""
    if not list(problems.of(ROOT)):
        return  # the commit of a release
    done = _made(tmp_path / "out")
    assert (1, False) == (done.returncode, (tmp_path / "out").exists())
    assert done.stderr.count("error: ") == len(list(problems.of(ROOT)))
    assert "--rehearse" in done.stderr


def test_other_measurements_are_refused(made: Path, tmp_path: Path) -> None:
    """Those whose signature is another's."""
    (tmp_path / "m.json").write_bytes(fake_appliance.measured(launch=(b"\x01" * 48,)).to_json())
    (tmp_path / "m.json.sig").write_bytes((made.parent / "measurements.json.sig").read_bytes())
    done = _made(tmp_path / "out", "--rehearse", "--measurements", tmp_path / "m.json")
    assert 2 == done.returncode
    assert re.match(r"rehearsal: .*\n|error\[", done.stderr)
    assert "error[" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("text", "count"), [
    (f"## Unreleased\n\n## {__version__}, 2026-11-29\n", 0), (f"## {__version__}, 2026-11-29\n- x\n", 0),
    ("## Unreleased\n- x\n", 2), (f"## Unreleased\n- x\n## {__version__}, 2026-11-29\n", 1), ("", 1)])
def test_the_changelog_is_ready(text: str, count: int) -> None:
    """A heading with a date, and nothing that waits."""
    assert count == len(list(problems._changelog(text)))


def test_schema_2_is_frozen_by_its_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.2.0 is not made while schema 2 is open."""
    monkeypatch.setattr(problems, "__version__", "0.2.0")
    said = [each for each in problems.of(ROOT) if each.startswith("schema")]
    assert bool(problems.OPEN) == bool(said)
