"""Tokens whose brackets fit, and are nested within bounds: what is given to the parser.

Each bracket that is not closed is reported and closed. Text in parentheses, behind a question mark,
or in a `for` belongs to an expression whatever it says. A policy computes nothing, so it is left
out.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from lark import Token

from appliance.policy.explaining.lexer import Marks
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Span
from appliance.policy.hcl.reading import LITERALS, MAX_DEPTH
from appliance.policy.hcl.tokens import NAMES, NEWLINE, span, token

CLOSERS = {"LBRACE": "RBRACE", "LSQB": "RSQB", "LPAR": "RPAR"}
_TEXTS = {"RBRACE": "}", "RSQB": "]", "RPAR": ")"}
_HEADER = NAMES | {"DBLQUOTE", "STRING_CHARS", NEWLINE}
_OPERATORS = frozenset(["DOUBLE_EQ", "NEQ", "LT", "GT", "LEQ", "GEQ", "MINUS", "ASTERISK", "SLASH", "PERCENT",
                        "DOUBLE_AMP", "DOUBLE_PIPE", "PLUS", "NOT", "QMARK"])


class _Open(NamedTuple):
    """A bracket that waits for its end."""

    mark: Token
    block: str | None  # the name of the block that it opens


class Brackets:
    """Goes over the tokens once."""

    def __init__(self, tokens: list[Token], report: FullReport, marks: Marks, top_level: Collection[str]) -> None:
        self.tokens = tokens
        self.report = report
        self.marks = marks
        self.top_level = frozenset(top_level)
        self.at = 0
        self.fit: list[Token] = []
        self.open: list[_Open] = []

    def run(self) -> list[Token]:
        """Return the tokens with their brackets closed."""
        while self.at < len(self.tokens) and not self.report.full:
            self._next(self.tokens[self.at])
        while self.open and not self.report.full:
            self._unclosed(None)
        return self.fit

    def _kind(self, at: int) -> str:
        """Return the kind of a token by its number."""
        return self.tokens[at].type if at < len(self.tokens) else ""

    def _next(self, here: Token) -> None:
        """Hand on one token."""
        if self.open and (self._starts_top_level(self.at) or self._leaves_list(here)):
            self._unclosed(here)
        elif here.type in CLOSERS:
            self._opener(here)
        elif here.type in ("RBRACE", "RSQB") and self.open and CLOSERS[self.open[-1].mark.type] != here.type:
            if here.type == "RBRACE" or any(CLOSERS[each.mark.type] == here.type for each in self.open):
                self._unclosed(here)
            else:
                self._hand_on(here)
        else:
            if here.type in ("RBRACE", "RSQB") and self.open:
                self.open.pop()
            elif here.type == NEWLINE and not (self.open and self.open[-1].mark.type == "LSQB"):
                self._line_end(here)
            self._hand_on(here)
            if here.type == "QMARK":
                self._condition()

    def _line_end(self, here: Token) -> None:
        """Keep an operation from going on in the next line, which the grammar allows but
        HashiCorp's does not."""
        if self.fit and self.fit[-1].type in _OPERATORS:
            self._placeholder(here.start_pos or 0)
        if self._kind(self.at + 1) in _OPERATORS:
            self.fit.append(here)  # the post-lexer makes one of an operator and the line end before it

    def _hand_on(self, here: Token) -> None:
        self.fit.append(here)
        self.at += 1

    def _starts_top_level(self, at: int) -> bool:
        """Whether a top-level block begins with a token, at the left margin."""
        here = self.tokens[at]
        return (here.type in NAMES and here in self.top_level and self._kind(at + 1) in ("DBLQUOTE", "LBRACE")
                and self.report.text.line_column(here.start_pos or 0)[1] == 1)

    def _leaves_list(self, here: Token) -> bool:
        """Whether an attribute begins where a list is open."""
        return (self.open[-1].mark.type == "LSQB" and here.type in NAMES
                and self._kind(self.at + 1) == "EQ")

    def _opener(self, mark: Token) -> None:
        """Go into a bracket, or over it."""
        self._hand_on(mark)
        if mark.type == "LPAR":
            self._over(mark)
        elif len(self.open) >= MAX_DEPTH:
            self.report.error("too-large", f"this is nested more than {MAX_DEPTH} deep", span(mark), fix="flatten it")
            self.marks.broken.add(mark.start_pos or 0)
            self._over(mark)
        else:
            self.open.append(_Open(mark, self._block_name()))
            first = self.at + (self._kind(self.at) == NEWLINE)
            if self._kind(first) == "FOR" and self._kind(first + 1) not in ("EQ", "COLON", "LBRACE"):
                self.at = first
                self._for()

    def _over(self, mark: Token) -> None:
        """Leave out what stands in a bracket, and hand on its end."""
        end = self._end()
        if mark.type == "LPAR":
            self._placeholder(mark.end_pos or 0)
        closed = self._kind(end) == CLOSERS[mark.type]
        last = self.tokens[end if closed else end - 1].end_pos or 0
        self.fit.append(token(CLOSERS[mark.type], _TEXTS[CLOSERS[mark.type]], last - closed, last))
        self.at = end + closed

    def _condition(self) -> None:
        """Leave out what stands behind a question mark: to the end of the line, the item or the
        bracket."""
        level = 0
        while self.at < len(self.tokens) and not self._starts_top_level(self.at):
            kind = self._kind(self.at)
            closes = kind in CLOSERS.values()
            if level == 0 and (closes or kind in ("COMMA", NEWLINE)):
                break
            level += (kind in CLOSERS) - closes
            self.at += 1
        end = self.tokens[self.at - 1].end_pos or 0
        self._placeholder(end)
        self.fit.append(token("COLON", ":", end, end))
        self._placeholder(end)

    def _for(self) -> None:
        """Report a `for` and leave it out."""
        start, end = self.tokens[self.at], self._end()
        self.report.error("expression", "this is an expression, which has to be computed",
                          Span(start.start_pos or 0, self.tokens[end - 1].end_pos or 0),
                          detail=LITERALS,
                          fix="write the value itself")
        if self.open[-1].mark.type == "LSQB":
            self._placeholder(start.start_pos or 0)
        self.at = end

    def _end(self) -> int:
        """Return the number of the token that ends what the last bracket opened."""
        level, at = 0, self.at
        while at < len(self.tokens) and not self._starts_top_level(at):
            closes = self._kind(at) in CLOSERS.values()
            if closes and level == 0:
                break
            level += (self._kind(at) in CLOSERS) - closes
            at += 1
        return at

    def _placeholder(self, at: int) -> None:
        """Put a value where the parser wants one; the expression around it is reported."""
        self.marks.broken.add(at)
        self.fit.append(token("NAME", "", at, at))

    def _block_name(self) -> str | None:
        """Return the name before the brace just handed on; None for an object or a list."""
        if self.fit[-1].type != "LBRACE":
            return None
        name = None
        for number in range(len(self.fit) - 2, -1, -1):
            each = self.fit[number]
            if each.type not in _HEADER or (each.type == NEWLINE and name is not None):
                break
            name = str(each) if each.type in NAMES else name
        return name

    def _unclosed(self, here: Token | None) -> None:
        """Report and close the innermost bracket, which ends before a token, or with the file."""
        opened = self.open.pop()
        kind = CLOSERS[opened.mark.type]
        if here is None:
            self.marks.torn.add(opened.mark.start_pos or 0)
        if opened.block is None:
            self.marks.broken.add(opened.mark.start_pos or 0)
        if here is not None or self.marks.lost_from is None:  # else its end is lost in what is reported already
            self._report_unclosed(opened, kind, here)
        end = self.fit[-1].end_pos or 0
        self.fit.append(token(kind, _TEXTS[kind], end, end))

    def _report_unclosed(self, opened: _Open, kind: str, here: Token | None) -> None:
        """Report a bracket that a token, or the end of the file, finds open."""
        if opened.block is not None:
            line = self.report.text.line_column(here.start_pos or 0)[0] if here is not None else 0
            where = "before the end of the file" if here is None else f"before line {line}"
            self.report.error("syntax", f"the brace of {opened.block} is not closed", span(opened.mark),
                              fix=f"add }} {where}")
        else:
            what = "list" if kind == "RSQB" else "object"
            self.report.error("syntax", f"this {what} is not closed", span(opened.mark),
                              fix=f"add {_TEXTS[kind]} behind its last item")
