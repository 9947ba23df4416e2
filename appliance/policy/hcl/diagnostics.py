"""Findings in a policy: each says where, what was found, what is allowed, and the fix.

A diagnostic is complete in itself: it carries its source line, so that it can be printed after the
text is gone. Text that goes to a terminal is made harmless (no control characters), and what looks
like a secret is blotted out.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from appliance.codec.printable import plain

Severity = Literal["error", "warning", "note"]

MAX_DIAGNOSTICS = 100  # per severity; what a person reads, and a bound on the work after hopeless input
_CAUSES = frozenset({"encoding", "character", "syntax"})  # codes of texts that are not what their writer meant
_CONSEQUENCES = frozenset({"missing", "rule"})  # codes of findings that another mistake may have caused
_WINDOW = 120  # characters of a source line that are shown
_SECRET = re.compile(r"sk-[A-Za-z0-9_-]{8,}|AGE-SECRET-KEY-[A-Z0-9]+|ghp_[A-Za-z0-9]{8,}|hvs\.[A-Za-z0-9]{8,}")


class Span(NamedTuple):
    """A range of characters in the text: from `start` up to, not including, `end`."""

    start: int
    end: int


class Position(NamedTuple):
    """Where something begins and ends; lines and columns count from 1, columns in characters."""

    line: int
    column: int
    end_line: int
    end_column: int


class Text:
    """A policy's text, with its lines known."""

    def __init__(self, text: str, filename: str) -> None:
        self.text = text
        self.filename = filename
        self._starts = [0] + [match.end() for match in re.finditer(r"\n", text)]

    def line_column(self, offset: int) -> tuple[int, int]:
        """Return the line and column of an offset, both from 1."""
        line = bisect.bisect_right(self._starts, offset)
        return line, offset - self._starts[line - 1] + 1

    def position(self, span: Span) -> Position:
        """Return the lines and columns of a span."""
        return Position(*self.line_column(span.start), *self.line_column(max(span.start, span.end)))

    def line(self, number: int) -> str:
        """Return one line without its end."""
        start = self._starts[number - 1]
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")


@dataclass(frozen=True)
class Diagnostic:
    """One finding."""

    severity: Severity
    code: str  # stable, for machines
    summary: str  # what was found
    filename: str
    line: int
    column: int
    end_line: int
    end_column: int
    detail: str = ""  # what is allowed, and why
    fix: str = ""  # what to do
    path: str = ""  # the field, such as `model "demo".sampling.top_p.max`
    source: str = ""  # the source line, harmless to print
    marker: str = ""  # spaces and carets to stand below it

    def __str__(self) -> str:
        """Render as text, the first line in the form that editors jump to."""
        lines = [f"{self.filename}:{self.line}:{self.column}: {self.severity}[{self.code}]: {self.summary}"]
        if self.source:
            gutter = " " * len(str(self.line))
            lines += [f"  {self.line} | {self.source}", f"  {gutter} | {self.marker}"]
        lines += [f"  allowed: {self.detail}"] if self.detail else []
        lines += [f"  fix: {self.fix}"] if self.fix else []
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return the finding for JSON output."""
        return {key: value for key, value in asdict(self).items() if key != "marker"}


def render(diagnostics: Iterable[Diagnostic]) -> str:
    """Return findings as text, an empty line between them."""
    return "\n\n".join(str(diagnostic) for diagnostic in diagnostics)


def _harmless(text: str) -> str:
    """Replace what a terminal could act on, character for character, and blot out what looks like a
    secret."""
    text = plain(text.replace("\t", " "), len(text), instead="\N{REPLACEMENT CHARACTER}")
    return _SECRET.sub(lambda match: match[0][:3] + "*" * (len(match[0]) - 3), text)


def excerpt(text: Text, position: Position, *, secret: bool) -> tuple[str, str]:
    """Return the source line of a position and the marker below it, both cut to a readable width.
    """
    raw = text.line(position.line)
    start = position.column - 1
    end = position.end_column - 1 if position.end_line == position.line else len(raw)
    end = max(start + 1, min(end, len(raw)))
    left = max(0, start - _WINDOW // 2)
    margin = max(0, left - _WINDOW)  # so that a secret that begins left of the window is seen as one
    line = _harmless(raw[margin:left + 2 * _WINDOW])[left - margin:][:_WINDOW]
    start, end = start - left, min(end - left, _WINDOW)
    if secret:
        line = line[:start] + "*" * (min(end, len(line)) - start) + line[end:]
    return line.rstrip(), " " * start + "^" * max(1, end - start)


@dataclass
class Report:
    """Collects the findings in one text."""

    text: Text
    found: list[Diagnostic] = field(default_factory=list)
    full: bool = False  # further findings are dropped

    def add(self, severity: Severity, code: str, summary: str, span: Span, *, detail: str = "", fix: str = "",
            path: str = "", secret: bool = False) -> None:
        """Add one finding; beyond a hundred, one last note says that there are more."""
        if self.full:
            return
        if len(self.found) >= MAX_DIAGNOSTICS:
            self.full = True
            severity, code, secret = "error", "too-many", False
            summary, detail, fix = "there are more findings than these", "", "mend these first"
        position = self.text.position(span)
        source, marker = excerpt(self.text, position, secret=secret)
        self.found.append(Diagnostic(
            severity, code, _harmless(summary), self.text.filename, *position, detail=detail, fix=_harmless(fix),
            path=path, source=source, marker=marker))

    def error(self, code: str, summary: str, span: Span, **more: Any) -> None:
        """Add an error."""
        self.add("error", code, summary, span, **more)

    @property
    def failed(self) -> bool:
        """Whether there is any error."""
        return any(diagnostic.severity == "error" for diagnostic in self.found)

    def sorted(self) -> tuple[Diagnostic, ...]:
        """Return the findings in the order of the text; what a misread place may have caused comes
        behind it, also where it is told to stand before it."""
        last = max(((found.line, found.column) for found in self.found if found.code in _CAUSES), default=(0, 0))

        def order(found: Diagnostic) -> tuple[Any, ...]:
            place, caused = (found.line, found.column), found.code in _CONSEQUENCES
            return max(place, last) if caused else place, caused and place < last, place, found.code

        return tuple(sorted(self.found, key=order))
