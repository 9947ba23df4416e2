"""The threat model names tests that exist, and words in them that can be found."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"\| (?P<attack>[^|]+) \| (?P<stops>[^|]*) \| (?P<test>[^|]*) \| (?P<remains>[^|]*) ?\|")


def test_every_test_that_it_names_exists() -> None:
    """In the threat model and wherever guides, concepts and formats point at a test."""
    named = {(path.name, test) for path in (ROOT / "docs").rglob("*.md") if path.parent.name != "reference"
             for test in re.findall(r"`(?:tests/)?(test_[a-z0-9_]+)(?:\.py)?`", path.read_text())}
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    functions = {name for path in (ROOT / "tests").rglob("test_*.py")
                 for name in re.findall(r"def (test_[a-z0-9_]+)", path.read_text())}
    assert len(named) > 40
    assert set() == {each for each in named if each[1] not in files | functions}


def test_every_attack_names_a_test_or_says_that_nothing_stops_it() -> None:
    """A row without a test is a row that claims too much."""
    table = (ROOT / "docs/threat-model.md").read_text().partition("## Attacks")[2].partition("\n## ")[0]
    rows = [match for match in map(ROW.fullmatch, table.splitlines()) if match][2:]
    assert len(rows) > 40
    assert [] == [row["attack"] for row in rows if not re.search(r"test|Nothing|none here", row["stops"] + row["test"])]
