"""Redaction: regular expressions over text, streamed so that the parts add up to the redacted
whole.

The promise is exact for any way of cutting a text into pieces. The pieces that `Redactor.feed` and
`finish` return, joined, equal `redact(text)`. No character leaves before it is certain that it
belongs to no match.

What is certain? The automaton (`matching`) also tells from which positions some path through
an expression runs into the end of the text so far. Before the first such position nothing that may
still come can change what the expression matches; from there on the text is held back. A match
spans `patterns.MAX_WIDTH` characters at most, so no more than that is held back, and no more is
looked at again for each piece.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from appliance.detectors.stream import Detection
from appliance.detectors.table import chosen
from appliance.kernels.runtime import table
from appliance.kernels.runtime.table import KernelTable
from appliance.matching import Automaton, Points, Spans, points
from appliance.policy.schema import Redaction

_SETTLED = 16  # characters that are let go of together
QUICK = 1 << 21  # words of streams that are made in about a millisecond


def _nothing() -> None:
    """Let a redaction go on."""


@functools.cache
def _kernels() -> KernelTable:
    return table.load()


@dataclass(frozen=True)
class Substitution:
    """One expression of the policy and the literal text that stands in for its matches."""

    name: str
    expression: str
    automaton: Automaton
    replacement: str

    @classmethod
    def compile(cls, name: str, expression: str, replacement: str, kernels: KernelTable | None = None) -> Substitution:
        """Return a rule from the policy's text; `Mismatch` (policy.kinds) for an expression outside
        of the subset."""
        return cls(name, expression, Automaton(expression, _kernels() if kernels is None else kernels), replacement)

    def apply(self, text: str, between: Callable[[], None]) -> str:
        """Return a whole text with the replacement in place of each match."""
        codes, done, out = points(text), 0, list[str]()
        for spans in self.automaton.spans(codes, 0, between):
            start, end = int(spans[0, 0]), int(spans[-1, 1])
            out += [text[done:start], _replace(codes[start:end], spans - start, self.replacement)]
            done = end
        return "".join([*out, text[done:]]) if out else text

    def stage(self) -> _Stage:
        """Return the rule over one text that arrives in pieces."""
        return _Stage(self)


Rule = Substitution | Detection
"""The detectors of a policy, which come first and all at once, or one of its patterns."""


def rules_of(redaction: Redaction, kernels: KernelTable | None = None) -> tuple[Rule, ...]:
    """Return the rules of a policy's block, in their order."""
    kernels = _kernels() if kernels is None else kernels
    detectors = chosen(redaction.detectors)
    return (*([Detection(detectors, kernels)] if detectors else ()),
            *(Substitution.compile(each.name, each.regex, each.replacement, kernels) for each in redaction.patterns))


def redact(rules: Iterable[Rule], text: str, between: Callable[[], None] = _nothing) -> str:
    """Return the whole text with each rule applied in the order of the policy.

    `between` is called every few milliseconds and may raise to end it. Other threads run meanwhile.
    """
    for rule in rules:
        text = rule.apply(text, between)
    return text


def _replace(codes: Points, spans: Spans, replacement: str) -> str:
    """Return a text with the replacement in place of each match. It begins and ends with one."""
    seen = np.zeros(len(codes) + 1, bool)
    seen[codes[codes <= len(codes)]] = True
    mark = int(seen.argmin())  # a character that the text has not
    edges = np.zeros(len(codes) + 1, np.int8)  # 1 where a match begins, -1 where one ends
    edges[spans[:, 0]] += 1
    edges[spans[:, 1]] -= 1
    outside = np.cumsum(edges[:-1], dtype=np.int8) == 0
    outside[spans[:, 0]] = True
    marked = codes.copy()
    marked[spans[:, 0]] = mark
    return str(marked[outside].tobytes(), "utf-32-le", "surrogatepass").replace(chr(mark), replacement)


class Redactor:
    """A chain of rules over one text that arrives in pieces."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._stages = [rule.stage() for rule in rules]

    def quick(self, piece: str) -> bool:
        """Return whether the next piece takes about a millisecond at most."""
        return sum(stage.work(len(piece)) for stage in self._stages) <= QUICK

    def feed(self, piece: str) -> str:
        """Take the next piece; return the text that is now certain."""
        for stage in self._stages:
            piece = stage.feed(piece)
        return piece

    def finish(self) -> str:
        """Return the text held back, now that no more comes."""
        piece = ""
        for stage in self._stages:
            piece = stage.feed(piece) + stage.finish()
        return piece


class _Stage:
    """One rule. Text before `_done` is settled; the end of it stays as context for word boundaries.
    """

    def __init__(self, rule: Substitution) -> None:
        self._rule = rule
        self._text = ""
        self._done = 0

    def work(self, more: int) -> int:
        """Return how many words of streams the next piece of so many characters takes, roughly."""
        automaton = self._rule.automaton
        return automaton.work * (len(self._text) + more + 2 * automaton.width + 1024) // 64

    def feed(self, piece: str) -> str:
        if not piece:
            return ""
        self._text += piece
        return self._advance(final=False)

    def finish(self) -> str:
        return self._advance(final=True)

    def _advance(self, *, final: bool) -> str:
        """Settle as much as is certain: text up to a match, its replacement, and so on."""
        automaton, codes, out = self._rule.automaton, points(self._text), list[str]()
        undecided = np.empty(0, np.int64) if final else automaton.undecided(codes, self._done)
        bound = self._bound(undecided)
        if bound > self._done:
            matches = (pair for some in automaton.spans(codes, self._done) for pair in some.tolist())
            for start, end in matches:
                if start >= bound:
                    break
                out += [self._text[self._done:start], self._rule.replacement]
                self._done = end
                bound = self._bound(undecided)
            out.append(self._text[self._done:bound])
            self._done = bound
            self._forget()
        return "".join(out)

    def _bound(self, undecided: Spans) -> int:
        """Return where text to come begins to matter; the end of the text at the latest."""
        index = int(np.searchsorted(undecided, self._done))
        return int(undecided[index]) if index < len(undecided) else len(self._text)

    def _forget(self) -> None:
        """Let go of text that is settled, but for a character: no expression looks further back,
        nor sees from there where the text begins."""
        if self._done > _SETTLED:
            self._text, self._done = self._text[self._done - 1:], 1
