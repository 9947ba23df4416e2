"""The files of a release and their digests: the wheel, the image's recipe, the prebuilt kernels."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from appliance.errors import EngineError
from appliance.kernels.runtime import ahead, targets

FORMAT = "appliance/release/v1"
RECIPE = ("image", "requirements-image.lock")


def sha256(path: Path) -> str:
    """The digest of a file, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def git(root: Path, *words: str) -> str:
    """What git says, without the line feed; empty where it fails."""
    done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def wheel(root: Path, out: Path) -> list[Path]:
    """Build the wheel, with the commit's time as that of its files: the same commit gives the same
    bytes."""
    time = git(root, "log", "-1", "--format=%ct") or "0"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(out)], cwd=root, check=True,
                   stdout=subprocess.DEVNULL, env={**os.environ, "SOURCE_DATE_EPOCH": time})
    return sorted(out.glob("*.whl"))


def stale(root: Path) -> Iterator[str]:
    """Yield what is wrong with each prebuilt library that is not of the sources at hand."""
    known = {each.name: each for machine in ("x86_64", "aarch64") for each in targets.known(machine)}
    for table in _tables(root):
        target = known.get(_target(table))
        if target is None:
            yield f"{table}: no target has this name; allowed: {', '.join(known)}. Remove it"
            continue
        try:
            ahead.open_library(table.with_suffix(".so"), target)
        except EngineError as error:
            yield f"{error.summary}: {error.hint}"


def kernels(root: Path, out: Path) -> dict[str, dict[str, str]]:
    """Copy the prebuilt kernels, and name their digests by target."""
    found = {}
    for table in _tables(root):
        library = table.with_suffix(".so")
        out.mkdir(exist_ok=True)
        for each in (table, library):
            shutil.copy(each, out)
        found[_target(table)] = {each.name: sha256(each) for each in (table, library)}
    return found


def _tables(root: Path) -> list[Path]:
    return sorted((root / "appliance/kernels/prebuilt").glob("kernels-*.json"))


def _target(table: Path) -> str:
    return table.stem.removeprefix("kernels-")


def recipe(root: Path) -> dict[str, str]:
    """The digest of each file that decides what is in the image, beside the wheel and the policy."""
    listed = git(root, "ls-files", "-z", "--", *RECIPE).split("\0")
    return {name: sha256(root / name) for name in sorted(listed) if name}
