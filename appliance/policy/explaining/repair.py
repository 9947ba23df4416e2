"""Tokens to a tree by python-hcl2's grammar; each mistake is reported once, and parsing goes on
behind it.

Lark's parser stops at a token that its state has no use for. That token is reported here in the
words of its place, then left out, or what it lacks is put before it, and the parser is given the
next. Tokens that it is given after a repair are marked, so that the tree is not believed in them
(`Marks`).
"""

from __future__ import annotations

from lark import Token, UnexpectedToken
from lark.parsers.lalr_parser_state import ParseConf, ParserState

from appliance.policy.explaining.brackets import CLOSERS
from appliance.policy.explaining.lexer import STRAY, Marks
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Span
from appliance.policy.hcl.grammar import Language, SyntaxNode
from appliance.policy.hcl.tokens import NAMES, NEWLINE, span, token

_VALUES = 'write "text" in straight double quotes, a number such as 8080 or 0.5, true, false, or a [list]'
_ITEMS = frozenset(["DBLQUOTE", "INT_LITERAL", "FLOAT_LITERAL", "HEREDOC_TEMPLATE", "LSQB", "LBRACE"]) | NAMES
_HEADER = NAMES | {"identifier", "keyword", "literal_value", "_attribute_name", "string", "DBLQUOTE", "STRING_CHARS",
                   "string_part", "__string_star", "__block_star"}
_QUOTES = frozenset("'`\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}\N{LEFT DOUBLE QUOTATION MARK}"
                    "\N{RIGHT DOUBLE QUOTATION MARK}\N{DOUBLE LOW-9 QUOTATION MARK}")
_END = "$END"
_TRIES = 4  # repairs before one token, at most: then it is left out


