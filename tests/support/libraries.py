"""Kernels of another target than this CPU's best, built ahead of time once for all tests and workers."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from pathlib import Path

from appliance.engine.kernels.runtime import ahead, targets
from appliance.errors import EngineError, ImageError
from appliance.imaging.packages import downloads
from appliance.kernelbuild import cache
from tests.support.environment import children_unmeasured

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "tests" / "kernels"


def library(target: str) -> Path:
    """The library of a target, of today's sources: the one that images hold, if one was built; others wait while one
    builds it."""
    with contextlib.suppress(EngineError, ImageError):
        shipped = ahead.default_path(targets.by_name(target), cache.folder(downloads.default_folder() / "kernels"))
        return ahead.open_library(shipped, targets.by_name(target)).path
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with children_unmeasured():
            subprocess.run([sys.executable, "-m", "appliance", "kernels", "build", "--target", target, "-o",
                            str(FOLDER), "--if-stale"], cwd=ROOT, check=True, capture_output=True)
    return ahead.default_path(targets.by_name(target), FOLDER)
