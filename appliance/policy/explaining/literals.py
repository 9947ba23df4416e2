"""The grammar's tree to the tree of literals as `hcl/values` makes it, past what is reported."""

from __future__ import annotations

from typing import Any

from lark import Token

from appliance.policy.explaining.lexer import Marks
from appliance.policy.explaining.report import FullReport
from appliance.policy.hcl.diagnostics import Span
from appliance.policy.hcl.grammar import SyntaxNode
from appliance.policy.hcl.reading import LITERALS
from appliance.policy.hcl.tokens import span
from appliance.policy.hcl.tree import Attribute, BlockNode, Body, Broken, ListNode, Literal, Node
from appliance.policy.hcl.values import GAP, first_of, name_of, number_of, parts, span_of, string_of
from appliance.policy.schema.kinds import MAX_INTEGER

_NO_VALUE = frozenset(["null", "nil", "none"])
_BOOLEANS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}


class LenientValues:
    """Walks the tree. Its depth is bounded (`brackets`), but for expressions, which are not walked.
    """

    def __init__(self, report: FullReport, marks: Marks) -> None:
        self.report = report
        self.marks = marks

    def file(self, tree: SyntaxNode | None) -> Body:
        """Return the whole file; an empty one where there is no tree."""
        body = Body(Span(0, 0), torn=bool(self.marks.torn) or self.marks.lost_from is not None)
        if tree is not None:
            self._items(body, tree.children[0])
        return body

    def _items(self, body: Body, tree: SyntaxNode) -> None:
        """Add the attributes and blocks of a body."""
        for item in parts(tree):
            if self.report.full:
                return
            if item.rule == "attribute":
                self._attribute(body, *parts(item))
            elif item.rule == "block":
                self._block(body, item)

    def _attribute(self, body: Body, name: SyntaxNode, _equals: Token, expression: SyntaxNode) -> None:
        text, where = name_of(name)
        if not self._is_ascii(text, where):
            return
        value = self._value(expression)
        first = body.attributes.get(text)
        if first is None:
            body.attributes[text] = Attribute(text, where, value)
            return
        line, _ = self.report.text.line_column(first.name_span.start)
        self.report.error("duplicate", f"{text} is set twice", where,
                          detail=f"each attribute once; the first stands on line {line}", fix="delete one of them")

    def _block(self, body: Body, tree: SyntaxNode) -> None:
        """Add a block, or an attribute without a value where neither `=` nor `{` stands."""
        first, *rest = parts(tree)
        opening, inside, closing = rest[-3:]
        text, where = name_of(first)
        if where.start in self.marks.headless:
            body.attributes.setdefault(text, Attribute(text, where, Broken(where)))
            return
        if not self._is_ascii(text, where):
            return
        labels = []
        for label in rest[:-3]:
            if label.rule == GAP:
                self.report.error("syntax", "the opening brace stands on a line of its own", span(first_of(label)),
                                  fix=f"write it on the line of {text}")
            else:
                labels.append(self._label(label))
        inner = Body(Span(span(opening).start, span(closing).end), torn=span(opening).start in self.marks.torn)
        self._items(inner, inside)
        body.blocks.append(BlockNode(text, where, tuple(labels), inner, Span(where.start, inner.span.end)))

    def _is_ascii(self, name: str, where: Span) -> bool:
        """Whether a name is one that a policy may have, or else is reported."""
        if not name.isascii():
            self.report.error("syntax", f"the name {name[:40]} has a letter beyond ASCII", where,
                              detail="names of letters a to z, A to Z, digits, _ and -",
                              fix="write the name that the policy language has: `appliance schema` lists all")
        return name.isascii()

    def _label(self, tree: SyntaxNode) -> tuple[str, Span]:
        if tree.rule == "string":
            return string_of(tree)
        text, where = name_of(tree)
        if text not in ("true", "false"):
            self.report.error("syntax", f"the label {text} stands without quotes", where, fix=f'write "{text}"')
        return text, where

    def _value(self, tree: SyntaxNode) -> Node:
        """Return the value of an expression that is a literal, a list or an object; report any
        other."""
        where = span_of(tree)
        term = tree.children[0] if tree.rule == "expr_term" and len(tree.children) == 1 else tree
        take = _TAKEN.get(term.rule)
        broken = where.start in self.marks.broken
        if take is None:
            return self._expression(where)
        if broken and term.rule not in ("tuple", "object"):
            return Broken(where)
        node: Node = take(self, term, where)
        return Broken(where) if broken else node

    def _expression(self, where: Span) -> Broken:
        self.report.error("expression", "this is an expression, which has to be computed", where,
                          detail=LITERALS,
                          fix="write the value itself")
        return Broken(where)

    def _text(self, tree: SyntaxNode, where: Span) -> Node:
        return Literal(string_of(tree)[0], where)

    def _heredoc(self, tree: SyntaxNode, where: Span) -> Node:
        return Literal(str(first_of(tree)), where)

    def _number(self, tree: SyntaxNode, where: Span) -> Node:
        """Return an int for a whole number, however it is written; a float for any other."""
        word = str(first_of(tree))
        if (value := number_of(word)) is not None:
            return Literal(value, where)
        self.report.error("syntax", f"{word} is too large a number", where,
                          detail=f"numbers from -{MAX_INTEGER} to {MAX_INTEGER}", fix="write a smaller one")
        return Broken(where)

    def _word(self, tree: SyntaxNode, where: Span) -> Node:
        """`true`, `false`; or a mistake: `null`, a text without quotes, a reference."""
        word = str(first_of(tree))
        if word in ("true", "false"):
            return Literal(word == "true", where)
        if word.lower() in _NO_VALUE:
            self.report.error("expression", f"{word} is not a value here", where,
                              fix="leave the attribute out to get its default")
        elif word.lower() in _BOOLEANS:
            self.report.error("expression", f"{word} is not a value here", where,
                              detail="true or false, in lower case", fix=f"write {_BOOLEANS[word.lower()]}")
        else:
            self.report.error("expression", f"{word} is a reference, which has to be computed", where,
                              detail="a policy is data: a text stands in quotes", fix=f'write "{word}"')
        return Broken(where)

    def _list(self, tree: SyntaxNode, where: Span) -> Node:
        return ListNode(tuple(self._value(part) for part in parts(tree)
                              if isinstance(part, SyntaxNode) and part.rule != GAP and not self.report.full), where)

    def _object(self, tree: SyntaxNode, where: Span) -> Node:
        body = Body(where)
        for part in parts(tree):
            if isinstance(part, SyntaxNode) and part.rule == "object_elem" and not self.report.full:
                self._field(body, *part.children)
        return body

    def _field(self, body: Body, key: SyntaxNode, _equals: Token, expression: SyntaxNode) -> None:
        """Add one field of an object."""
        where = span_of(key)
        word = key.children[0]
        word = word.children[0] if word.rule == "expr_term" and len(word.children) == 1 else word
        if word.rule not in ("identifier", "literal_value", "keyword", "string") or where.start in self.marks.broken:
            if where.start not in self.marks.broken:
                self._expression(where)
            return
        value = self._value(expression)
        if value.span.start in self.marks.absent:
            return
        text = string_of(word)[0] if word.rule == "string" else str(first_of(word))
        if word.rule != "string" and not self._is_ascii(text, where):
            return
        if text in body.attributes:
            self.report.error("duplicate", f"{text[:40]} is set twice", where, fix="delete one of them")
        body.attributes.setdefault(text, Attribute(text, where, value))


_TAKEN: dict[str, Any] = {
    "string": LenientValues._text, "int_lit": LenientValues._number, "float_lit": LenientValues._number,
    "identifier": LenientValues._word, "literal_value": LenientValues._word, "tuple": LenientValues._list,
    "object": LenientValues._object, "heredoc_template": LenientValues._heredoc,
}
