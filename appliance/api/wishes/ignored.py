"""The parts of a request without effect, and the header that names them to the caller.

Names are the caller's, and hostile: the header has printable ASCII alone, with the escapes of JSON
for all else, and is bounded in names and in their length. No log has them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

HEADER = "appliance-ignored"
MOST, LONGEST = 64, 80  # names in the header; characters of each
WHOLE = 2048  # characters of all: proxies take heads of a few KiB
MORE = "..."  # stands for further names, and for the rest of a long one

Path = tuple[str | int, ...]

_PLAIN = re.compile(r"[!#-+\-/-\[\]-~]")  # printable ASCII without space, quotes, comma, point and backslash


@dataclass
class Ignored:
    """Collects what has no effect in one request. `strict`: the policy wants it refused."""

    strict: bool = False
    paths: list[Path] = field(default_factory=list)
    more: bool = False  # there were more than are kept
    faults: list[tuple[str, str | None]] = field(default_factory=list)  # refused paths, and `words` of `note`

    def note(self, path: Path, words: str | None = None, *, idle: bool = False) -> None:
        """Take note of a part of the request by its path in it. `words`: of its refusal; None: this
        service does not know its name. `idle`: it is never refused."""
        if path in self.paths:
            return
        if len(self.paths) >= MOST:
            self.more = True
            return
        self.paths.append(path)
        if self.strict and not idle:
            self.faults.append((".".join(map(str, path))[:200], words))

    def headers(self) -> dict[str, str]:
        """Return the header that names them; none where all had an effect."""
        if not self.paths:
            return {}
        names, length = list[str](), 0
        for name in map(path_text, self.paths):
            length += len(name) + 2
            if length > WHOLE:
                break
            names.append(name)
        more = self.more or len(names) < len(self.paths)
        return {HEADER: ", ".join([*names, *([MORE] if more else ())])}


def path_text(path: Path) -> str:
    """Return a path in printable ASCII: `tools.4`. A point, a comma or a space in a name is an
    escape; an empty name is two quotes."""
    pieces: list[str] = []
    for step in path:
        pieces += ["."] if pieces else []
        pieces += _pieces(str(step)[:LONGEST]) if step != "" else ['""']
    text, length = list[str](), 0
    for piece in pieces:
        length += len(piece)
        if length > LONGEST:
            return "".join(text) + MORE
        text.append(piece)
    return "".join(text)


def _pieces(step: str) -> Iterable[str]:
    """Return a name in pieces that must not be cut: a character, or the escape for it."""
    for character in step:
        if _PLAIN.fullmatch(character):
            yield character
        elif character.isascii():
            yield f"\\u{ord(character):04x}"
        else:
            yield json.dumps(character)[1:-1]
