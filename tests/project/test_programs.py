"""The programs of `python -m tests.clients.programs`: what is pinned is what is installed, and what is documented."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests import soak
from tests.clients.programs.commands import DRIVERS
from tests.clients.programs.table import BY_NAME, PROGRAMS, Program

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / "tests/clients"
HERE = CLIENTS / "programs"


def _locked(row: Program) -> str | None:
    """The version of a program in the lock of its set of packages."""
    if (lock := HERE / f"{row.place}.lock").is_file():
        found = re.search(rf"(?m)^{re.escape(row.package)}==(\S+)", lock.read_text())
        return found and found[1]
    folder = CLIENTS if row.place == "node" else HERE / row.place
    packages = json.loads((folder / "package-lock.json").read_text())["packages"]
    return str(packages[f"node_modules/{row.package}"]["version"])


@pytest.mark.parametrize("row", PROGRAMS, ids=lambda row: row.name)
def test_a_version_is_the_one_in_the_lock(row: Program) -> None:
    """So what the table says is what runs."""
    assert row.version == _locked(row)


@pytest.mark.parametrize("page", ["README.md", "LIMITATIONS.md", "docs/reference/api.md"])
def test_pages_name_each_program_with_its_version(page: str) -> None:
    """As the table has it."""
    text = " ".join((ROOT / page).read_text().split())
    assert [] == [row.name for row in PROGRAMS if f"{row.title or row.name} {row.version}" not in text]


def test_the_soak_runs_them_all() -> None:
    """Each name and each driver is there once, and a stage of the soak runs the table."""
    assert len(PROGRAMS) == len(BY_NAME)
    started = "".join((HERE / f"{name}.py").read_text() for name in ("table", "commands"))
    assert [] == [path.name for path in DRIVERS.iterdir() if path.suffix != ".pyc" and path.is_file()
                  and f'"{path.stem}"' not in started and path.name not in started]
    assert "tests.clients.programs" in {command[-1] for _, command in soak.stages(1, set())}
