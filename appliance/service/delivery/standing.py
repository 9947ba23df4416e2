"""Redaction of a text in which characters stand for others (`oblivious.answers`).

Where no rule's expression matches, redaction changes nothing, and a look finds that without a text
of Python's (`detectors.looks`). From the first match on, a text is redacted as any other is: all of
it is read again, and what has left is left out.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from appliance.detectors.looks import Looks
from appliance.oblivious import AnswerTexts
from appliance.service.admission.redaction import QUICK, Redactor, Rule, redact


@dataclass(frozen=True)
class Standing:
    """Rules, looks and texts of one answer."""

    rules: Sequence[Rule]
    looks: Looks
    texts: AnswerTexts

    def lift(self, text: str) -> str:
        """A text with others in the place of their stand-ins."""
        memory, sizes = self.texts.copy(text)
        with contextlib.closing(memory):
            return str(memory.view[:sum(sizes)], "utf-8")

    def guarded(self, text: str) -> str:
        """A redacted text, in which no character stands for another that it is not."""
        with self.texts.writer.turn:
            return self.texts.guarded(text)

    def redact(self, text: str) -> str:
        """A whole text with each rule applied."""
        return self.guarded(redact(self.rules, self.lift(text)))


class StandingRedactor:
    """A chain of rules over one text that arrives in pieces."""

    def __init__(self, standing: Standing, *, lifted: bool = False) -> None:
        """`lifted`: the text is Python's from its beginning on."""
        self._standing, self._text, self._left, self._skip = standing, "", 0, 0
        self._redactor = Redactor(standing.rules) if lifted else None

    def quick(self, piece: str) -> bool:
        """Return whether the next piece takes about a millisecond at most."""
        if self._redactor is not None:
            return self._redactor.quick(self._standing.lift(piece))
        held = self._standing.texts.length(self._text[self._left:] + piece)
        return self._standing.looks.work(held) <= QUICK

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now certain."""
        return self._next(piece, final=False) if piece else ""

    def finish(self) -> str:
        """Return the text held back, now that no more comes."""
        return self._next("", final=True)

    def _next(self, piece: str, *, final: bool) -> str:
        if self._redactor is None:
            self._text += piece
            found = self._certain(final=final)
            if found is not None:
                return found
            self._redactor, piece, self._text = Redactor(self._standing.rules), self._text, ""
        told = self._redactor.feed(self._standing.lift(piece)) + (self._redactor.finish() if final else "")
        told, self._skip = told[self._skip:], max(self._skip - len(told), 0)
        return self._standing.guarded(told)

    def _certain(self, *, final: bool) -> str | None:
        """The text that may leave, as it came; None where a rule may change some."""
        first = max(self._left - 1, 0)  # no expression looks further back
        memory, sizes = self._standing.texts.copy(self._text[first:])
        ends = list(accumulate(sizes, initial=0))
        with contextlib.closing(memory):
            text = memory.view[:ends[-1]]
            begun = np.cumsum(np.frombuffer(text, np.uint8) & 0xC0 != 0x80)  # characters of UTF-8
            places = [int(begun[end - 1]) if end else 0 for end in ends]
            bound = self._standing.looks.settled(text, places[self._left - first], final=final)
        if bound is None:
            return None
        end = max(first + bisect_right(places, bound) - 1, self._left)
        leaving = self._text[self._left:end]
        self._skip += places[end - first] - places[self._left - first]
        self._left = end
        return leaving
