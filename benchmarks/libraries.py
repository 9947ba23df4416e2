"""This machine's Python on the image's C library and libcrypto: what streaming is in the image, where a system's own
OpenSSL is older. The image's locked packages are unpacked into a folder; neither root nor a container is needed."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

from appliance.imaging import lockfile, recipe, rootfs
from appliance.imaging.downloads import Downloads, default_folder
from appliance.imaging.fetching import fetch_packages
from appliance.imaging.toolchain import LIBRARIES, LOADER
from appliance.imaging.tree import Tree

PACKAGES = ("libc6", "libssl3t64", "libzstd1", "zlib1g")
"""libcrypto and all that it needs."""


def python(folder: Path) -> list[str]:
    """The command for it; the packages are unpacked into `folder` unless they are there. ImageError where they cannot
    be had."""
    if not folder.exists():
        chosen = recipe.load(recipe.FOLDER)
        downloads = Downloads(default_folder() / "downloads")
        wanted = [package for package in lockfile.read_packages(chosen.file("packages.lock"))[1]
                  if package.role == "root" and package.name in PACKAGES]
        fetch_packages(chosen, wanted, downloads, {}, lambda *_: None)
        unpacked = folder.with_suffix(".part")
        rootfs.unpack(Tree(unpacked, dict(chosen.links)), wanted, downloads)
        unpacked.rename(folder)
    places = [folder.absolute() / LIBRARIES, sysconfig.get_config_var("LIBDIR")]
    return [str(folder.absolute() / LOADER), "--argv0", sys.executable, "--library-path",
            os.pathsep.join(map(str, places)), os.path.realpath(sys.executable)]
