"""Findings in a policy: each says where, what was found and what is allowed.

At a desk, `explaining/report` adds the fix and the source line. Text that goes to a terminal is
made harmless (no control characters), and what looks like a secret is blotted out.
"""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from appliance.codec.printable import plain
from appliance.errors import PolicyError

Severity = Literal["error", "warning", "note"]

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


class SourceText:
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

    def refusal(self, code: str, summary: str, span: Span, detail: str = "", path: str = "") -> InvalidPolicyError:
        """Return the error for a text with this mistake."""
        return InvalidPolicyError((Diagnostic("error", code, harmless(summary), self.filename, *self.position(span),
                                              detail=detail, path=path),))


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
    path: str = ""  # the field, such as `model "demo".sampling.bound "top_p".max`
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


def harmless(text: str) -> str:
    """Replace what a terminal could act on, character for character, and blot out what looks like a
    secret."""
    text = plain(text.replace("\t", " "), len(text), instead="\N{REPLACEMENT CHARACTER}")
    return _SECRET.sub(lambda match: match[0][:3] + "*" * (len(match[0]) - 3), text)


class InvalidPolicyError(PolicyError):
    """A policy with findings; all of them are in `diagnostics`."""

    def __init__(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        errors = [diagnostic for diagnostic in diagnostics if diagnostic.severity == "error"]
        super().__init__(f"the policy has {len(errors)} error{'s' * (len(errors) != 1)}\n{render(errors)}",
                         hint="`appliance check FILE` shows this list, and the whole of what is allowed is in "
                         "`appliance schema`")
        self.diagnostics = diagnostics

    def as_json(self) -> dict[str, Any]:
        """With each finding as `check --json` has it."""
        return super().as_json() | {"diagnostics": [diagnostic.as_json() for diagnostic in self.diagnostics]}


class Report:
    """The reading of one text, which ends at the first error."""

    full = False  # further findings are dropped
    failed = False  # whether there is any error

    def __init__(self, text: SourceText) -> None:
        self.text = text

    def error(self, code: str, summary: str, span: Span, *, detail: str = "", path: str = "", **_more: Any) -> None:
        """Raise InvalidPolicyError for a mistake."""
        raise self.text.refusal(code, summary, span, detail, path)
