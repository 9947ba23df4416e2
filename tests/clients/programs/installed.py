"""Sets of packages, each installed once for each content of its lock file, into `build/clients`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from tests.clients import __main__ as libraries

HERE = Path(__file__).parent
INSTALL = ["npm", "install", "--no-save", "--ignore-scripts", "--no-audit", "--no-fund"]  # `ci` wants all systems'
LEAN = {"promptfoo": ["--omit=optional"]}  # clients of all services, and models in the browser
# Sets whose lock leaves one out: its wheels for a processor alone are not in every index, and those for a GPU are huge.
BESIDE = {"guidellm": "torch==2.13.*"}


def node(name: str) -> Path:
    """A folder with npm's packages of `NAME/package-lock.json`."""
    if name == "node":
        return libraries._node()
    lock = HERE / name / "package-lock.json"
    return libraries._installed(libraries.BUILD / name, lock, [
        "cp", str(lock.parent / "package.json"), str(lock), "."], [*INSTALL, *LEAN.get(name, ())])


def python(name: str) -> Path:
    """A virtual environment with pip's packages of `NAME.lock`."""
    folder, lock = libraries.BUILD / name, HERE / f"{name}.lock"
    pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
    more = [[*pip, BESIDE[name]]] if name in BESIDE else []
    return libraries._installed(folder, lock, [sys.executable, "-m", "venv", str(folder)], [
        *pip, "--require-hashes", "--no-deps", "-r", str(lock)], *more)


def place(name: str) -> Path:
    """The folder of a set of packages, which is installed where it is not."""
    of: Callable[[str], Path] = python if (HERE / f"{name}.lock").is_file() else node
    if of is node and shutil.which("npm") is None:
        raise SystemExit("Node.js 20 or newer with npm is needed; on Debian: apt-get install nodejs npm")
    return of(name)
