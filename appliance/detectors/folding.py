"""A text in its plainest spelling: compatible characters in one form (NFKC, one by one), every
decimal digit as 0 to 9, every dash and space alike, and nothing where a character has no width.

A character folds without its neighbours, so the folded pieces of a text are the folded text.
"""

from __future__ import annotations

import functools
import sys
import unicodedata
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from appliance.matching import Points, points

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


def changed_by_folding() -> dict[int, str]:
    """Return what each code point folds to that does not fold to itself. It takes a third of a
    second."""
    every = ((point, chr(point)) for point in range(sys.maxunicode + 1))
    return {point: folded for point, each in every if (folded := _folded.__wrapped__(each)) != each}


class Folded:
    """A folded text, and where each of its characters comes from. It grows at its end, so that a
    piece is folded once."""

    def __init__(self, text: str = "") -> None:
        self.source = self.text = ""
        self._codes: Points | None = None  # of the text; None: not asked for
        self._origins: NDArray[np.int64] | None = None  # None: each character comes from its own place
        self.extend(text)

    @property
    def codes(self) -> Points:
        """The code points of the folded text."""
        if self._codes is None:
            self._codes = points(self.text)
        return self._codes

    def extend(self, piece: str) -> None:
        """Append a piece of the source."""
        plain = piece.isascii()
        if plain and self._origins is None:
            self.source, self.text, self._codes = self.source + piece, self.text + piece, None
            return
        parts = [piece] if plain else list(map(_folded, piece))
        plain = plain or all(len(part) == 1 for part in parts)
        if self._origins is None and not plain:
            self._origins = np.arange(len(self.text))
        if self._origins is not None:
            places = range(len(self.source), len(self.source) + len(piece))
            each = places if plain else chain.from_iterable(map(repeat, places, map(len, parts)))
            self._origins = np.concatenate([self._origins, np.fromiter(each, np.int64)])
        self.source, self._codes = self.source + piece, None
        self.text += "".join(parts)

    def drop(self, place: int) -> int:
        """Forget the text before a place. Returns how many characters of the source it had."""
        gone = self.origin(place)
        self.source, self.text, self._codes = self.source[gone:], self.text[place:], None
        if self._origins is not None:
            self._origins = self._origins[place:] - gone
            if np.array_equal(self._origins, np.arange(len(self.source))):
                self._origins = None
        return gone

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
