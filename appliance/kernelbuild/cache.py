"""Kernel libraries for every target, linked by the pinned linker, kept until their sources or
compilers change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from appliance.engine.kernels.runtime import ahead, targets
from appliance.errors import EngineError
from appliance.kernelbuild import build as kernels


def libraries(cache: Path, names: tuple[str, ...], linker: list[str],
              progress: Callable[[int, int, str], None]) -> list[Path]:
    """Libraries and manifests of these targets (all by default), built where the cache lacks them.
    """
    folder, files = cache / _sources(), []
    for target in targets.known("x86_64"):
        if names and target.name not in names:
            continue
        library = ahead.default_path(target, folder)
        if not _fits(library, target):
            kernels.build(target, folder, progress=progress, linker=linker)
        files += [library, library.with_suffix(".json")]
    return files


def _sources() -> str:
    """A folder name for these sources and compilers, so that other checkouts keep their own
    libraries."""
    known = {"sources": ahead.source_digests(ahead.all_sources()),
             "compilers": ahead.compiler_versions(), "python": kernels.python_version()}
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _fits(library: Path, target: targets.Target) -> bool:
    try:
        ahead.open_library(library, target)
    except EngineError:
        return False
    return True
