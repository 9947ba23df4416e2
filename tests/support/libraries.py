"""Kernels of another target than this CPU's best, built ahead of time once for all tests and workers."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import EngineError, ImageError
from appliance.imaging import build as imaging
from appliance.imaging.disk import rootfs
from appliance.imaging.disk.toolchain import Toolchain
from appliance.imaging.disk.tree import Tree
from appliance.imaging.packages import downloads, lockfile
from appliance.imaging.packages.fetching import fetch_packages
from appliance.imaging.recipe import recipe
from appliance.kernelbuild import cache
from appliance.kernels.runtime import ahead, targets
from tests.support import require
from tests.support.environment import children_unmeasured

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "tests" / "kernels"


def library(target: str) -> Path:
    """The library of a target, of today's sources: as images hold it, if the pinned linker is
    there. Others wait while one builds it."""
    require.guests()
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shipped = downloads.default_folder() / "kernels"
        with contextlib.suppress(EngineError, ImageError, OSError):
            return _opened(target, cache.folder(shipped))
        with contextlib.suppress(EngineError):
            return _opened(target, FOLDER)
        with children_unmeasured():
            if target in [each.name for each in targets.known("x86_64")]:  # images hold no others
                with contextlib.suppress(ImageError), _pinned_linker() as linker:
                    return cache.libraries(shipped, (target,), linker, lambda done, total, name: None)[0]
            subprocess.run([sys.executable, "-m", "appliance", "kernels", "build", "--target", target, "-o",
                            str(FOLDER)], cwd=ROOT, check=True, capture_output=True)
        return ahead.default_path(targets.by_name(target), FOLDER)


def _opened(target: str, folder: Path) -> Path:
    found = targets.by_name(target)
    return ahead.open_library(ahead.default_path(found, folder), found).path


@contextlib.contextmanager
def _pinned_linker() -> Iterator[list[str]]:
    """The linker of the image's recipe. ImageError where its packages cannot be had."""
    plan, kept = recipe.load(recipe.FOLDER), downloads.Downloads(downloads.default_folder() / "downloads")
    wanted = [each for each in lockfile.read_packages(plan.file("packages.lock"))[1] if each.role == "tools"]
    fetch_packages(plan, tuple(wanted), kept, {}, lambda *_: None)
    with tempfile.TemporaryDirectory(prefix="linker-") as folder:
        rootfs.unpack(Tree(Path(folder), dict(plan.links)), wanted, kept)
        yield Toolchain(Path(folder)).command(imaging._LINKER)
