"""This machine's Python on the image's C library and libcrypto: what is measured is what ships,
where a system's own OpenSSL may be older. The image's locked packages are unpacked into a folder;
neither root nor a container is needed."""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import sys
import sysconfig
import tempfile
from pathlib import Path

from appliance.errors import ImageError
from appliance.imaging.disk import rootfs
from appliance.imaging.disk.toolchain import LIBRARIES, LOADER
from appliance.imaging.disk.tree import Tree
from appliance.imaging.packages import lockfile
from appliance.imaging.packages.downloads import Downloads, default_folder
from appliance.imaging.packages.fetching import fetch_packages
from appliance.imaging.recipe import recipe

PACKAGES = ("libc6", "libssl3t64", "libzstd1", "zlib1g")
"""libcrypto and all that it needs."""

MACHINE = "x86_64"  # as `platform` calls the image's CPUs


def option(parser: argparse.ArgumentParser) -> None:
    """The option that does without them, for a benchmark that has `--work`."""
    parser.add_argument("--system-libraries", action="store_true",
                        help="our engine uses this system's libcrypto and C library, not the image's")


def python(args: argparse.Namespace) -> tuple[str, ...]:
    """How Python is called, by what was asked for."""
    try:
        return (sys.executable,) if args.system_libraries else command(args.work)
    except ImageError as error:
        raise SystemExit(f"the image's libraries cannot be had: {error}\nWith --system-libraries, this system's are "
                         "used.") from None


def command(work: Path) -> tuple[str, ...]:
    """Python on these libraries, which are unpacked into a folder in `work`, one for each state of
    the lock file. ImageError where they cannot be had, or run."""
    if platform.machine() != MACHINE:
        raise ImageError(f"the image's are for {MACHINE}; this machine is {platform.machine()}")
    chosen = recipe.load(recipe.FOLDER)
    wanted = [package for package in lockfile.read_packages(chosen.file("packages.lock"))[1]
              if package.role == "root" and package.name in PACKAGES]
    state = hashlib.sha256("".join(package.sha256 for package in wanted).encode()).hexdigest()
    folder = (work / f"libraries-{state[:12]}").absolute()
    if not folder.exists():
        downloads = Downloads(default_folder() / "downloads")
        fetch_packages(chosen, wanted, downloads, {}, lambda *_: None)
        work.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=work) as unpacked:
            rootfs.unpack(Tree(Path(unpacked, "root"), dict(chosen.links)), wanted, downloads)
            Path(unpacked, "root").rename(folder)
    places = [folder / LIBRARIES, sysconfig.get_config_var("LIBDIR")]
    return (str(folder / LOADER), "--argv0", sys.executable, "--library-path", os.pathsep.join(map(str, places)),
            os.path.realpath(sys.executable))
