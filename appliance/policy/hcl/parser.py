"""HCL text to a tree of literals with positions. A policy is data: nothing is computed.

The parser is written by hand, over the tokens: Lark needs about a second to build its tables for
python-hcl2's grammar (which that package hides in a pickle cache, out of the question here), as long as the whole
boot may take, and an LALR parser stops at the first mistake. python-hcl2 stays the independent judge in the tests:
whatever this parser accepts, it reads alike. Each mistake is reported once, and parsing goes on behind it.

Beyond HashiCorp's specification, several attributes may share a line (python-hcl2 takes that too).
"""

from __future__ import annotations

from collections.abc import Collection

from appliance.policy.hcl.diagnostics import Report, Span, Text
from appliance.policy.hcl.tokens import BROKEN, END, MARK, MAX_BYTES, NAME, NEWLINE, NUMBER, STRING, Lexer, Token
from appliance.policy.hcl.tree import Attribute, BlockNode, Body, Broken, ListNode, Literal, Node
from appliance.policy.schema.kinds import MAX_INTEGER

MAX_DEPTH = 24  # blocks, lists and objects inside of each other

_VALUES = 'write "text" in straight double quotes, a number such as 8080 or 0.5, true, false, or a [list]'
_NO_VALUE = frozenset(["null", "nil", "none"])
_BOOLEANS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}

