"""A policy's redaction tried on a text: what would be replaced, and where."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from appliance.detectors import table
from appliance.detectors.stream import Detection, DetectorStage
from appliance.kernels.runtime.table import load
from appliance.matching import Automaton, points
from appliance.policy.schema import Pattern


class Match(NamedTuple):
    """A replaced part of a text, in its characters."""

    name: str  # of a detector, or the label of a pattern
    start: int
    end: int

    def as_json(self, text: str) -> dict[str, Any]:
        """Return the match with its line and column, both from 1."""
        line = text.count("\n", 0, self.start) + 1
        return {"detector": self.name, "start": self.start, "end": self.end, "line": line,
                "column": self.start - (text.rfind("\n", 0, self.start) + 1) + 1}


class Trial:
    """A text under redaction. Each character knows the part of the given text that it stands
    for."""

    def __init__(self, text: str) -> None:
        self.given, self.text = text, text
        self.matches: list[Match] = []
        self._starts, self._ends = list(range(len(text))), list(range(1, len(text) + 1))

    def detect(self, names: Iterable[str]) -> None:
        """Apply detectors, and groups of them, by name."""
        detection = Detection(table.chosen(frozenset(names)), load())
        found: list[tuple[int, int, str]] = []
        stage = DetectorStage(detection, found)
        stage.feed(self.text)
        stage.finish()
        self._replace([(start, end, name, f"[{name}]") for start, end, name in found])

    def replace(self, patterns: Iterable[Pattern]) -> None:
        """Apply patterns in their order, each to the result of the one before."""
        for each in patterns:
            spans = Automaton(each.regex, load()).spans(points(self.text))
            self._replace([(start, end, each.name, each.replacement) for some in spans for start, end in some.tolist()])

    def _replace(self, changes: Iterable[tuple[int, int, str, str]]) -> None:
        done, text, starts, ends = 0, list[str](), list[int](), list[int]()
        for start, end, name, replacement in changes:
            match = Match(name, self._starts[start], self._ends[end - 1])
            self.matches.append(match)
            text += [self.text[done:start], replacement]
            starts += [*self._starts[done:start], *[match.start] * len(replacement)]
            ends += [*self._ends[done:start], *[match.end] * len(replacement)]
            done = end
        self._starts, self._ends = [*starts, *self._starts[done:]], [*ends, *self._ends[done:]]
        self.text = "".join([*text, self.text[done:]])
