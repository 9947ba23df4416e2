"""docs/attacks.md: every row names tests and policy fields that exist, or a reason, and says what remains."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

from appliance.policy.enforcement import places

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/attacks.md").read_text()
HEAD = "| attack | needs | affected | since | policy | test, or reason | what remains |"


def _rows() -> list[dict[str, str]]:
    """The rows of the tables of attacks, by the head's words."""
    names, found, inside = [name.strip() for name in HEAD.strip("|").split("|")], [], False
    for line in TEXT.splitlines():
        inside = line == HEAD or (inside and line.startswith("|"))
        if inside and line != HEAD and not line.startswith("|---"):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            found.append(dict(zip(names, cells, strict=True)))
    return found


@functools.cache
def _tests(path: str) -> set[str]:
    """The names of the test functions of a file."""
    return {node.name for node in ast.walk(ast.parse((ROOT / path).read_bytes()))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")}


def test_there_is_a_row_for_each_attack() -> None:
    """No attack twice, and none of the many that are published left to "flaws of the TEE"."""
    rows = _rows()
    assert len(rows) >= 60
    assert len(rows) == len({row["attack"] for row in rows})
    assert {"no", "in part", "yes"} == {row["affected"] for row in rows}
    assert {True} == {re.fullmatch(r"\d+\.\d+\.\d+", row["since"]) is not None and row["needs"] != "" for row in rows}


def test_every_test_that_it_names_exists() -> None:
    """By file and function."""
    named = re.findall(r"`(tests/[a-z0-9_/]+\.py)::(test_[a-z0-9_]+)`", TEXT)
    assert len(named) > 60
    assert [] == [f"{path}::{name}" for path, name in named if not (ROOT / path).is_file() or name not in _tests(path)]
    assert len(named) == TEXT.count("::")


def test_every_field_that_it_names_exists() -> None:
    """In the newest schema."""
    fields = [field for row in _rows() for field in re.findall(r"`([^`]+)`", row["policy"])]
    assert len(set(fields)) > 25
    assert [] == [field for field in fields if field not in places()]
    cell = re.compile(r"–|`[a-z0-9_.]+`(, `[a-z0-9_.]+`)*")
    assert [] == [row["attack"] for row in _rows() if not cell.fullmatch(row["policy"])]


def test_who_is_not_affected_says_why_and_who_is_says_what_remains() -> None:
    """A "no" names a test, or a reason of at least a few words; a "yes" or "in part" says what remains."""
    rows = _rows()
    unsaid = [row["attack"] for row in rows if row["affected"] == "no" and not (
        "::" in row["test, or reason"] or len(row["test, or reason"].split()) > 3)]
    open_ended = [row["attack"] for row in rows if row["affected"] != "no" and len(row["what remains"].split()) < 2]
    assert ([], []) == (unsaid, open_ended)
