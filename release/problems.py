"""Why a tree cannot be released as it is. Each problem says what was found, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from appliance import __version__
from appliance.policy.schema.versions import OPEN
from release.parts import git, stale

FREEZES = (0, 2, 0)  # the release that freezes schema 2


def of(root: Path) -> Iterator[str]:
    """Yield each problem of the tree."""
    if changed := git(root, "status", "--porcelain"):
        yield f"{len(changed.splitlines())} files differ from the commit: commit them, or put them away"
    if not git(root, "rev-parse", "HEAD"):
        yield f"{root} is not a checkout with a commit: a release names its commit"
    yield from stale(root)
    yield from _version(root)
    yield from _changelog((root / "CHANGELOG.md").read_text("utf-8"))
    if OPEN and tuple(map(int, re.findall("[0-9]+", __version__))) >= FREEZES:
        yield (f"schema {min(OPEN)} is open: {__version__} promises that its digests stay. Freeze it first "
               "(appliance/policy/schema/versions.py)")


def _version(root: Path) -> Iterator[str]:
    declared = re.search(r'^version = "([^"]+)"$', (root / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    if declared is None or declared[1] != __version__:
        yield f"pyproject.toml and appliance/__init__.py name different versions; the latter says {__version__}"
    tagged = git(root, "rev-list", "-n", "1", f"v{__version__}")
    if tagged and tagged != git(root, "rev-parse", "HEAD"):
        yield f"{__version__} is released, as commit {tagged[:12]}: raise the version in both files"


def _changelog(text: str) -> Iterator[str]:
    if not re.search(rf"^## {re.escape(__version__)}, \d{{4}}-\d\d-\d\d$", text, re.MULTILINE):
        yield f"CHANGELOG.md has no heading `## {__version__}, YEAR-MONTH-DAY`"
    waits = re.search(r"^## Unreleased\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if waits is not None and waits[1].strip():
        yield f"CHANGELOG.md has lines under *Unreleased*: put them under {__version__}"
