"""Kernel libraries for every target, linked by the pinned linker, kept until their sources or
compilers change."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

from appliance.errors import EngineError
from appliance.kernelbuild import build as kernels
from appliance.kernels.compiler.sources import all_sources
from appliance.kernels.runtime import ahead, targets


def libraries(cache: Path, names: tuple[str, ...], linker: list[str],
              progress: Callable[[int, int, str], None]) -> list[Path]:
    """Libraries and manifests of these targets (all by default), built where the cache lacks them.
    `progress` is called with how many kernels of a target are done, of how many, and with the
    target's and the last kernel's name."""
    kept, files = folder(cache), []
    for target in targets.known("x86_64"):
        if names and target.name not in names:
            continue
        library = ahead.default_path(target, kept)
        if not _fits(library, target):
            kernels.build(target, kept, linker=linker, progress=partial(_named, progress, target.name))
        files += [library, library.with_suffix(".json")]
    return files


def _named(progress: Callable[[int, int, str], None], target: str, done: int, total: int, kernel: str) -> None:
    progress(done, total, f"{target} {kernel}")


def folder(cache: Path) -> Path:
    """Where the libraries of these sources and compilers are kept: other checkouts have their own.
    """
    known = {"sources": ahead.source_digests(all_sources()),
             "compilers": ahead.compiler_versions(), "python": kernels.python_version()}
    return cache / hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:16]


def _fits(library: Path, target: targets.Target) -> bool:
    try:
        ahead.open_library(library, target)
    except EngineError:
        return False
    return True
