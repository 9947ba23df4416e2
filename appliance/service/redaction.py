"""Redaction: regular expressions over text, streamed so that the parts add up to the redacted whole.

The promise is exact: for any way of cutting a text into pieces, the pieces that `Redactor.feed` and `finish`
return, joined, equal `redact(text)`, and no character leaves before it is certain that it belongs to no match.

What is certain? A rule's expression P is compiled a second time as "P, then the end of the text, then one more
character": this never matches, but the `regex` package reports a *partial* match of it exactly where some path
through P runs into the end of the text. Before the first such place nothing that may still come can change what
P matches; from there on the text is held back. An expression that looks ahead or anchors at the end of the text
can change its mind about text that no path runs into: its rule holds all text back to the end, as does one
that can always grow (`.*`). The policy's generation limit bounds how much is held.

Matching stops after a time, so that a hostile text cannot burn the CPU with a careless expression. A rule that
runs out of time fails the request: the text does not go out unredacted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import regex

from appliance.service.problems import RequestError

MATCH_SECONDS = 0.25

# What may stand in an expression that is matched while the text still grows: groups, names, flags that change no
# search order, look-behind. Not: look-ahead, verbose, end anchors, \K and \G, recursion, fuzzy and POSIX matching.
_ANCHOR = regex.compile(r"(?<!\\)(?:\\\\)*(?:\$|\\[ZzKG])")
_GROUP = regex.compile(r"\(\?(?!:|P?<[A-Za-z_]|<[=!]|P=|[aimsuw]+[:)])")


@dataclass(frozen=True)
class Rule:
    """One expression of the policy and the literal text that stands in for its matches.

    `undecided` finds where text that is still to come may matter; None when that may be anywhere.
    """

    name: str
    pattern: regex.Pattern[str]
    undecided: regex.Pattern[str] | None
    replacement: str

    @classmethod
    def compile(cls, name: str, expression: str, replacement: str) -> Rule:
        """A rule from the policy's text; `regex.error` when the expression is malformed."""
        pattern = regex.compile(expression)
        held = _ANCHOR.search(expression) or _GROUP.search(expression)
        undecided = None if held else regex.compile(rf"(?:{expression})\Z(?s:.)")
        return cls(name, pattern, undecided, replacement)


def redact(rules: Iterable[Rule], text: str) -> str:
    """The whole text with each rule applied in the order of the policy."""
    for rule in rules:
        stage = _Stage(rule)
        text = stage.feed(text) + stage.finish()
    return text


class Redactor:
    """A chain of rules over one text that arrives in pieces."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._stages = [_Stage(rule) for rule in rules]

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now certain."""
        for stage in self._stages:
            piece = stage.feed(piece)
        return piece

    def finish(self) -> str:
        """The text held back, now that no more comes."""
        piece = ""
        for stage in self._stages:
            piece = stage.feed(piece) + stage.finish()
        return piece


class _Stage:
    """One rule. Text before `_done` is settled; it stays as context for look-behind and word boundaries."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._text = ""
        self._done = 0

    def feed(self, piece: str) -> str:
        if not piece:
            return ""
        self._text += piece
        return self._advance(final=False)

    def finish(self) -> str:
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        """Settle as much as is certain: text up to a match, its replacement, and so on."""
        out: list[str] = []
        position = self._done
        while position <= len(self._text):
            bound = len(self._text) if final else self._bound(position)
            match = self._search(self._rule.pattern, position)
            if match is None or match.start() >= bound:
                out.append(self._settle(bound))
                break
            if match.end() == match.start():  # empty: nothing to replace
                position = match.end() + 1
                continue
            out += [self._settle(match.start()), self._rule.replacement]
            self._done = position = match.end()
        return "".join(out)

    def _bound(self, position: int) -> int:
        """Where text to come may begin to matter."""
        if self._rule.undecided is None:
            return self._done
        match = self._search(self._rule.undecided, position, partial=True)
        return len(self._text) if match is None else match.start()

    def _settle(self, end: int) -> str:
        text, self._done = self._text[self._done:end], max(self._done, end)
        return text

    def _search(self, pattern: regex.Pattern[str], start: int, *, partial: bool = False,
                ) -> regex.Match[str] | None:
        try:
            return pattern.search(self._text, pos=start, partial=partial, timeout=MATCH_SECONDS)
        except TimeoutError:
            raise RequestError("redaction_failed") from None
