"""A text in its plainest spelling: compatible characters in one form (NFKC, one by one), every
decimal digit as 0 to 9, every dash and space alike, and nothing where a character has no width.

A character folds without its neighbours, so the folded pieces of a text are the folded text.
"""

from __future__ import annotations

import functools
import unicodedata
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

_INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # without width, though not of the category Cf


@functools.lru_cache(1 << 14)
def _folded(character: str) -> str:
    digit = unicodedata.decimal(character, None)
    category = unicodedata.category(character)
    if digit is not None:
        return str(digit)
    if category == "Cf" or character in _INVISIBLE or 0xFE00 <= ord(character) <= 0xFE0F:
        return ""
    if category == "Pd" or character == "\u2212":
        return "-"
    plain = unicodedata.normalize("NFKC", character)
    return " " if category == "Zs" else plain if len(plain) == 1 else "".join(map(_part, plain))


def _part(character: str) -> str:
    return " " if unicodedata.category(character) == "Zs" else character


class Folded:
    """A folded text, and where each of its characters comes from."""

    def __init__(self, text: str) -> None:
        self.source, self.text = text, text
        self._origins: NDArray[np.int64] | None = None
        if not text.isascii():
            parts = list(map(_folded, text))
            self.text = "".join(parts)
            if any(len(part) != 1 for part in parts):
                self._origins = np.fromiter(
                    chain.from_iterable(repeat(place, len(part)) for place, part in enumerate(parts)), np.int64)

    def origin(self, place: int) -> int:
        """Return where the character at a place of the folded text begins in the source."""
        if place >= len(self.text):
            return len(self.source)
        return place if self._origins is None else int(self._origins[place])

    def end(self, place: int) -> int:
        """Return where the character before a place of the folded text ends in the source."""
        return self.origin(place - 1) + 1

    def whole(self, place: int) -> int:
        """Return a place, or the nearest before it, where a character of the source begins."""
        while 0 < place < len(self.text) and self.origin(place - 1) == self.origin(place):
            place -= 1
        return place
