"""Jinja source to tokens. As Hugging Face has it: `trim_blocks` and `lstrip_blocks` on, no line
statements.

Source of the rules: the Jinja template designer documentation, "Whitespace Control", and the lexer
of Jinja 3.1 where that is silent (which white space a tag takes with it).
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from appliance.errors import TemplateError

MAX_SOURCE = 1 << 18  # characters; the longest templates in use have about 30,000


class Token(NamedTuple):
    """`kind` is "text", "begin" or "end" (of a statement or an output: `value` is "{%", "%}", "{{",
    "}}"), "name", "string", "int", "float", "operator" or "eof"."""

    kind: str
    value: str
    line: int


_OPENING = re.compile(r"\{\{[-+]?|\{%[-+]?|\{#[-+]?")
_RAW = re.compile(r"\s*raw\s*(-%\}\s*|\+?%\}\n?)")
_ENDRAW = re.compile(r"\{%([-+]?)\s*endraw\s*(-%\}\s*|\+%\}|%\}\n?)")
_CLOSING = {"{{": re.compile(r"-\}\}\s*|\}\}"), "{%": re.compile(r"\+%\}|-%\}\s*|%\}\n?")}
_COMMENT_END = re.compile(r"\+#\}|-#\}\s*|#\}\n?")
_INNER = re.compile(
    r"(?P<space>\s+)|(?P<float>[0-9]+(?:_[0-9]+)*(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+))"
    r"|(?P<int>[0-9]+(?:_[0-9]+)*)|(?P<name>[^\W0-9]\w*)"
    r"|(?P<string>'[^'\\]*(?:\\.[^'\\]*)*'|\"[^\"\\]*(?:\\.[^\"\\]*)*\")"
    r"|(?P<operator>//|==|!=|>=|<=|[-+/*%~\[\](){}.,:|=<>;])", re.DOTALL)
_CLOSES = {")": "(", "]": "[", "}": "{"}


def tokenize(source: str) -> list[Token]:
    """All tokens, an "eof" at the end. TemplateError says what is malformed, with its line."""
    if len(source) > MAX_SOURCE:
        raise TemplateError(f"the chat template has {len(source)} characters; allowed: {MAX_SOURCE}")
    source = source.replace("\r\n", "\n").replace("\r", "\n").removesuffix("\n")
    lexer = _Lexer(source)
    tokens = list(lexer.run())
    tokens.append(Token("eof", "", lexer.line(len(source))))
    return tokens


def error(message: str, line: int) -> TemplateError:
    """An error at a line of the template."""
    return TemplateError(f"chat template, line {line}: {message}")


class _Lexer:
    def __init__(self, source: str) -> None:
        self.source = source
        self.at = 0
        self.line_starts = True  # the text that comes begins a line
        self._newlines = [match.start() for match in re.finditer("\n", source)]

    def line(self, at: int) -> int:
        """The line number of a position."""
        return bisect_left(self._newlines, at) + 1

    def run(self) -> Iterator[Token]:
        while self.at < len(self.source):
            opening = _OPENING.search(self.source, self.at)
            if opening is None:
                yield Token("text", self.source[self.at:], self.line(self.at))
                return
            yield from self._text(opening.start(), opening[0])
            self.at = opening.end()
            begin = opening[0][:2]
            if begin == "{#":
                self._comment()
            elif begin == "{%" and (raw := _RAW.match(self.source, self.at)):
                yield from self._raw(raw)
            else:
                yield Token("begin", begin, self.line(opening.start()))
                yield from self._inner(begin)

    def _text(self, end: int, opening: str) -> Iterator[Token]:
        """The text before a tag, less the white space that the tag takes with it."""
        text = self.source[self.at:end]
        if opening.endswith("-"):
            text = text.rstrip()
        elif not opening.endswith("+") and not opening.startswith("{{"):
            start = text.rfind("\n") + 1
            if (start or self.line_starts) and text[start:].isspace():
                text = text[:start]
        if text:
            yield Token("text", text, self.line(self.at))

    def _close(self, closing: re.Match[str]) -> None:
        self.at = closing.end()
        self.line_starts = closing[0].endswith("\n")

    def _comment(self) -> None:
        end = _COMMENT_END.search(self.source, self.at)
        if end is None:
            raise error("a comment is not closed", self.line(self.at))
        self._close(end)

    def _raw(self, opening: re.Match[str]) -> Iterator[Token]:
        start = opening.end()
        end = _ENDRAW.search(self.source, start)
        if end is None:
            raise error("a raw block is not closed", self.line(start))
        self.at, self.line_starts = start, opening[0].endswith("\n")
        yield from self._text(end.start(), "{%" + end[1])
        self._close(end)

    def _inner(self, begin: str) -> Iterator[Token]:
        """The tokens of a tag up to and with its end; the end counts only outside of brackets."""
        open_brackets: list[str] = []
        closing_pattern = _CLOSING[begin]
        while True:
            line = self.line(self.at)
            closing = None if open_brackets else closing_pattern.match(self.source, self.at)
            if closing is not None:
                self._close(closing)
                yield Token("end", "}}" if begin == "{{" else "%}", line)
                return
            found = _INNER.match(self.source, self.at)
            if found is None:
                raise error("a tag is not closed or has an unexpected character", line)
            self.at = found.end()
            kind, value = found.lastgroup or "", found[0]
            if kind == "operator" and value in "([{":
                open_brackets.append(value)
            elif kind == "operator" and value in _CLOSES and (
                    not open_brackets or open_brackets.pop() != _CLOSES[value]):
                raise error(f"{value!r} closes nothing", line)
            if kind != "space":
                yield Token(kind, value, line)
