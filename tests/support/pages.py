"""The commands in the pages of the documentation, as a reader would type them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROMPT = "$ "  # before each command in a block of the kind `console`; other lines are what it prints
_BLOCK = re.compile(r"^```(sh|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "(", ")"}


@dataclass(frozen=True)
class Line:
    """One command line of a page: its text as it stands there, and the line where it begins."""

    page: Path
    number: int
    text: str

    @property
    def place(self) -> str:
        """The page and the line, as editors take them."""
        return f"{self.page.relative_to(ROOT)}:{self.number}"

    def commands(self) -> Iterator[list[str]]:
        """The words of each simple command in it, without redirections."""
        lexer = shlex.shlex(self.text, posix=True, punctuation_chars=True)
        lexer.commenters, lexer.whitespace_split = "#", True
        words: list[str] = []
        skip = False
        for word in [*lexer, ";"]:
            if skip:  # the file of a redirection
                skip = False
            elif word in (">", ">>", "<"):
                skip = True
            elif word in _ENDS or set(word) <= set("|&;<>()"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


def lines(page: Path) -> Iterator[Line]:
    """Every command line in the shell blocks of a page; a line that goes on with a backslash is one
    with the next."""
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(2)) + 1
        held, begun = "", 0
        for number, line in enumerate(_typed(block), first):
            begun = begun if held else number
            held += line.removesuffix("\\").strip() + " " if line.endswith("\\") else line.strip()
            if line.endswith("\\"):
                continue
            if held and not held.startswith("#"):
                yield Line(page, begun, held)
            held = ""


def _typed(block: re.Match[str]) -> Iterator[str]:
    """Each line of a block; an empty one for what a command printed."""
    goes_on = False
    for line in block[2].splitlines():
        shown = block[1] == "sh" or goes_on or line.startswith(PROMPT)
        yield line.removeprefix(PROMPT) if shown else ""
        goes_on = shown and line.endswith("\\")
