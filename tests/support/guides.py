"""The pages of the documentation as scripts: their fenced blocks, and the commands in them, one by one."""

from __future__ import annotations

import re
from pathlib import Path

GUIDES = Path(__file__).parents[2] / "docs/guides"
_BLOCK = re.compile(r"^```([a-z]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: str, kind: str) -> list[str]:
    """The blocks of a kind (`sh`, `hcl`, `toml`, `json`) on a page, in order."""
    return [text for found, text in _BLOCK.findall((GUIDES / page).read_text()) if found == kind]


def commands(page: str) -> list[str]:
    """The command lines on a page, in order: a backslash goes on with the next line, a comment is left out."""
    lines = "\n".join(blocks(page, "sh")).replace("\\\n", " ").splitlines()
    found = [re.sub(r"\s+#\s.*$", "", line).strip() for line in lines]
    return [re.sub(r"\s+", " ", line) for line in found if line]


def section(page: str, begin: str, end: str) -> list[str]:
    """The command lines from the line that begins with `begin` to the line before `end` begins."""
    found = commands(page)
    first = next(index for index, line in enumerate(found) if line.startswith(begin))
    last = next((index for index, line in enumerate(found) if index > first and line.startswith(end)), len(found))
    return found[first:last]
