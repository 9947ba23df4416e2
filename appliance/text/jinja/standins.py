"""Stand-ins: characters in the place of texts that nothing in Python reads.

The texts of a request lie in locked memory (`oblivious.contents`). In the request, a character for
private use stands for each of them. A chat template writes it into a prompt as it writes any text.
A template may look for a word in a text. The answer is that the word is absent, and kernels check
this afterwards. All other questions about a text raise `TextNeeded`, and the prompt is made anew
with the texts themselves.

No text is empty, and none has white space at its ends.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any

FIRST = 0xE000
MOST = 0x1900
"""The characters from U+E000 to U+F8FF, for private use (the Unicode Standard, section 23.5)."""

_ANY = re.compile(f"[{chr(FIRST)}-{chr(FIRST + MOST - 1)}]")
_LONGEST = 256  # characters of a word that may be looked for
_PIECES = 64  # of a text that it may be looked for in
BLANKS = frozenset(" \t\n\v\f\r\x1c\x1d\x1e\x1f")
"""White space that stays around a stand-in."""


Span = tuple[int, int]
Fill = tuple[int, memoryview]
"""The place of bytes in a text, and the bytes."""


class TextNeeded(Exception):  # noqa: N818 - the texts are put in then
    """Somebody has to read a text itself."""


class StandIns(ABC):
    """The texts of one request by their stand-ins."""

    def __init__(self) -> None:
        self.sought: set[str] = set()
        """Words that templates looked for. They were taken as absent."""

    @abstractmethod
    def bytes_of(self, number: int) -> memoryview:
        """The text of the stand-in with this number, in UTF-8."""

    @abstractmethod
    def settle(self) -> None:
        """Raise TextNeeded where a text has a word that a template looked for."""

    def lift(self, text: str) -> str:
        """A text with others in the place of their stand-ins."""
        return _ANY.sub(lambda found: str(self.bytes_of(ord(found[0]) - FIRST), "utf-8"), text)

    def parts_of(self, text: str) -> list[bytes | memoryview]:
        """A text in UTF-8, with others in the place of their stand-ins, in parts."""
        own = [self.bytes_of(ord(each) - FIRST) for each in _ANY.findall(text)]
        between = [each.encode() for each in _ANY.split(text)]
        return [between[0], *chain.from_iterable(zip(own, between[1:], strict=True))]

    def fill(self, text: str, spans: Sequence[Span]) -> tuple[str, list[Span], list[Fill]]:
        """A text with as many bytes in the place of each stand-in as its own text has, the spans in
        it, and the bytes to put there."""
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
        """Raise TextNeeded where one of the values has a stand-in."""
        if any(map(holds, values)):
            raise TextNeeded

    def seek(self, text: str, word: str) -> None:
        """Take note that a template looks for a word. TextNeeded where the word may lie across the
        border of a text, or has a stand-in."""
        self.need(word)
        pieces = _ANY.split(text)
        if len(pieces) == 1 or not word:
            return
        if len(word) > _LONGEST or len(pieces) > _PIECES or (len(word) > 1 and "" in pieces[1:-1]):
            raise TextNeeded
        for size in range(1, len(word)):
            if any(piece.endswith(word[:size]) for piece in pieces[:-1]) or any(
                    piece.startswith(word[size:]) for piece in pieces[1:]):
                raise TextNeeded
        self.sought.add(word)


def holds(value: Any) -> bool:
    """Whether a value has a stand-in. A list may hold another one many times over: each is gone
    through once."""
    left, seen = [value], set[int]()
    while left:
        each = left.pop()
        if isinstance(each, str):
            if _ANY.search(each) is not None:
                return True
        elif isinstance(each, dict | list | tuple) and id(each) not in seen:
            seen.add(id(each))
            left += [*each, *each.values()] if isinstance(each, dict) else each
    return False
