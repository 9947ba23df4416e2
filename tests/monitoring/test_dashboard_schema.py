"""The dashboard by Grafana's published types: TypeScript's compiler judges it, and finds what is wrong with others."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT
from tests.support.require import absent, tools

HERE = Path(__file__).parent / "schema"
BUILD = ROOT / "build/grafana"
DASHBOARD = json.loads((ROOT / "examples/monitoring/dashboard.json").read_text())
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--moduleResolution", "nodenext",
           "--target", "es2022"]

pytestmark = [pytest.mark.soak, pytest.mark.slow]


@functools.cache
def _folder() -> Path:
    """A folder with the packages of the lock, which npm checks by their hashes."""
    tools("npm", "node", package="nodejs npm")
    BUILD.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(HERE / name, BUILD / name)
    done = subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=BUILD, check=False,
                          capture_output=True, text=True)
    return BUILD if done.returncode == 0 else absent(f"npm has no packages: {done.stderr[-500:]}")


def _mistakes(dashboard: dict[str, Any], name: str) -> str:
    """What the compiler says of a dashboard."""
    folder = _folder()
    (folder / f"{name}.ts").write_text((HERE / "check.ts").read_text() + json.dumps(dashboard, indent=1) + ";\n")
    done = subprocess.run([folder / "node_modules/.bin/tsc", *OPTIONS, f"{name}.ts"], cwd=folder, check=False,
                          capture_output=True, text=True)
    assert (done.returncode == 0) == (done.stdout == "")
    return done.stdout


def test_grafanas_types_take_it() -> None:
    """Each member of dashboard, panels, options and fields is one that they know, with a value of its type."""
    assert "" == _mistakes(DASHBOARD, "dashboard")


def _change(change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    other: dict[str, Any] = json.loads(json.dumps(DASHBOARD))
    change(other)
    return other


@pytest.mark.parametrize(("name", "change"), [
    ("member", lambda it: it.update(refreshes="30s")),
    ("kind", lambda it: it["panels"][0].update(type="graph")),
    ("enum", lambda it: it["panels"][5]["fieldConfig"]["defaults"]["custom"].update(drawStyle="curve")),
    ("option", lambda it: it["panels"][0]["options"].pop("colorMode")),
    ("number", lambda it: it["panels"][1]["gridPos"].update(x="0")),
], ids=lambda value: value if isinstance(value, str) else "")
def test_they_refuse_another(name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """An unknown member, a kind, a word and a number that are none, an option that is not there."""
    assert "error TS" in _mistakes(_change(change), name)