class Repair:
    """Feeds the parser."""

    def __init__(self, tokens: list[Token], grammar: Language, report: FullReport, marks: Marks) -> None:
        end = len(report.text.text)
        self.tokens = [*grammar.postlexer.process(iter(tokens)), token(_END, "", end, end)]
        self.report = report
        self.marks = marks
        self.parser = grammar.parser()
        self.bare: ParseConf[int] = ParseConf(self.parser.parse_conf.parse_table, {}, "start")
        self.at = 0
        self.last: Token | None = None  # the last token that the parser took, line ends aside

    def tree(self) -> SyntaxNode | None:
        """Return the tree; None where a report says why there is none."""
        tries, where = 0, 0
        while not self.report.full:
            try:
                tree = self._feed(self._here)
            except UnexpectedToken:
                tries, where = (tries + 1 if self.at == where else 1), self.at
                if not self._mended(tries) and self._here.type == _END:
                    break
            else:
                if self._here.type == _END:
                    return tree
                self.at += 1
        if not self.report.failed:
            self._unexpected("something else")
        return None

    def _mended(self, tries: int) -> bool:
        """Get past the token that the parser does not take: mend what is wrong, or leave the token
        out."""
        if tries <= _TRIES:
            try:
                self._mend()
            except UnexpectedToken:
                pass
            else:
                return True
        self.at += self._here.type != _END
        return False

    @property
    def _here(self) -> Token:
        return self.tokens[self.at]

    def _feed(self, here: Token) -> SyntaxNode | None:
        """Give the parser a token. A keyword is a name where the grammar has no use for it, as in
        Lark's lexer."""
        actions = self.parser.parse_conf.states[self.parser.position]
        if here.type not in actions and here.type in NAMES and "NAME" in actions:
            here = token("NAME", here, *span(here))
        states, values = [*self.parser.state_stack], [*self.parser.value_stack]
        try:
            tree: SyntaxNode | None = self.parser.feed_token(here, here.type == _END)
        except UnexpectedToken:  # the parser may have concluded what only a token that it takes would conclude
            self.parser.state_stack[:], self.parser.value_stack[:] = states, values
            raise
        if here.type != NEWLINE:
            self.last = here
        return tree

    def _takes(self, kind: str) -> bool:
        """Whether the parser would take a token of a kind."""
        trial = ParserState(self.bare, self.parser.lexer, [*self.parser.state_stack], [*self.parser.value_stack])
        try:
            trial.feed_token(Token(kind, ""))
        except UnexpectedToken:
            return False
        return True

    def _put(self, kind: str, text: str = "") -> None:
        """Give the parser a token that does not stand in the text."""
        at = self._here.start_pos or 0
        if kind == "NAME":
            self.marks.broken.add(at)
        self._feed(token(kind, text, at, at))

    def _mend(self) -> None:
        """Report the token that the parser does not take, and see to it that it takes the next."""
        value, brace = self._takes("INT_LITERAL"), self._takes("RBRACE")
        if value and not brace:
            self._no_value()
        elif self._takes("LBRACE") and not value:
            self._no_equals()
        elif self._takes("EQ"):
            self._no_equals_in_object()
        elif self._takes("COMMA") and not brace:
            self._no_comma()
        elif self._takes("PLUS"):
            self._no_end(brace and value)
        elif brace and value:
            self._unexpected("the name of a field")
            self._skip_rest()
        else:
            self._no_name()

    def _no_value(self) -> None:
        """A value is missing: of an attribute, of a list's item, or of an operator."""
        here, before = self._here, self.last.type if self.last is not None else ""
        if before in ("EQ", "COLON", "COMMA", "LSQB"):
            self._unexpected("a value", _VALUES)
        self._put("NAME")
        if before in ("COMMA", "LSQB"):
            self.at += here.type not in ("COMMA", NEWLINE, *CLOSERS.values())
        else:
            self._skip_rest()

    def _no_equals(self) -> None:
        """`name value`, `name: value`, or a name alone."""
        here = self._here
        name = self._header()
        if here.type == "COLON" and self._takes("EQ"):
            self.report.error("syntax", "a colon stands where = should", span(here), fix=f"write {name} = ...")
            self._put("EQ", "=")
            self.at += 1
            return
        self._report_headless(name, here)
        self.marks.headless.add(name.start_pos or 0)
        self._put("LBRACE", "{")
        self._put("RBRACE", "}")
        if self.tokens[self.at - 1].type != NEWLINE:
            self._skip_rest()

    def _report_headless(self, name: Token, here: Token) -> None:
        """Report a name with neither `=` nor `{`, by what stands in their place. A broken label is
        reported already."""
        start, end = name.start_pos or 0, here.start_pos or 0
        if any(start < place < end for place in self.marks.broken):
            return
        line, column = self.report.text.line_column(start)
        row = self.report.text.line(line)
        before, behind = row[:column - 1].rstrip(), row[column - 1 + len(name):].lstrip()
        if here.type == STRAY and here in _QUOTES:
            self._unexpected("a label or =", "write texts in straight double quotes")
        elif before and before[-1] not in "{}/" and behind[:1] in ("", "#", "/", *"}])"):
            self.report.error("syntax", f"{str(name)[:40]!r} stands where the end of the line should", span(name),
                              fix="write the end of the line, or delete this")
        elif here.type == "EQ" and self.last is not None and self.last.type == "DBLQUOTE":
            self._unexpected("{", f"delete it: {name} with a label is a block")
        else:
            self.report.error("syntax", f"{name} is neither an attribute nor a block", span(name),
                              detail="name = value, or name { ... }", fix=f"write {name} = ...")

    def _header(self) -> Token:
        """Return the name with which the attribute or block begins that the parser is in."""
        stack = [*self.parser.value_stack]
        if stack and _kind(stack[-1]) in ("new_line_or_comment", "__new_line_or_comment_plus", NEWLINE):
            stack.pop()
        name = None
        while stack and _kind(stack[-1]) in _HEADER:
            name = stack.pop()
        while isinstance(name, SyntaxNode):
            name = name.children[0]
        return name if isinstance(name, Token) else self._here

    def _no_equals_in_object(self) -> None:
        self._unexpected("=")
        self._put("EQ", "=")
        self.marks.absent.add(self._here.start_pos or 0)
        self._put("NAME")
        self._skip_rest()

    def _no_comma(self) -> None:
        """Two items of a list without a comma, or what is no item."""
        if self._here.type in _ITEMS and self.last is not None:
            end = self.last.end_pos or 0
            self.report.error("syntax", "a comma is missing between two items", Span(end, end + 1), fix="add it here")
            self._put("COMMA", ",")
        else:
            self._unexpected("a comma or ]")
            self.at += 1

    def _no_end(self, in_object: bool) -> None:
        """Something stands behind a value."""
        if self._here.type == "COMMA":
            if not self._decimal_comma():
                self.report.error("syntax", "a comma stands behind an attribute", span(self._here),
                                  fix="delete it: attributes end with their line")
                self.at += 1
        elif self._here.type == "RBRACE":
            self._no_name()
        else:
            self._unexpected("a comma or }" if in_object else "the end of the line")
            before = self.at
            self._skip_rest()
            self.at += self.at == before and self._here.type not in (_END, NEWLINE)

    def _decimal_comma(self) -> bool:
        """Pass over the decimals of a number that is written with a comma. Returns False for any
        other comma."""
        before, after = self.last, self.tokens[self.at + 1]
        if before is None or not str(before).isdecimal() or not str(after).isdecimal():
            return False
        self.report.error("syntax", "a comma stands in a number", span(self._here),
                          fix=f"write {before}.{after}")
        self.at += 2
        return True

    def _no_name(self) -> None:
        """Neither an attribute nor a block begins here."""
        here = self._here
        end = self.at + 1
        while here.type == "DBLQUOTE" and self.tokens[end].type == "STRING_CHARS":
            end += 1
        if here.type == "RBRACE":
            self.report.error("syntax", "this brace closes nothing", span(here), fix="delete it")
            self.at += 1
        elif here.type == "DBLQUOTE" and self.tokens[end + 1].type in ("EQ", "COLON"):
            text, where = self._whole()
            self.report.error("syntax", "the name of an attribute stands without quotes", where,
                              fix=f"write {text} = ..." if text.isidentifier() else "")
            self.at = end
            self._feed(token("NAME", text, *where))
            self.at += 1
        else:
            self._unexpected("the name of an attribute or block")
            before = self.at
            self._skip_rest()
            self.at += self.at == before and here.type != _END

    def _skip_rest(self) -> None:
        """Go behind the rest of a broken line: to its end, or the bracket that closes what it
        stands in."""
        level = 0
        while (kind := self._here.type) != _END and not (level == 0 and (kind == NEWLINE or kind in CLOSERS.values())):
            level += (kind in CLOSERS) - (kind in CLOSERS.values())
            self.at += 1

    def _whole(self) -> tuple[str, Span]:
        """Return what stands here, and where: a string with its quotes, or one token."""
        here, at = self._here, self.at + 1
        if here.type != "DBLQUOTE":
            start = here.start_pos or 0
            end = max(here.end_pos or 0, start + 1)
            return self.report.text.text[start:end], Span(start, end)
        text = str(self.tokens[at]) if self.tokens[at].type == "STRING_CHARS" else ""
        return text, Span(here.start_pos or 0, self.tokens[at + (text != "")].end_pos or 0)

    def _unexpected(self, wanted: str, fix: str = "") -> None:
        text, where = self._whole()
        found = {_END: "the end of the file", NEWLINE: "the end of the line"}.get(self._here.type, f"{text[:40]!r}")
        if self._here.type not in _ITEMS or self._here.start_pos not in self.marks.broken:
            self.report.error("syntax", f"{found} stands where {wanted} should", where,
                              fix=fix or f"write {wanted}, or delete this")


def _kind(part: SyntaxNode | Token) -> str:
    """Return a tree's rule or a token's kind, without the number that Lark gives to repeated parts.
    """
    return part.rule.rstrip("_0123456789") if isinstance(part, SyntaxNode) else part.type
