"""All findings in a policy, each with its source line and the fix.

A diagnostic is complete in itself: it can be printed after the text is gone.
"""

from __future__ import annotations

from typing import Any

from appliance.policy.hcl.diagnostics import Diagnostic, Position, Report, Severity, SourceText, Span, harmless

MAX_DIAGNOSTICS = 100  # per severity; what a person reads, and a bound on the work after hopeless input
_CAUSES = frozenset({"encoding", "character", "syntax"})  # codes of texts that are not what their writer meant
_CONSEQUENCES = frozenset({"missing", "rule"})  # codes of findings that another mistake may have caused
_WINDOW = 120  # characters of a source line that are shown


def excerpt(text: SourceText, position: Position, *, secret: bool) -> tuple[str, str]:
    """Return the source line of a position and the marker below it, both cut to a readable width.
    """
    raw = text.line(position.line)
    start = position.column - 1
    end = position.end_column - 1 if position.end_line == position.line else len(raw)
    end = max(start + 1, min(end, len(raw)))
    left = max(0, start - _WINDOW // 2)
    margin = max(0, left - _WINDOW)  # so that a secret that begins left of the window is seen as one
    line = harmless(raw[margin:left + 2 * _WINDOW])[left - margin:][:_WINDOW]
    start, end = start - left, min(end - left, _WINDOW)
    if secret:
        line = line[:start] + "*" * (min(end, len(line)) - start) + line[end:]
    return line.rstrip(), " " * start + "^" * max(1, end - start)


class FullReport(Report):
    """Collects the findings in one text."""

    def __init__(self, text: SourceText) -> None:
        super().__init__(text)
        self.found: list[Diagnostic] = []

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
            severity, code, harmless(summary), self.text.filename, *position, detail=detail, fix=harmless(fix),
            path=path, source=source, marker=marker))

    def error(self, code: str, summary: str, span: Span, *, detail: str = "", path: str = "", **more: Any) -> None:
        """Add an error."""
        self.add("error", code, summary, span, detail=detail, path=path, **more)

    @property
    def failed(self) -> bool:  # type: ignore[override]
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
