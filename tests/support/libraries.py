"""Kernels of another target than this CPU's best, built ahead of time once for all tests and workers."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from appliance.engine.kernels.runtime import ahead, targets
from tests.support.environment import children_unmeasured

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "tests" / "kernels"


def library(target: str) -> Path:
    """The library of a target, of today's sources; others wait while one builds it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with children_unmeasured():
            subprocess.run([sys.executable, "-m", "appliance", "kernels", "build", "--target", target, "-o",
                            str(FOLDER), "--if-stale"], cwd=ROOT, check=True, capture_output=True)
    return ahead.default_path(targets.by_name(target), FOLDER)