_OPERATORS = frozenset(["+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "&&", "||", "?", ".", "(", "[",
                        "...", "!", "=>"])


def decode(data: bytes) -> tuple[str, str | None, Span]:
    """Return the text of a policy file, line ends as newlines, and what is wrong with its encoding, and where.

    A text that is too long or UTF-16 comes back empty; one with wrong bytes has replacement characters in it.
    """
    if len(data) > MAX_BYTES:
        return "", f"the file has more than the {MAX_BYTES} bytes allowed", Span(0, 0)
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "", "the file is UTF-16, not UTF-8", Span(0, 0)
    try:
        text, problem, at = data.decode("utf-8"), None, 0
    except UnicodeDecodeError as error:
        text = data.decode("utf-8", errors="replace")
        problem = f"byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8"
        at = len(data[:error.start].decode("utf-8").replace("\r\n", "\n"))
    if text.startswith("\ufeff"):
        text = text[1:]
        problem, at = problem or "the file begins with a byte-order mark", max(0, at - 1)
    return text.replace("\r\n", "\n"), problem, Span(at, at + 1)


class Parser:
    """Recursive descent over the tokens; goes on after each mistake."""

    def __init__(self, report: Report, top_level: Collection[str] = ()) -> None:
        self.report = report
        self.tokens = Lexer(report.text.text, report).run()
        self.at = 0
        self.depth = 0
        self.top_level = frozenset(top_level)
        self.unclosed = False  # a top-level block began before the last one was closed: back out to the top

    @property
    def token(self) -> Token:
        """The next token."""
        return self.tokens[self.at]

    def _peek(self, ahead: int = 1) -> Token:
        return self.tokens[min(self.at + ahead, len(self.tokens) - 1)]

    def _take(self) -> Token:
        token = self.token
        if token.kind != END:
            self.at += 1
        return token

    def _is(self, *marks: str) -> bool:
        return self.token.kind == MARK and self.token.value in marks

    def _skip_newlines(self) -> None:
        while self.token.kind == NEWLINE:
            self.at += 1

    def _skip_rest(self) -> None:
        """Go behind the rest of a broken line: to its end, or the brace that closes what it stands in."""
        level = 0
        while self.token.kind != END:
            if self._is("{", "[", "("):
                level += 1
            elif self._is("}", "]", ")"):
                if level == 0:
                    return
                level -= 1
            elif (self.token.kind == NEWLINE and level == 0) or (level and self._starts_top_level()):
                return
            self.at += 1

    def _starts_top_level(self) -> bool:
        """Whether a top-level block begins here, at the left margin."""
        token, after = self.token, self._peek()
        return (token.kind == NAME and token.value in self.top_level
                and self.report.text.line_column(token.start)[1] == 1
                and (after.kind == STRING or (after.kind == MARK and after.value == "{")))

    def parse(self) -> Body:
        """Return the whole file."""
        body = Body(Span(0, 0))
        while self.token.kind != END and not self.report.full:
            self.unclosed = False
            self._items(body)
            if self._is("}"):
                self.report.error("syntax", "this brace closes nothing", self._take().span, fix="delete it")
        return body

    def _items(self, body: Body) -> None:
        """Read attributes and blocks up to a closing brace or the end."""
        while not self.report.full and not self.unclosed:
            self._skip_newlines()
            if self.token.kind == END or self._is("}"):
                return
            if self.depth and self._starts_top_level():
                self.unclosed = True
                return
            if self.token.kind == NAME:
                self._item(body)
            elif self.token.kind == STRING and self._peek().value in ("=", ":"):
                token = self.token
                self.report.error("syntax", "the name of an attribute stands without quotes", token.span,
                                  fix=f"write {token.value} = ..." if token.value.isidentifier() else "")
                self._item(body)
            else:
                self._unexpected("the name of an attribute or block")
                before = self.at
                self._skip_rest()
                if self.at == before:
                    self.at += 1

    def _unexpected(self, wanted: str, fix: str = "") -> None:
        token = self.token
        found = {END: "the end of the file", NEWLINE: "the end of the line", BROKEN: "a broken value"}.get(
            token.kind, f"{token.value[:40]!r}")
        if token.kind != BROKEN:
            end = max(token.end, token.start + 1)
            self.report.error("syntax", f"{found} stands where {wanted} should", Span(token.start, end),
                              fix=fix or f"write {wanted}, or delete this")

    def _item(self, body: Body) -> None:
        """Read one attribute or block, which begins with a name."""
        name = self._take()
        if self._is("=", ":"):
            mark = self._take()
            if mark.value == ":":
                self.report.error("syntax", "a colon stands where = should", mark.span, fix=f"write {name.value} = ...")
            self._attribute(body, name)
            return
        labels: list[tuple[str, Span]] = []
        while self.token.kind in (STRING, NAME) and not self._begins_item(bool(labels)):
            token = self._take()
            if token.kind == NAME and token.value not in ("true", "false"):
                self.report.error("syntax", f"the label {token.value} stands without quotes", token.span,
                                  fix=f'write "{token.value}"')
            labels.append((token.value, token.span))
        if self._is("{"):
            self._block(body, name, tuple(labels))
        elif self.token.kind == NEWLINE and self._brace_below():
            self.report.error("syntax", "the opening brace stands on a line of its own", self.token.span,
                              fix=f"write it on the line of {name.value}")
            self._skip_newlines()
            self._block(body, name, tuple(labels))
        else:
            self._missing_equals(body, name, labels)

    def _begins_item(self, labelled: bool) -> bool:
        after = self._peek()
        return labelled and self.token.kind == NAME and after.kind == MARK and after.value == "="

    def _brace_below(self) -> bool:
        ahead = 0
        while self._peek(ahead).kind == NEWLINE:
            ahead += 1
        return self._peek(ahead).kind == MARK and self._peek(ahead).value == "{"

    def _missing_equals(self, body: Body, name: Token, labels: list[tuple[str, Span]]) -> None:
        """`name value`, or a name alone."""
        self.report.error("syntax", f"{name.value} is neither an attribute nor a block", name.span,
                          detail="name = value, or name { ... }", fix=f"write {name.value} = ...")
        if labels or self.token.kind in (NUMBER, BROKEN) or self._is("["):
            value: Node = Broken(labels[0][1] if labels else self.token.span)
            body.attributes.setdefault(name.value, Attribute(name.value, name.span, value))
        else:
            body.attributes.setdefault(name.value, Attribute(name.value, name.span, Broken(name.span)))
        self._skip_rest()

    def _attribute(self, body: Body, name: Token) -> None:
        start = self.token
        value = self._value()
        first = body.attributes.get(name.value)
        if first is not None:
            line, _ = self.report.text.line_column(first.name_span.start)
            self.report.error("duplicate", f"{name.value} is set twice", name.span,
                              detail=f"each attribute once; the first stands on line {line}", fix="delete one of them")
        else:
            body.attributes[name.value] = Attribute(name.value, name.span, value)
        if isinstance(value, Broken) and self.token is start:  # reported: there is no value
            self._skip_rest()
        elif self.token.kind not in (NEWLINE, END) and not self._is("}", ",") and self.token.kind != NAME:
            self._unexpected("the end of the line")
            self._skip_rest()
        elif self._is(","):
            self.report.error("syntax", "a comma stands behind an attribute", self._take().span,
                              fix="delete it: attributes end with their line")

    def _block(self, body: Body, name: Token, labels: tuple[tuple[str, Span], ...]) -> None:
        inner = self._braces(name)
        end = self.tokens[self.at - 1].end
        body.blocks.append(BlockNode(name.value, name.span, labels, inner, Span(name.start, end)))

    def _braces(self, opener: Token) -> Body:
        """Read `{ ... }`; the opening brace is the next token."""
        brace = self._take()
        inner = Body(Span(brace.start, brace.end))
        if not self._deeper(brace):
            return inner
        self._items(inner)
        self.depth -= 1
        if self._is("}"):
            inner.span = Span(brace.start, self._take().end)
        elif not self.report.full:
            line, _ = self.report.text.line_column(self.token.start)
            where = "before the end of the file" if self.token.kind == END else f"before line {line}"
            self.report.error("syntax", f"the brace of {opener.value} is not closed", brace.span,
                              fix=f"add }} {where}")
        return inner

    def _deeper(self, opener: Token) -> bool:
        """Go one level down, or report that it is too deep and skip what is there."""
        if self.depth < MAX_DEPTH:
            self.depth += 1
            return True
        self.report.error("too-large", f"this is nested more than {MAX_DEPTH} deep", opener.span, fix="flatten it")
        level = 1
        while level and self.token.kind != END:
            level += self._is("{", "[", "(") - self._is("}", "]", ")")
            self.at += 1
        return False

    def _value(self) -> Node:
        """Read one value and see to it that no expression is built on it."""
        start = self.token
        value = self._term()
        token = self.token
        if token.kind == MARK and token.value in _OPERATORS and not isinstance(value, Broken):
            return self._expression(start)
        return value

    def _expression(self, start: Token) -> Broken:
        """Report an expression that begins at `start` and go behind it."""
        level = 0
        while self.token.kind not in (NEWLINE, END) or (level and self.token.kind == NEWLINE):
            if self._is("(", "[", "{"):
                level += 1
            elif self._is(")", "]", "}"):
                if level == 0:
                    break
                level -= 1
            elif (self._is(",") and level == 0) or (level and self._starts_top_level()):
                break
            self.at += 1
        span = Span(start.start, max(start.end, self.tokens[max(self.at - 1, 0)].end))
        self.report.error("expression", "this is an expression, which has to be computed", span,
                          detail="a policy is data: strings, numbers, true, false, lists, objects",
                          fix="write the value itself")
        return Broken(span)

    def _term(self) -> Node:
        """Read a literal, list or object."""
        token = self.token
        if token.kind in (STRING, BROKEN):
            self._take()
            return Literal(token.value, token.span) if token.kind == STRING else Broken(token.span)
        if token.kind == NUMBER:
            self._take()
            return self._number(token)
        if token.kind == NAME:
            return self._word()
        if self._is("["):
            return self._list()
        if self._is("{"):
            return self._object()
        if self._is("(", "!", "-"):
            return self._expression(token)
        self._unexpected("a value", _VALUES)
        return Broken(token.span)

    def _word(self) -> Node:
        """`true`, `false`; or a mistake: `null`, a text without quotes, a reference, a call."""
        token, after = self._take(), self.token
        if token.value in ("true", "false"):
            return Literal(token.value == "true", token.span)
        if token.value == "for" or (after.kind == MARK and (after.value in _OPERATORS or after.value == ":")):
            return self._expression(token)
        if token.value.lower() in _NO_VALUE:
            self.report.error("expression", f"{token.value} is not a value here", token.span,
                              fix="leave the attribute out to get its default")
        elif token.value.lower() in _BOOLEANS:
            self.report.error("expression", f"{token.value} is not a value here", token.span,
                              detail="true or false, in lower case", fix=f"write {_BOOLEANS[token.value.lower()]}")
        else:
            self.report.error("expression", f"{token.value} is a reference, which has to be computed", token.span,
                              detail="a policy is data: a text stands in quotes", fix=f'write "{token.value}"')
        return Broken(token.span)

    def _number(self, token: Token) -> Node:
        """Turn a number into an int, or a float where it has a point or exponent."""
        if not set(token.value) & set(".eE"):
            if abs(int(token.value)) <= MAX_INTEGER:
                return Literal(int(token.value), token.span)
        elif abs(number := float(token.value)) <= MAX_INTEGER:
            return Literal(number, token.span)
        self.report.error("syntax", "this number is too large", token.span, detail=f"numbers up to {MAX_INTEGER}")
        return Broken(token.span)

    def _list(self) -> Node:
        opener = self._take()
        items: list[Node] = []
        if not self._deeper(opener):
            return Broken(opener.span)
        closed = False
        while not self.report.full:
            self._skip_newlines()
            if closed := self._is("]"):
                break
            if self.token.kind == END or self._is("}") or self._starts_top_level() or (
                    self.token.kind == NAME and self._peek().value == "="):
                break
            before = self.at
            items.append(self._value())
            if self.at == before and not self._is(","):
                self.at += 1
            self._comma("]")
        self.depth -= 1
        span = Span(opener.start, self.token.end if closed else opener.end)
        if closed:
            self._take()
            return ListNode(tuple(items), span)
        if not self.report.full:
            self.report.error("syntax", "this list is not closed", opener.span, fix="add ] behind its last item")
        return Broken(span)

    def _comma(self, closer: str) -> None:
        """Take the comma behind an item; report that it is missing where another item follows."""
        ahead = 0
        while self._peek(ahead).kind == NEWLINE:
            ahead += 1
        after = self._peek(ahead)
        if after.kind == MARK and after.value == ",":
            self.at += ahead + 1
        elif after.kind in (STRING, NUMBER) and closer == "]":
            end = self.tokens[self.at - 1].end
            self.report.error("syntax", "a comma is missing between two items", Span(end, end + 1), fix="add it here")

    def _object(self) -> Node:
        """Read `{ key = value, ... }`: an object; keys may be quoted, and a comma or line end stands between."""
        opener = self._take()
        body = Body(opener.span)
        if not self._deeper(opener):
            return Broken(opener.span)
        while not self.report.full:
            self._skip_newlines()
            if self.token.kind not in (NAME, STRING) or self._starts_top_level():
                break
            name = self._take()
            if not self._is("=", ":"):
                self._unexpected("=")
                self._skip_rest()
                continue
            self._take()
            value = self._value()
            if name.value in body.attributes:
                self.report.error("duplicate", f"{name.value[:40]} is set twice", name.span, fix="delete one of them")
            body.attributes.setdefault(name.value, Attribute(name.value, name.span, value))
            self._comma("}")
        self.depth -= 1
        if self._is("}"):
            body.span = Span(opener.start, self._take().end)
            return body
        if not self.report.full:
            self.report.error("syntax", "this object is not closed", opener.span, fix="add } behind its last item")
        return Broken(opener.span)


def parse(report: Report, top_level: Collection[str] = ()) -> Body:
    """Parse the report's text; findings go to the report. `top_level` names the blocks that begin at the margin, by
    which a brace that is not closed is found where it is missing."""
    return Parser(report, top_level).parse()


def parse_text(text: str, filename: str = "policy.hcl") -> Body:
    """Parse a text that is known to be valid."""
    return parse(Report(Text(text, filename)))
