"""Formats that the image builder writes itself, judged by other implementations."""

from __future__ import annotations

import hashlib
import io
import os
import re
import struct
import subprocess
import uuid
import zipfile
from pathlib import Path

import pytest

from appliance.errors import ImageError
from appliance.imaging.disk import cpio, fat, gpt, uki, verity
from appliance.imaging.disk.tree import Tree, matches
from appliance.imaging.packages import deb, lockfile, mirrors, wheels
from appliance.imaging.packages.downloads import Downloads
from appliance.imaging.recipe import recipe
from tests.support.images import ROOT, need


@pytest.mark.parametrize("blocks", [1, 2, 127, 128, 129, 16385])
def test_veritysetup_accepts_the_hash_tree(tmp_path: Path, blocks: int) -> None:
    """One level, several, and the edges of a hash block: cryptsetup verifies data against our root hash."""
    need("veritysetup")
    data, salt = os.urandom(16) * (blocks * verity.BLOCK // 16), os.urandom(32)
    sealed = verity.build(io.BytesIO(data), len(data), salt, uuid.uuid4().bytes)
    image = tmp_path / "image"
    image.write_bytes(data + sealed.tree)
    command = ["veritysetup", "verify", str(image), str(image), sealed.root_hash, f"--hash-offset={sealed.hash_offset}"]
    assert subprocess.run(command, capture_output=True).returncode == 0
    image.write_bytes(b"\x00" + data[1:] + sealed.tree if data[0] else b"\x01" + data[1:] + sealed.tree)
    assert subprocess.run(command, capture_output=True).returncode != 0


def test_verity_wants_whole_blocks() -> None:
    """Data that is not a whole number of blocks has no tree."""
    for size in (0, 1, 4095, 4097):
        with pytest.raises(ValueError, match="whole number of blocks"):
            verity.build(io.BytesIO(bytes(size)), size, bytes(32), bytes(16))


def test_cpio_reads_the_initrd_archive(tmp_path: Path) -> None:
    """GNU cpio unpacks what we pack."""
    need("cpio")
    packed = cpio.pack([cpio.Member("folder"), cpio.Member("folder/a", b"abc"),
                        cpio.Member("init", b"program!", executable=True)])
    subprocess.run(["cpio", "-i", "--quiet"], input=packed, cwd=tmp_path, check=True)
    assert (tmp_path / "folder/a").read_bytes() == b"abc"
    assert (tmp_path / "init").read_bytes() == b"program!"
    assert os.access(tmp_path / "init", os.X_OK)
    assert not os.access(tmp_path / "folder/a", os.X_OK)
    assert len(packed) % 512 == 0


@pytest.mark.parametrize("size", [1, 4096, 4097, 12_000_000])
def test_mtools_reads_the_system_partition(tmp_path: Path, size: int) -> None:
    """The file comes back by its path, and the file system checker finds nothing."""
    need("mcopy", "fsck.vfat")
    program = os.urandom(size)
    image = tmp_path / "esp"
    image.write_bytes(fat.pack(program, 0x12345678, 1_700_000_000))
    subprocess.run(["mcopy", "-i", image, "::/EFI/BOOT/BOOTX64.EFI", tmp_path / "out"], check=True)
    assert (tmp_path / "out").read_bytes() == program
    checked = subprocess.run(["fsck.vfat", "-n", image], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_a_program_too_large_for_fat16_is_refused() -> None:
    """256 MiB do not fit."""
    with pytest.raises(ValueError, match="FAT16"):
        fat.pack(bytes(256 << 20), 1, 0)


def test_sfdisk_reads_the_partition_table(tmp_path: Path) -> None:
    """Partitions, names and GUIDs as given; both tables hold."""
    need("sfdisk")
    disk = tmp_path / "disk"
    parts = [gpt.Partition(gpt.ESP, uuid.uuid4(), "one", b"a" * 3_000_000),
             gpt.Partition(gpt.ROOT_X86_64, uuid.uuid4(), "two", b"b" * 512)]
    disk.write_bytes(b"".join(gpt.pack(uuid.uuid4(), parts)))
    listed = subprocess.run(["sfdisk", "--dump", disk], capture_output=True, text=True, check=True).stdout.lower()
    for part in parts:
        assert str(part.identity) in listed
        assert f'name="{part.name}"' in listed
    verified = subprocess.run(["sfdisk", "--verify", disk], capture_output=True, text=True)
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert disk.read_bytes()[gpt.ALIGN * gpt.SECTOR:][:3_000_000] == b"a" * 3_000_000


def test_uki_refuses_what_is_no_stub() -> None:
    """No PE file, one that is cut off, and a header without room."""
    for stub in (b"", b"MZ" + bytes(100), bytes(0x3C) + struct.pack("<I", 1 << 30)):
        with pytest.raises(ImageError):
            uki.assemble(stub, b"gate", [(".linux", b"x")])


def test_tree_ignores_umask_and_follows_merged_folders(tmp_path: Path) -> None:
    """Modes are fixed; a file below `lib` lands below `usr/lib`; nothing leaves the tree."""
    before = os.umask(0o077)
    try:
        tree = Tree(tmp_path / "root", {"lib": "usr/lib"})
        tree.add("lib/a/b.so", b"x", None, True)
        tree.add("lib/a/c", b"x", None, False)
        tree.add("lib/a/l", b"", "c", False)
    finally:
        os.umask(before)
    root = tmp_path / "root"
    assert (root / "usr/lib/a/b.so").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/lib/a/c").stat().st_mode & 0o7777 == 0o644
    assert (root / "usr/lib/a").stat().st_mode & 0o7777 == 0o755
    assert (root / "usr/lib/a/l").readlink() == Path("c")
    for bad in ("../x", "/etc/x", "a/../../x"):
        with pytest.raises(ImageError, match="leaves"):
            tree.add(bad, b"", None, False)


@pytest.mark.parametrize(("path", "pattern", "hit"), [
    ("usr/share/doc/a/b", "usr/share/*", True), ("usr/shared", "usr/share/*", False),
    ("numpy/tests/x.py", "*/tests/*", True), ("numpy/tests.py", "*/tests/*", False)])
def test_patterns_cross_folders(path: str, pattern: str, hit: bool) -> None:
    """`*` crosses folders."""
    assert matches(path, [pattern]) is hit


def test_cache_hashes_what_it_gives(tmp_path: Path) -> None:
    """A file altered in the cache is fetched again; a server's other file is refused and not kept."""
    cache, good = Downloads(tmp_path), b"package"
    digest = hashlib.sha256(good).hexdigest()
    assert cache.get(digest, "p", lambda: good) == good
    (tmp_path / digest).write_bytes(b"altered")
    assert cache.get(digest, "p", lambda: good) == good
    (tmp_path / digest).unlink()
    with pytest.raises(ImageError, match="SHA-256"):
        cache.get(digest, "p", lambda: b"evil")
    assert not list(tmp_path.iterdir())


def test_mirrors_come_from_apt(tmp_path: Path) -> None:
    """Both forms of apt's sources; what is switched off does not count; an option wins; a gap is an error."""
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text("# deb http://no/debian x main\n"
                                           "deb [arch=amd64] http://a.test/debian t main\n")
    (tmp_path / "sources.list.d/s.sources").write_text(
        "Types: deb\nEnabled: no\nURIs: http://off.test/debian-security\n\nTypes: deb deb-src\n"
        "URIs: http://b.test/x/debian-security/\nSuites: t-security\n")
    assert mirrors.choose(["debian", "debian-security"], {}, tmp_path) == {
        "debian": "http://a.test/debian", "debian-security": "http://b.test/x/debian-security"}
    assert mirrors.choose(["debian"], {"debian": "http://c.test/d/"}, tmp_path) == {"debian": "http://c.test/d"}
    with pytest.raises(ImageError, match="no mirror of ports"):
        mirrors.choose(["ports"], {}, tmp_path)


@pytest.mark.parametrize("line", ["a b c", "n 1 x " + "0" * 64 + " f", "n 1 5 " + "0" * 63 + "g f"])
def test_lock_file_errors_name_the_line(tmp_path: Path, line: str) -> None:
    """Too few columns, a size that is no number, a digest that is none."""
    path = tmp_path / "wheels.lock"
    path.write_text(f"# head\n{line}\n")
    with pytest.raises(ImageError, match=r"wheels\.lock:2"):
        lockfile.read_wheels(path)


def test_each_wheel_is_of_the_version_that_is_locked() -> None:
    """The image, and whoever installs by the locks with whatever Python, have one version of each package."""
    rows = re.findall(r"^([^=\s]+)==(\S+)", (ROOT / "requirements-image.lock").read_text(), re.MULTILINE)
    assert len(dict(rows)) == len(rows)
    chosen = {wheel.name: wheel.version for wheel in lockfile.read_wheels(ROOT / "image" / "wheels.lock")}
    assert chosen == {name: version for name, version in rows if name in chosen}


@pytest.mark.parametrize("marker", ["python_full_version >= '3.12'", "os_name != 'nt' and python_version<'3.12'"])
def test_versions_for_some_pythons_alone_are_refused(marker: str, tmp_path: Path) -> None:
    """pip downloads for another Python, but judges markers by the one that it runs in."""
    with pytest.raises(ImageError, match=r"numpy==2\.5\.5 is for some versions of Python"):
        wheels.resolve(recipe.load(), f"anyio==4.16.0 \\\n    --hash=x\nnumpy==2.5.5 ; {marker} \\\n    --hash=x\n",
                       Downloads(tmp_path))


def test_packages_that_leave_their_folder_are_refused(tmp_path: Path) -> None:
    """A wheel or package whose member climbs out."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../evil.py", b"")
    with pytest.raises(ImageError, match="leaves"):
        list(wheels.entries(packed.getvalue(), "w.whl"))
    for data in (b"", b"!<arch>\n", b"!<arch>\n" + b"x" * 60, b"not"):
        with pytest.raises(ImageError):
            list(deb.entries(data, "p"))
