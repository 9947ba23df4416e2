"""A built image: reproducible, and nothing in it that could be done without. One build serves all tests here."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.errors import ImageError
from appliance.imaging import export as formats
from appliance.imaging.disk import rootfs
from appliance.imaging.disk.toolchain import Toolchain
from appliance.imaging.disk.tree import Tree
from appliance.imaging.packages import lockfile
from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.recipe import manifest, recipe
from appliance.kernels.runtime import ahead
from appliance.policy import load
from tests.support import images
from tests.support.require import absent

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

AHEAD_DAYS = 800
PAPERS = ("measurements.json", "sbom.cdx.json", "provenance.intoto.json")
EXPORTED = ("disk.qcow2", "disk.vhd", "disk.tar.gz", "container.tar")


def _elsewhere(place: Path) -> tuple[Path, list[str]]:
    """The folder of a build in another year, and who it was by: user, umask, time."""
    for name in ("appliance", "image", "examples"):
        shutil.copytree(images.ROOT / name, place / "source" / name, ignore=shutil.ignore_patterns("__pycache__"),
                        copy_function=shutil.copyfile)
    (place / "out").mkdir()
    cache = place / "cache"
    shutil.copytree(default_folder(), cache, copy_function=os.link)
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-nostdlib", f"-DDAYS={AHEAD_DAYS}", "-o", place / "clock.so",
                    images.ROOT / "tests/support/clock.c"], check=True)
    for path in [place, *place.rglob("*")]:
        path.chmod(0o777 if path.is_dir() else 0o644)
    done = subprocess.run(
        [sys.executable, "-P", images.ROOT / "tests/support/build_elsewhere.py", place / "source", place / "out/image",
         cache, place / "clock.so"],
        capture_output=True, text=True, env={
            "PYTHONPATH": str(place / "source"), "TMPDIR": str(place / "out"), "HOME": "/",
            "LD_PRELOAD": str(place / "clock.so"), "TZ": "Asia/Kolkata",
            "LANG": "tr_TR.UTF-8"})
    if f"Permission denied: '{sys.executable}'" in done.stderr:  # kernels are compiled by processes of their own
        absent(f"an interpreter that other users may run: {sys.executable} is in a folder that is closed to them")
    assert done.returncode == 0, done.stderr
    return place / "out/image", done.stdout.splitlines()[-1].split()


def test_a_user_without_a_home_is_asked_for_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """A service's user may have none: no variable, and no entry in the list of users."""
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("os.getuid", lambda: 4_000_000_000)
    with pytest.raises(ImageError, match="no home folder") as caught:
        default_folder()
    assert "--cache" in str(caught.value.hint)


