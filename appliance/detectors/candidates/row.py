"""A detector: an expression of the bounded subset that finds candidates in folded text, and a
function that judges them.

A candidate holds all that its judgement depends on: its own text, and `CONTEXT` characters before
and after. So a judgement is the same however the text arrives: where it asks for text that has not
come, the candidate is open, and is judged again later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from appliance.detectors.candidates import context

CONTEXT = 64  # characters before a candidate, and after it, that are looked at
DIGITS = "0123456789"
SKELETON = str.maketrans("123456789x", "000000000X")

Span = tuple[int, int]


@dataclass
class Candidate:
    """Folded text up to the end of a candidate, and what follows."""

    text: str  # at most `CONTEXT` characters, then the candidate
    start: int  # where the candidate begins
    after: str = ""  # at most `CONTEXT` characters behind the candidate
    last: bool = True  # whether no more text comes after these
    open: bool = False  # whether its judgement asked for text that has not come

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

    def nearest(self, words: context.ContextWords, place: int) -> int:
        """Return 1 if one of these words stands nearest before a place, -1 if a word against it
        does, 0 if neither stands there."""
        return words.before(self.text[max(0, place - CONTEXT):place])[0]

    def holds(self, words: context.ContextWords, start: int, end: int, *, alone: bool, least: int = 0) -> bool:
        """Whether words speak for what stands from `start` to `end`, or, where it may stand alone,
        none against it. A word after it counts where none stands nearer before it. `least`: the
        first place that is looked at."""
        sign, gap = words.before(self.text[max(least, start - CONTEXT):start])
        if sign > 0 or (sign == 0 and alone):
            return True
        follows = self.text[end:] + self.after
        part, settled = context.following(follows[:CONTEXT])
        self.open |= not (settled or self.last or len(follows) >= CONTEXT)
        return words.after(part, gap if sign else CONTEXT)


Find = Callable[[Candidate], Iterable[Span]]
"""Places in the candidate's text that are hits, from left to right."""


@dataclass(frozen=True)
class Detector:
    """One detector. The rows of one name find different forms of one thing."""

    name: str
    expression: str
    find: Find
    needs: str = DIGITS  # each hit's candidate has one of these characters; empty: not known
    least: int = 1  # how many of these each candidate has at least
    lead: int = 0  # characters of a candidate before the first of these, at most; 0: not known
    heads: tuple[str, ...] = ()  # each candidate begins with one of these, in small letters; empty: not known
    openings: tuple[str, ...] = ()  # how those of several words begin, with the space
    wakes: str = ""  # a word, with " .-" behind it, that has none of these is no more than a candidate's beginning
    opening: str = ""  # an expression for a candidate, or its beginning, at a text's end; empty: not known
    group: str = ""  # another name, which chooses several detectors

    @property
    def replacement(self) -> str:
        """The text that stands in for a hit."""
        return f"[{self.name}]"
