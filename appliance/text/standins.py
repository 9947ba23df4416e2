"""Stand-ins: characters in the place of texts that nothing in Python is to read.

A caller's texts become bytes of a locked memory (`oblivious.contents`). Where they stood in the
request, one character of a private use stands for each. A chat template writes them into a prompt
like any text. What it asks about such a text is answered without it, and checked afterwards: a
word that it looks for must not be in there. Whatever else it wants of it ends in `TextNeeded`, and
the prompt is made anew with the texts.

A stand-in is never empty, and has no white space at its ends.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

FIRST = 0xE000
MOST = 0x1900
"""The characters from U+E000 to U+F8FF: they are nobody's (the Unicode Standard, section 23.5)."""

_ANY = re.compile(f"[{chr(FIRST)}-{chr(FIRST + MOST - 1)}]")
_LONGEST = 256  # characters of a word that may be looked for
BLANKS = frozenset(" \t\n\v\f\r\x1c\x1d\x1e\x1f")
"""White space that is at no end of a text: it stays around its stand-in."""


Span = tuple[int, int]
Fill = tuple[int, memoryview]
"""Where bytes stand, from the beginning of a text, and these bytes."""


class TextNeeded(Exception):  # noqa: N818 - no error: the texts are put in then
    """A text itself is needed."""


class StandIns(ABC):
    """The texts of one request by their stand-ins."""

    def __init__(self) -> None:
        self.sought: set[str] = set()
        """Words that were looked for in texts, and taken as absent."""

    @abstractmethod
    def bytes_of(self, number: int) -> memoryview:
        """The text in UTF-8 that the stand-in of this number stands for."""

    @abstractmethod
    def settle(self) -> None:
        """Raise TextNeeded where a word that was looked for is in a text."""

    def lift(self, text: str) -> str:
        """A text with others in the place of their stand-ins."""
        return _ANY.sub(lambda found: str(self.bytes_of(ord(found[0]) - FIRST), "utf-8"), text)

    def fill(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span], list[Fill]]:
        """A text in which each stand-in has as many bytes as what it stands for, the spans in it,
        and these bytes."""
        places, fills, done, parts, at = list[int](), list[Fill](), 0, list[str](), 0
        for found in _ANY.finditer(text):
            data = self.bytes_of(ord(found[0]) - FIRST)
            before = text[at:found.start()]
            parts += [before, "\1" * len(data)]
            fills.append((done + len(before.encode()), data))
            done, at = fills[-1][0] + len(data), found.end()
            places.append(found.start())
        more = [0, *accumulate(len(data) - 1 for _, data in fills)]

        def moved(place: int) -> int:
            return place + more[bisect_left(places, place)]

        return "".join([*parts, text[at:]]), [(moved(start), moved(end)) for start, end in spans], fills

    def need(self, *values: Any) -> None:
        """Raise TextNeeded where a stand-in is in one of the values."""
        if any(map(holds, values)):
            raise TextNeeded

    def seek(self, text: str, word: str) -> None:
        """Take note that a word is looked for. TextNeeded where it may lie across the border of a
        text, or is one."""
        self.need(word)
        pieces = _ANY.split(text)
        if len(pieces) == 1 or not word:
            return
        if len(word) > _LONGEST or (len(word) > 1 and "" in pieces[1:-1]):
            raise TextNeeded
        for size in range(1, len(word)):
            if any(piece.endswith(word[:size]) for piece in pieces[:-1]) or any(
                    piece.startswith(word[size:]) for piece in pieces[1:]):
                raise TextNeeded
        self.sought.add(word)


def holds(value: Any) -> bool:
    """Whether a stand-in is anywhere in a value."""
    if isinstance(value, str):
        return _ANY.search(value) is not None
    if isinstance(value, dict):
        return any(holds(name) or holds(item) for name, item in value.items())
    return isinstance(value, list | tuple) and any(map(holds, value))
