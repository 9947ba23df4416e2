"""The auditors' reading guide: each module of engine, models and secure stands in it once, with its size of today."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from tests.support.code_lines import count

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/read-the-engine.md").read_text()
PACKAGE = ROOT / "appliance"


def _stops() -> dict[int, tuple[int, list[str]]]:
    """Number of a stop -> the size that the guide gives it, and its modules."""
    found = {}
    for section in GUIDE.split("\n## ")[1:]:
        title, _, body = section.partition("\n")
        number, size = re.fullmatch(r"(\d+)\. .*: about ([\d,]+) lines", title).groups()  # type: ignore[union-attr]
        rows = [row.split("|")[1] for row in body.splitlines() if row.startswith(("| `", "| **`"))]
        found[int(number)] = (int(size.replace(",", "")), re.findall(r"`([\w/]+\.py)`", " ".join(rows)))
    return found


def _near(stated: int, actual: int) -> bool:
    return abs(stated - actual) <= max(15, actual // 20)


def _has_code(path: Path) -> bool:
    """Whether a module is more than a room's rule and its door."""
    kept = [node for node in ast.parse(path.read_bytes()).body
            if not (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__")]
    return bool(count(path)) and any(not isinstance(node, ast.Expr) for node in kept)


def test_every_module_once() -> None:
    """A module that comes or goes must come into the guide, or go from it."""
    rooms = ("constraint", "engine", "families", "kernels", "matching", "models", "oblivious", "secure", "text")
    here = sorted(str(path.relative_to(PACKAGE)) for part in rooms
                  for path in (PACKAGE / part).rglob("*.py") if _has_code(path))
    assert here == sorted(module for _, modules in _stops().values() for module in modules)


def test_sizes() -> None:
    """The size of each stop is right within a twentieth, and so are the totals."""
    actual = {number: sum(count(PACKAGE / module) for module in modules) for number, (_, modules) in _stops().items()}
    assert [] == [(number, stated, actual[number]) for number, (stated, _) in _stops().items()
                  if not _near(stated, actual[number])]
    everything, path = (int(text.replace(",", ""))
                        for text in re.findall(r"about ([\d,]+)(?: lines in all| of them)", GUIDE))
    assert abs(everything - sum(actual.values())) <= 500, sum(actual.values())
    assert abs(path - sum(actual[number] for number in (1, 3, 4, 5, 6, 7))) <= 300


def test_named_tests_exist() -> None:
    """Each file of tests that the guide names is there."""
    names = set(re.findall(r"`(test_\w+)`", GUIDE))
    assert names
    assert [] == sorted(names - {path.stem for path in (ROOT / "tests").rglob("test_*.py")})


def test_size_of_the_plain_engine() -> None:
    """An afternoon's reading stays one: the guide's size of the plain engine is today's."""
    (stated,) = re.findall(r"`examples/plain_engine\.py`, about (\d+) lines", GUIDE)
    assert _near(int(stated), count(ROOT / "examples/plain_engine.py"))
