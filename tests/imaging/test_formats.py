"""Cloud formats: qemu-img reads back the disk that went in, and the bytes are always the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
import shutil
import struct
import subprocess
import tarfile
from pathlib import Path

import pytest

from appliance.errors import ImageError
from appliance.imaging import export as formats
from appliance.imaging.export import FORMATS, MIB, Format
from tests.support import fake_image
from tests.support.require import absent


def _image(folder: Path, size: int = 3 * MIB) -> Path:
    """An image whose disk has content, holes, and content at its very end."""
    out = fake_image.write(folder / "out")
    rng = random.Random(size)
    disk = bytearray(size)
    for at in (0, 70_000, size // 2, size - 600):
        disk[at:at + 600] = rng.randbytes(600)
    (out / "disk.raw").write_bytes(disk)
    fake_image.manifest(out)
    return out


def _qemu_img(*words: object) -> str:
    if shutil.which("qemu-img") is None:
        absent("qemu-img: apt-get install qemu-utils")
    done = subprocess.run(["qemu-img", *map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("kind", "theirs", "size"), [
    ("raw", "raw", 3 * MIB), ("vhd", "vpc", MIB), ("vhd", "vpc", 3 * MIB), ("qcow2", "qcow2", MIB),
    ("qcow2", "qcow2", 3 * MIB),
    pytest.param("qcow2", "qcow2", 520 * MIB, marks=pytest.mark.slow)])  # takes two L2 tables
def test_qemu_img_finds_the_same_disk(tmp_path: Path, kind: Format, theirs: str, size: int) -> None:
    """Same virtual size and content by qemu-img compare; qcow2 without error or leak by qemu-img check."""
    out = _image(tmp_path, size)
    written = formats.export(out, kind, tmp_path / "disk")
    assert (tmp_path / "disk").stat().st_size == written
    _qemu_img("compare", "-f", "raw", "-F", theirs, out / "disk.raw", tmp_path / "disk")
    told = json.loads(_qemu_img("info", "--output=json", "-f", theirs, tmp_path / "disk"))
    assert size == told["virtual-size"]
    if kind == "qcow2":
        checked = json.loads(_qemu_img("check", "--output=json", "-f", "qcow2", tmp_path / "disk"))
        assert (0, 0, 0) == (checked.get("leaks", 0), checked.get("corruptions", 0), checked["check-errors"])
        assert written < size // 2 or size == MIB


def test_a_vhd_is_what_azure_asks_for(tmp_path: Path) -> None:
    """Fixed, whole MiB and a footer of 512 bytes whose checksum holds (Microsoft's specification)."""
    out = _image(tmp_path)
    assert 3 * MIB + 512 == formats.export(out, "vhd", tmp_path / "disk.vhd")
    footer = (tmp_path / "disk.vhd").read_bytes()[-512:]
    assert (b"conectix", 2, 3 * MIB) == (footer[:8], *struct.unpack_from(">I", footer, 60),
                                         *struct.unpack_from(">Q", footer, 48))
    checksum = int.from_bytes(footer[64:68], "big")
    assert checksum == ~(sum(footer) - sum(footer[64:68])) & 0xFFFFFFFF


@pytest.mark.slow
def test_a_tar_is_what_google_cloud_asks_for(tmp_path: Path) -> None:
    """GNU tar in gzip with one member disk.raw of whole GiB, which is the disk and zeros."""
    out = _image(tmp_path)
    formats.export(out, "tar", tmp_path / "disk.tar.gz")
    with tarfile.open(tmp_path / "disk.tar.gz") as archive:
        (member,) = archive.getmembers()
        content = archive.extractfile(member)
        assert content is not None
        assert ("disk.raw", 1 << 30, 0, 1760000000) == (member.name, member.size, member.uid, member.mtime)
        assert (out / "disk.raw").read_bytes() == content.read(3 * MIB)
        assert not any(content.read(MIB))
    with gzip.open(tmp_path / "disk.tar.gz") as packed:
        assert b"ustar  \0" == packed.read(512)[257:265]


@pytest.mark.parametrize("kind", FORMATS)
def test_the_bytes_are_always_the_same(tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice from two folders; and nothing else is left behind."""
    monkeypatch.setattr(formats, "GIB", 4 * MIB)  # whole GiB take their time
    digests = []
    for name in ("a", "b"):
        formats.export(_image(tmp_path / name), kind, tmp_path / name / "disk")
        digests.append(hashlib.sha256((tmp_path / name / "disk").read_bytes()).hexdigest())
        assert ["disk", "out"] == sorted(path.name for path in (tmp_path / name).iterdir())
    assert digests[0] == digests[1]


@pytest.mark.parametrize("kind", FORMATS)
def test_another_disk_is_not_exported(tmp_path: Path, kind: Format) -> None:
    """A disk that was changed since the build, or that is no whole MiB: refused, and nothing written."""
    out = _image(tmp_path)
    with (out / "disk.raw").open("ab") as file:
        file.write(b"x")
    for _ in range(2):
        with pytest.raises(ImageError) as caught:
            formats.export(out, kind, tmp_path / "disk")
        assert "image-file" == caught.value.code
        fake_image.manifest(out)
    assert ["out"] == [path.name for path in tmp_path.iterdir()]
    with pytest.raises(ImageError, match="No such file"):
        formats.export(_image(tmp_path / "x"), kind, tmp_path / "nowhere" / "disk")
