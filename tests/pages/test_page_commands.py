"""Each command of each page has its test, or a reason: `commands.toml`. A new command has neither, and fails here or
where it is typed."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.support.pages import ROOT, Line, lines

T = TypeVar("T")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """How a page's commands are tested. The keys of `left`, `ends` and `keeps` are beginnings of commands."""

    by: tuple[str, ...] = ()  # tests that follow the page; without them, test_pages_run.py types it
    commands: int | None = None  # how many the page had when these tests were written
    typed: tuple[str, ...] = ()  # with `by`: beginnings of the commands that test_pages_run.py types
    left: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # the reason, then tests that run its like
    ends: Mapping[str, int] = field(default_factory=dict)  # exit codes other than 0
    keeps: Mapping[str, str] = field(default_factory=dict)  # what a command says when it has begun, which goes on

    def types(self, text: str) -> bool:
        """Whether test_pages_run.py types a command."""
        return (not self.by or text.startswith(self.typed or "\n")) and self.row(self.left, text) is None

    @staticmethod
    def row(rows: Mapping[str, T], text: str) -> T | None:
        """The value of the longest beginning that the command has."""
        found = [beginning for beginning in rows if text.startswith(beginning)]
        return rows[max(found, key=len)] if found else None


def _read(table: Mapping[str, object]) -> Page:
    lists = {name: tuple(value) if isinstance(value, list) else value for name, value in table.items()}
    if isinstance(left := lists.get("left"), dict):
        lists["left"] = {beginning: tuple(row) for beginning, row in left.items()}
    return Page(**lists)  # type: ignore[arg-type]


TABLE = {name: _read(table) for name, table in tomllib.loads(
    (Path(__file__).parent / "commands.toml").read_text()).items()}
COMMANDS: dict[str, list[Line]] = {str(page.relative_to(ROOT)): [*lines(page)] for page in DOCUMENTS}
PAGES = {name: TABLE.get(name, Page()) for name, found in COMMANDS.items() if found}


def test_rows_are_of_pages_that_are_there() -> None:
    """A page without a row is typed as it stands."""
    assert [] == sorted(TABLE.keys() - PAGES.keys())


@pytest.mark.parametrize("name", PAGES)
def test_each_row_begins_a_command_of_its_page(name: str) -> None:
    """What is left over from an older page would excuse a newer command."""
    page, texts = PAGES[name], [line.text for line in COMMANDS[name]]
    rows = [*page.left, *page.ends, *page.keeps, *page.typed]
    assert [] == [row for row in rows if not any(text.startswith(row) for text in texts)]
    assert bool(page.by) == bool(page.commands)
    assert page.by or not page.typed


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.by])
def test_a_page_that_a_test_follows_has_the_commands_that_the_test_knows(name: str) -> None:
    """The tests name the page. One more command has to be taken by them, then counted in the table."""
    page = PAGES[name]
    for each in page.by:
        assert Path(name).name in (ROOT / each).read_text(), each
    places = [f"{line.place} {line.text}" for line in COMMANDS[name]]
    assert page.commands == len(places), "\n".join(places)


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.left])
def test_what_is_not_typed_is_run_elsewhere(name: str) -> None:
    """A row has a reason. Where its verb is one of ours, it has tests that give the verb and each of the options, or
    pages that give them and that a test follows."""
    for line in COMMANDS[name]:
        row = PAGES[name].row(PAGES[name].left, line.text)
        if row is None:
            continue
        reason, *tests = row
        assert reason, line.place
        assert all(each.startswith("tests/") or TABLE[each].by for each in tests), line.place
        said = "\n".join((ROOT / each).read_text() for each in tests)
        for words in line.commands():
            if tests and words[0] in ("appliance", ".venv/bin/appliance"):
                told = [words[1], *(word.partition("=")[0] for word in words if word.startswith("--"))]
                assert [] == [word for word in told if word not in said], f"{line.place}: {tests}"
            elif words[0] in ("appliance", ".venv/bin/appliance"):
                assert reason.startswith("nobody"), f"{line.place}: a verb of ours needs a test"


def test_no_command_hides_in_a_block_of_another_kind() -> None:
    """Only blocks `sh` and `console` that begin in the first column are read. A synopsis is `text`."""
    found = []
    for page in DOCUMENTS:
        text = page.read_text()
        for block in _FENCE.finditer(text):
            read = block[2] in ("sh", "console") and not block[1]
            if read or block[2] in ("text", "hcl", "toml", "python", "json"):
                continue
            if re.search(r"^ *(\$ )?(\.venv/bin/)?(appliance [a-z]|python3? -|curl |make [a-z]|openssl )", block[3],
                         re.MULTILINE):
                found.append(f"{page.relative_to(ROOT)}:{text.count(chr(10), 0, block.start()) + 1}")
    assert [] == found