def test_two_builds_are_the_same_to_the_last_bit(image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another folder, checkout, year, time zone, user and umask: every artefact, every export and every paper has the
    same digest. Both builds are by others than each other: root and nobody, where the tests run as root."""
    images.need("gcc")
    monkeypatch.setattr(formats, "GIB", 64 << 20)  # whole GiB take their time, there, too
    here = Path(shutil.copytree(image, tmp_path / "here", copy_function=os.link))
    for kind in ("qcow2", "vhd", "tar"):
        formats.export(here, kind, here / formats.FILES[kind])
    for words in (["predict", here], ["sbom", here, "--policy", images.DEMO],
                  ["container", here, "-o", here / "container.tar"]):
        assert 0 == main(["image", *map(str, words)])
    with tempfile.TemporaryDirectory(prefix="elsewhere-") as folder:
        there, (user, umask, seconds) = _elsewhere(Path(folder))
        assert os.getuid() != int(user) or os.getuid() != 0
        assert "0o77" == umask
        assert int(seconds) > time.time() + (AHEAD_DAYS - 1) * 86400
        names = {*manifest.FILES, manifest.NAME, *PAPERS, *EXPORTED}
        assert names == {path.name for path in there.iterdir()} == {path.name for path in here.iterdir()}
        assert {name: manifest.describe(here / name) for name in names} == {
            name: manifest.describe(there / name) for name in names}


def test_manifest_says_what_the_files_are(image: Path) -> None:
    """Digests, sizes, policy and command line of image.json hold for the files beside it."""
    document = manifest.read(image)
    assert document["files"] == {name: manifest.describe(image / name) for name in manifest.FILES}
    assert document["cmdline"] == (image / "cmdline").read_text()
    assert f"roothash={document['verity']['root_hash']}" in document["cmdline"].split()
    assert document["policy"] == {"placement": "baked", "sha384": load(images.DEMO).digest.hex()}
    assert {path.name for path in image.iterdir()} == {*manifest.FILES, manifest.NAME}


def test_veritysetup_accepts_the_root_image(image: Path) -> None:
    """cryptsetup finds the superblock where image.json says, and every block under the root hash."""
    images.need("veritysetup")
    sealed = manifest.read(image)["verity"]
    root = image / "root.img"
    subprocess.run(["veritysetup", "verify", root, root, sealed["root_hash"], f"--hash-offset={sealed['hash_offset']}"],
                   check=True)


def test_kernel_image_holds_its_parts(image: Path, tmp_path: Path) -> None:
    """binutils reads the same sections out of the EFI program that lie beside it."""
    for section, name in ((".cmdline", "cmdline"), (".initrd", "initrd.cpio"), (".linux", "vmlinuz"),
                          (".gate", "gate.bin")):
        out = tmp_path / name
        subprocess.run(["objcopy", f"--dump-section={section}={out}", image / "appliance.efi", tmp_path / "rest"],
                       check=True)
        assert out.read_bytes() == (image / name).read_bytes()


class TestRoot:
    """A scan of the root file system, unpacked from the image by erofs-utils."""

    @pytest.fixture(scope="class")
    @staticmethod
    def root(image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
        """The files of root.img, and nothing that the builder says of them."""
        folder = tmp_path_factory.mktemp("scan")
        plan = recipe.load()
        _, packages = lockfile.read_packages(plan.file("packages.lock"))
        rootfs.unpack(Tree(folder / "tools", dict(plan.links)), [p for p in packages if p.role == "tools"],
                      Downloads(default_folder() / "downloads"))
        Toolchain(folder / "tools").run("usr/bin/fsck.erofs", f"--extract={folder / 'root'}", "--preserve",
                                        str(image / "root.img"))
        return folder / "root"

    def files(self, root: Path) -> list[Path]:
        """Every plain file."""
        return [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]

    def test_no_program_but_python(self, root: Path) -> None:
        """One executable program, the interpreter, and the loader that maps it; no script, no shell by any name."""
        programs = [path.relative_to(root).as_posix() for path in self.files(root)
                    if path.stat().st_mode & 0o111 and ".so" not in path.name]
        assert programs == ["usr/bin/python3.13"]
        scripts = [path for path in self.files(root) if path.stat().st_mode & 0o111 and path.read_bytes()[:2] == b"#!"]
        assert scripts == []
        for name in ("sh", "bash", "dash", "busybox", "perl", "dpkg", "apt", "login", "agetty", "sshd", "su", "mount",
                     "ld.bfd", "gcc", "as", "systemd", "init", "pip", "numba", "llvmlite"):
            assert not [path for path in root.rglob(name) if path.is_file()], name
        tests = re.compile(r"(^|/)_?tests?/|conftest|_testcapi|_tests\.cpython|pytest_plugin")
        assert [] == [path for path in self.files(root) if tests.search(path.relative_to(root).as_posix())]

    def test_nothing_but_files_folders_and_links_and_no_special_bits(self, root: Path) -> None:
        """No setuid, setgid, sticky or writable-by-others bit, no device node; all of it root's."""
        for path in [root, *root.rglob("*")]:
            status = path.lstat()
            kind = stat.S_IFMT(status.st_mode)
            assert kind in (stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK), path
            if kind != stat.S_IFLNK:
                assert status.st_mode & 0o7777 in (0o644, 0o755), path
            if os.getuid() == 0:
                assert (status.st_uid, status.st_gid) == (0, 0), path

    def test_every_link_leads_into_the_image(self, root: Path) -> None:
        """No link dangles or leaves."""
        for path in root.rglob("*"):
            if path.is_symlink():
                target = path.readlink()
                full = root / str(target).lstrip("/") if target.is_absolute() else path.parent / target
                assert full.exists(), f"{path} -> {target}"
                assert full.resolve().is_relative_to(root.resolve()), path

    def test_no_key_and_no_path_of_the_build_machine(self, root: Path) -> None:
        """No private key in any form that tools write; no folder of this checkout or the build, no name of it."""
        forbidden = [b"-----BEGIN PRIVATE KEY", b"-----BEGIN RSA PRIVATE", b"-----BEGIN EC PRIVATE",
                     b"-----BEGIN OPENSSH PRIVATE", str(images.ROOT).encode(), b"appliance-image-",
                     str(Path(sys.prefix)).encode()]
        # these hold the words to look for keys by, as text, and no key
        readers = re.compile(r"(ssh|serialization|keyfile|ssl)[^/]*\.(py|pyc|so)|_rust\.abi3\.so|libcrypto\.so\.3")
        for path in self.files(root):
            data = path.read_bytes()
            for word in forbidden:
                if word in data and not (word.startswith(b"-----") and readers.search(path.name)):
                    pytest.fail(f"{path.relative_to(root)} holds {word!r}")

    def test_every_library_that_is_needed_is_there(self, root: Path) -> None:
        """Each ELF file finds its DT_NEEDED in the image; readelf says what they are."""
        present = {path.name for path in root.rglob("*.so*")}
        elves = [path for path in self.files(root) if path.read_bytes()[:4] == b"\x7fELF"]
        listed = subprocess.run(["readelf", "-dW", *elves], capture_output=True, text=True).stdout
        needed = set(re.findall(r"\(NEEDED\).*\[(.+)\]", listed))
        assert needed - present == set()
        assert len(elves) > 30

    def test_no_code_without_its_source_and_none_compiled_by_another(self, root: Path) -> None:
        """Each .pyc is unchecked-hash, of a source that is there; no client, builder, sealer or compiler of kernels."""
        for path in root.rglob("*.pyc"):
            assert path.read_bytes()[4:8] == b"\x01\x00\x00\x00", path  # PEP 552: hash-based, not checked
            assert (path.parents[1] / f"{path.name.split('.')[0]}.py").is_file(), path
        package = root / "usr/lib/python3/dist-packages/appliance"
        assert not (package / "client").exists()
        assert not (package / "imaging").exists()
        assert not (package / "sealing").exists()

    def test_kernels_are_there_and_fit(self, root: Path) -> None:
        """The image's kernel library was built from the image's own sources."""
        folder = root / "usr/lib/python3/dist-packages/appliance/kernels"
        document = json.loads((folder / "prebuilt/kernels-avx2.json").read_bytes())
        assert document["sources"] == ahead.source_digests(list(document["sources"]))


@pytest.mark.guests
def test_what_is_not_an_image_is_not_overwritten(tmp_path: Path) -> None:
    """A folder with other things in it is refused, and left as it is."""
    (tmp_path / "mine").write_text("precious")
    with pytest.raises(ImageError, match="not an image"):
        images.make(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.guests
def test_a_build_that_fails_leaves_nothing(tmp_path: Path) -> None:
    """A recipe whose layout leaves the tree: the step is named, and no half of an image stays."""
    folder = tmp_path / "recipe"
    shutil.copytree(recipe.FOLDER, folder)
    text = (folder / "layout.toml").read_text().replace('"etc/hostname"', '"../hostname"')
    (folder / "layout.toml").write_text(text)
    with pytest.raises(ImageError, match=r"build step root: \.\./hostname leaves the tree"):
        images.make(tmp_path / "out", folder=folder)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe"]


@pytest.mark.parametrize(("file", "old", "new", "said"), [
    ("modules.toml", "optional =", "optionel =", "optional is NoneType"),
    ("cmdline.toml", "words = [", 'more = 1\nwords = [', "unknown key more"),
    ("packages.toml", "[role.boot]", "[role.boat]", "roles are"),
    ("layout.toml", "[links]", "[links", "layout.toml")])
def test_recipe_errors_name_file_and_key(tmp_path: Path, file: str, old: str, new: str, said: str) -> None:
    """A key that is missing, unknown, or a file that is no TOML."""
    folder = tmp_path / "recipe"
    shutil.copytree(recipe.FOLDER, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new))
    with pytest.raises(ImageError, match=said):
        recipe.load(folder)


def _described(document: dict[str, Any]) -> set[str]:
    return {item["sha256"] for item in (*document["packages"], *document["wheels"])}


def test_every_wheel_is_one_that_the_project_locks(image: Path) -> None:
    """The image's wheels are among the hashes of requirements-image.lock."""
    listed = set(re.findall(r"sha256:([0-9a-f]{64})", (images.ROOT / "requirements-image.lock").read_text()))
    assert {wheel["sha256"] for wheel in manifest.read(image)["wheels"]} <= listed
    assert len(_described(manifest.read(image))) > 40
