"""`appliance image export --cloud`: the form that each cloud takes, judged by other readers, and what it demands."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
import tarfile
import zlib
from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.codec.canonical import canonical
from appliance.imaging import export
from appliance.imaging.clouds import CLOUDS
from appliance.imaging.recipe import recipe
from tests.support import fake_image
from tests.support.require import absent

MIB = 1 << 20


def image(folder: Path, *clouds: str, disk: bytes | None = None) -> Path:
    """An image of whole MiB with a partition table, built for these clouds."""
    out = fake_image.write(folder / "out")
    (out / "disk.raw").write_bytes((disk or fake_image.disk(b"program")).ljust(2 * MIB, b"\0"))
    fake_image.manifest(out)
    document = json.loads((out / "image.json").read_bytes())
    (out / "image.json").write_bytes(canonical({**document, "clouds": list(clouds)}))
    return out


def run(*words: object) -> int:
    """Exit code of `appliance image export`."""
    return main(["image", "export", *map(str, words)])


@pytest.mark.parametrize("cloud", CLOUDS)
def test_the_form_and_the_clouds_own_commands(cloud: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    """The file is what `tar`, `qemu-img` and the specification say, and the commands name it."""
    monkeypatch.setattr(export, "GIB", 4 * MIB)  # whole GiB take their time
    out, made = image(tmp_path, cloud), tmp_path / "made"
    assert 0 == run(out, "--cloud", cloud, "-o", made, "--json")
    told = json.loads(capsys.readouterr().out)
    assert (made.stat().st_size, cloud) == (told["size"], told["cloud"])
    assert any(str(made) in each for each in told["commands"])
    disk = (out / "disk.raw").read_bytes()
    if cloud == "gce":
        with tarfile.open(made) as archive:
            (member,) = archive.getmembers()
            assert ("disk.raw", 4 * MIB) == (member.name, member.size)
    elif cloud == "ec2":
        assert disk == made.read_bytes()
    else:
        assert (disk, b"conectix") == (made.read_bytes()[:-512], made.read_bytes()[-512:-504])
        assert told["lacks"]  # VMBus, behind the gate


def test_qemu_img_reads_azures_disk(tmp_path: Path) -> None:
    """A fixed VHD of the disk's own size."""
    if shutil.which("qemu-img") is None:
        absent("qemu-img: apt-get install qemu-utils")
    assert 0 == run(image(tmp_path, "azure"), "--cloud", "azure", "-o", tmp_path / "made")
    done = subprocess.run(["qemu-img", "info", "--output=json", "-f", "vpc", tmp_path / "made"], capture_output=True,
                          check=True)
    assert 2 * MIB == json.loads(done.stdout)["virtual-size"]


def test_an_image_without_the_clouds_drivers_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It would find no network card there; the hint says how to build one that does."""
    assert 2 == run(image(tmp_path, "ec2"), "--cloud", "gce", "-o", tmp_path / "made", "--json")
    told = json.loads(capsys.readouterr().out)
    assert ("image-cloud", True) == (told["code"], "--cloud gce" in told["hint"])
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize(("name", "says"), [
    ("moved", "begins at sector 2047"), ("other", "no EFI system partition"), ("cut", "ends behind the disk")])
def test_a_table_that_no_cloud_takes(name: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A partition that is not at a whole MiB, of another kind, or that goes on behind the disk."""
    disk = bytearray(fake_image.disk(b"program"))
    entry = 2 * 512
    if name == "moved":
        struct.pack_into("<Q", disk, entry + 32, 2047)
    elif name == "other":
        disk[entry] ^= 1
    else:
        struct.pack_into("<Q", disk, entry + 40, 1 << 30)
    _seal(disk)
    assert 2 == run(image(tmp_path, "ec2", disk=bytes(disk)), "--cloud", "ec2", "-o", tmp_path / "made")
    assert says in capsys.readouterr().err


def _seal(disk: bytearray) -> None:
    """Right checksums for a table that was changed (UEFI 2.10, section 5.3)."""
    at, count, size = struct.unpack_from("<QII", disk, 512 + 72)
    struct.pack_into("<I", disk, 512 + 88, zlib.crc32(disk[at * 512:at * 512 + count * size]))
    struct.pack_into("<I", disk, 512 + 16, 0)
    struct.pack_into("<I", disk, 512 + 16, zlib.crc32(disk[512:512 + 92]))


def test_each_cloud_has_drivers_in_the_recipe() -> None:
    """A row without modules would build images that reach nobody."""
    assert set(CLOUDS) == set(recipe.load().modules_clouds)
