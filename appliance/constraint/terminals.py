"""Literals of a grammar that is read character by character, cut into terminals.

llguidance takes the longest terminal that goes on. A literal as one terminal is therefore read as
its characters are, wherever no terminal of the grammar begins another one. So literals are cut just
where another terminal could end within them:

    "a" | "abc"       a, bc           a literal that begins another one is cut off
    [a-f] | "abcxyz"  a, b, c, xyz    so is each character that stands alone somewhere, or in a class

Then no terminal begins another, and within one there is one way to go on. So long ones are cut once
more, each after as many characters.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection

from appliance.constraint import size
from appliance.constraint.schema.dialects import Ranges, union

ROUNDS = 16  # of cuts, each of which may ask for more; after so many all literals are cut into characters
LONGEST = 128  # characters of a terminal

Pieces = dict[str, list[str]]
"""Each literal, and the terminals that it is cut into."""


def cut(literals: Collection[str], classes: Ranges) -> Pieces:
    """Cut literals, of which none is empty, beside terminals for one character of `classes`."""
    pieces = {text: [text] for text in literals}
    for _ in range(ROUNDS):
        known = {piece for some in pieces.values() for piece in some}
        alone = union(classes, tuple((ord(piece), ord(piece)) for piece in known if len(piece) == 1))
        parts = {piece: _parted(piece, alone) for piece in known if len(piece) > 1}
        if all(len(some) == 1 for some in parts.values()):
            parts = _without_beginnings(parts)
        if all(len(some) == 1 for some in parts.values()) or sum(map(len, pieces.values())) > size.MOST:
            return {text: [part for piece in some for part in _shortened(piece)] for text, some in pieces.items()}
        pieces = {text: [part for piece in some for part in parts.get(piece, [piece])]
                  for text, some in pieces.items()}
    return {text: list(text) for text in literals}


def _shortened(piece: str) -> list[str]:
    return [piece[at:at + LONGEST] for at in range(0, len(piece), LONGEST)]


def _parted(piece: str, alone: Ranges) -> list[str]:
    """A piece without the characters at its begin that are terminals of their own, and these."""
    firsts = [first for first, _ in alone]
    for at, character in enumerate(piece):
        place = bisect_right(firsts, ord(character)) - 1
        if place < 0 or ord(character) > alone[place][1]:
            return [*piece[:at], piece[at:]]
    return list(piece)


def _without_beginnings(parts: Collection[str]) -> Pieces:
    """Cut off pieces that begin others."""
    found: Pieces = {}
    beginning = ""
    for piece in sorted(parts):  # what begins with a piece follows it
        if beginning and piece.startswith(beginning):
            times = 1
            while piece.startswith(beginning, times * len(beginning)):
                times += 1
            rest = piece[times * len(beginning):]
            found[piece] = [beginning] * times + ([rest] if rest else [])
        else:
            beginning, found[piece] = piece, [piece]
    return found
