"""The kernel package's source files: all, and those that a build loaded."""

from __future__ import annotations

import sys
from pathlib import Path

from appliance.kernels.runtime.ahead import PACKAGE

ROOM = "appliance.kernels"


def loaded_sources() -> list[str]:
    """Files of the kernel package, by their path in it, whose modules this process has loaded."""
    loaded = [module.__file__ for name, module in list(sys.modules.items()) if name.startswith(f"{ROOM}.")]
    return sorted(Path(file).relative_to(PACKAGE).as_posix() for file in loaded if file)


def all_sources() -> list[str]:
    """Every source file of the kernel package, by its path in it."""
    return sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
