"""A detector: an expression of the bounded subset that finds candidates in folded text, and a
function that judges them.

A candidate holds all that its judgement depends on: its own text and `CONTEXT` characters before.
So a judgement is the same however the text arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from appliance.detectors.candidates import context

CONTEXT = 64  # characters before a candidate that are looked at
DIGITS = "0123456789"
SKELETON = str.maketrans("123456789x", "000000000X")

Span = tuple[int, int]


@dataclass(frozen=True)
class Candidate:
    """Folded text up to the end of a candidate."""

    text: str  # at most `CONTEXT` characters, then the candidate
    start: int  # where the candidate begins

    @cached_property
    def own(self) -> str:
        """The candidate itself."""
        return self.text[self.start:]

    @cached_property
    def shape(self) -> str:
        """The text with 0 for each digit, and a capital X."""
        return self.text.translate(SKELETON)

    @cached_property
    def starts(self) -> list[int]:
        """Where groups of digits in the candidate begin."""
        shape = self.shape
        return [place for place in range(self.start, len(shape))
                if shape[place] == "0" and shape[place - 1:place] != "0"]

    def before(self, place: int) -> str:
        """Return the character before a place; a space where there is none."""
        return self.text[place - 1] if place else " "

    def nearest(self, words: context.ContextWords, place: int | None = None) -> int:
        """Return 1 if one of these words stands nearest before a place, -1 if a word against it
        does, 0 if neither stands there."""
        end = self.start if place is None else place
        return words.nearest(self.text[max(0, end - CONTEXT):end])


Find = Callable[[Candidate], Iterable[Span]]
"""Places in the candidate's text that are hits, from left to right."""


@dataclass(frozen=True)
class Detector:
    """One detector. The rows of one name find different forms of one thing."""

    name: str
    expression: str
    find: Find
    needs: str = DIGITS  # each match of the expression has one of these characters; empty: not known
    group: str = ""  # another name, which chooses several detectors

    @property
    def replacement(self) -> str:
        """The text that stands in for a hit."""
        return f"[{self.name}]"
