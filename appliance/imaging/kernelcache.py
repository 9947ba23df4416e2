"""Kernel libraries for every target, linked by the pinned linker, kept until their sources or compilers change."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from appliance.engine.kernels import ahead, targets
from appliance.errors import EngineError
from appliance.imaging import kernels


def libraries(folder: Path, linker: list[str], progress: Callable[[int, int, str], None]) -> list[Path]:
    """Libraries and manifests of all targets of this architecture, built where the folder lacks them."""
    files = []
    for target in targets.known("x86_64"):
        library = ahead.default_path(target, folder)
        if not _fits(library, target):
            kernels.build(target, folder, progress=progress, linker=linker)
        files += [library, library.with_suffix(".json")]
    return files


def _fits(library: Path, target: targets.Target) -> bool:
    try:
        ahead.open_library(library, target)
    except EngineError:
        return False
    return True
