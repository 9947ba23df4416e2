"""Redaction: regular expressions over text, streamed so that the parts add up to the redacted whole.

The promise is exact: for any way of cutting a text into pieces, the pieces that `Redactor.feed` and `finish`
return, joined, equal `redact(text)`, and no character leaves before it is certain that it belongs to no match.

What is certain? From each expression a second one is made, in which the end of the text stands in for anything
that is still to come: it matches exactly where some path through the first runs into the end. Before the first
such place nothing that may still come can change what the expression matches; from there on the text is held back.
The policy's subset of expressions (policy/patterns.py) bounds both how much that is and how long matching takes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

from appliance.policy.patterns import bounds

_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s", op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W",
}
_PLACES = {
    op.AT_BEGINNING: "^", op.AT_BEGINNING_STRING: r"\A", op.AT_BOUNDARY: r"\b", op.AT_NON_BOUNDARY: r"\B",
    op.AT_END: "$", op.AT_END_STRING: r"\Z",
}
_SETTLED = 16  # characters that are let go of together
_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


@dataclass(frozen=True)
class Rule:
    """One expression of the policy and the literal text that stands in for its matches.

    `undecided` matches where text that is still to come may matter.
    """

    name: str
    pattern: re.Pattern[str]
    undecided: re.Pattern[str]
    replacement: str

    @classmethod
    def compile(cls, name: str, expression: str, replacement: str) -> Rule:
        """A rule from the policy's text; `Refused` (policy.kinds) for an expression outside of the subset."""
        bounds(expression)
        tree = parser.parse(expression)
        undecided = re.compile(_open_ended(tree) + r"\Z", tree.state.flags & ~re.UNICODE)
        return cls(name, re.compile(expression), undecided, replacement)


def redact(rules: Iterable[Rule], text: str) -> str:
    """The whole text with each rule applied in the order of the policy."""
    for rule in rules:
        text = rule.pattern.sub(lambda _match, literal=rule.replacement: literal, text)  # type: ignore[misc]
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
    """One rule. Text before `_done` is settled; the end of it stays as context for word boundaries."""

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
        while True:
            bound = len(self._text) if final else self._bound()
            match = self._rule.pattern.search(self._text, self._done)
            if match is None or match.start() >= bound:
                out.append(self._text[self._done:bound])
                self._done = bound
                self._forget()
                return "".join(out)
            out += [self._text[self._done:match.start()], self._rule.replacement]
            self._done = match.end()

    def _forget(self) -> None:
        """Let go of text that is settled, but for a character: no expression looks further back, nor sees from there
        where the text begins."""
        if self._done > _SETTLED:
            self._text, self._done = self._text[self._done - 1:], 1

    def _bound(self) -> int:
        """Where text to come begins to matter; the end of the text at the latest."""
        match = self._rule.undecided.search(self._text, self._done)
        return len(self._text) if match is None else match.start()


def _open_ended(nodes: Iterable[Any]) -> str:
    """An expression for the same paths, in which every step may also be the end of the text."""
    return "".join(_node(code, value) for code, value in nodes)


def _node(code: Any, value: Any) -> str:
    if code in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, body = value
        return f"(?:{_open_ended(body)}){{{low},{high}}}"
    if code is op.SUBPATTERN:
        _group, add, remove, body = value
        on = "".join(letter for flag, letter in _FLAGS if add & flag)
        off = "".join(letter for flag, letter in _FLAGS if remove & flag)
        return f"(?{on}{'-' if off else ''}{off}:{_open_ended(body)})"
    if code is op.BRANCH:
        return "(?:" + "|".join(_open_ended(branch) for branch in value[1]) + ")"
    if code is op.AT and value is op.AT_END:  # also true before a last line feed, unless more comes
        return r"(?:$|(?=\n?\Z)\n?)"
    return rf"(?:{_step(code, value)}|\Z)"


def _step(code: Any, value: Any) -> str:
    """The text of a node that takes one character or none."""
    if code is op.AT:
        return _PLACES[value]
    if code is op.ANY:
        return "."
    if code is op.LITERAL:
        return re.escape(chr(value))
    if code is op.NOT_LITERAL:
        return f"[^{re.escape(chr(value))}]"
    return "[" + "".join(_member(kind, entry) for kind, entry in value) + "]"


def _member(kind: Any, entry: Any) -> str:
    """The text of one member of a set of characters."""
    if kind is op.NEGATE:
        return "^"
    if kind is op.RANGE:
        return f"{re.escape(chr(entry[0]))}-{re.escape(chr(entry[1]))}"
    return _CATEGORIES[entry] if kind is op.CATEGORY else re.escape(chr(entry))
