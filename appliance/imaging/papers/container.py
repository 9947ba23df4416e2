"""The root file system of an image as an archive that container engines import: the same files,
read out of root.img.

For machines without virtualisation, and for tests. A container has the host's kernel and none of
the image's boot: no dm-verity, no measured command line.
"""

from __future__ import annotations

import io
import secrets
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

from appliance.attestation import keyfile
from appliance.errors import ImageError
from appliance.imaging.disk import rootfs
from appliance.imaging.disk.toolchain import Toolchain
from appliance.imaging.disk.tree import FOLDER, PROGRAM, Tree
from appliance.imaging.packages import lockfile
from appliance.imaging.packages.downloads import Downloads
from appliance.imaging.packages.fetching import fetch_packages
from appliance.imaging.predict.predict import checked_files, entry
from appliance.imaging.recipe import manifest
from appliance.imaging.recipe.recipe import Recipe

_READ_EROFS = "usr/bin/fsck.erofs"
# The command that process 1 starts in a machine.
COMMAND = ("/usr/bin/python3.13", "-I", "-B", "-X", "utf8", "-m", "appliance", "serve", "/etc/appliance/deployment.hcl",
           "--models", "/models")


def unpack(image: Path, into: Path, recipe: Recipe, downloads: Downloads, mirrors: Mapping[str, str] | None = None
           ) -> None:
    """The files of root.img, by the pinned erofs tools, from `mirrors` where the cache lacks them.
    Raises ImageError if it is not the file of the manifest, or damaged."""
    checked_files(image, manifest.read(image), ("root.img",))
    _, packages = lockfile.read_packages(recipe.file("packages.lock"))
    wanted = [package for package in packages if package.role == "tools"]
    fetch_packages(recipe, wanted, downloads, mirrors or {}, lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="appliance-tools-") as folder:
        tools = Tree(Path(folder, "tools"), dict(recipe.links))
        rootfs.unpack(tools, wanted, downloads)
        Toolchain(tools.root).run(_READ_EROFS, f"--extract={into}", "--no-preserve-owner", "--preserve-perms",
                                  str(image / "root.img"))


def export(image: Path, output: Path, recipe: Recipe, downloads: Downloads, mirrors: Mapping[str, str] | None = None
           ) -> None:
    """Write the archive: sorted, owned by root, with the image's time stamp."""
    epoch = int(entry(manifest.read(image), "source_date_epoch"))
    if keyfile.special(output):
        raise ImageError(f"{output}: not a regular file", hint="name a file to make or to replace")
    with tempfile.TemporaryDirectory(prefix="appliance-container-") as folder:
        root = Path(folder, "root")
        unpack(image, root, recipe, downloads, mirrors)
        fresh = output.parent / f".{output.name}.{secrets.token_hex(4)}"
        try:
            with tarfile.open(fresh, "x", format=tarfile.GNU_FORMAT) as archive:
                for path in sorted(root.rglob("*")):
                    _add(archive, path, path.relative_to(root).as_posix(), epoch)
            fresh.replace(output)
        except OSError as error:
            raise ImageError(f"{output} cannot be written: {error.strerror}") from None
        finally:
            fresh.unlink(missing_ok=True)


def _add(archive: tarfile.TarFile, path: Path, name: str, epoch: int) -> None:
    member = tarfile.TarInfo(name)
    member.mtime = epoch
    if path.is_symlink():
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(path.readlink()), 0o777
        archive.addfile(member)
    elif path.is_dir():
        member.type, member.mode = tarfile.DIRTYPE, FOLDER
        archive.addfile(member)
    else:
        data = path.read_bytes()
        member.size, member.mode = len(data), path.stat().st_mode & PROGRAM
        archive.addfile(member, io.BytesIO(data))
