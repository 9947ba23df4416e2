"""The grammar's tree to the tree of literals; whatever has to be computed is refused."""

from __future__ import annotations

from typing import Any

from lark import Token

from appliance.policy.hcl.diagnostics import SourceText, Span
from appliance.policy.hcl.grammar import SyntaxNode
from appliance.policy.hcl.reading import LITERALS
from appliance.policy.hcl.tokens import span
from appliance.policy.hcl.tree import Attribute, BlockNode, Body, ListNode, Literal, Node
from appliance.policy.schema.kinds import MAX_INTEGER

GAP = "new_line_or_comment"


class Values:
    """Walks the tree. Its depth is bounded (`reading`)."""

    def __init__(self, text: SourceText) -> None:
        self.text = text

    def file(self, tree: SyntaxNode) -> Body:
        """Return the whole file. Raises InvalidPolicyError."""
        body = Body(Span(0, 0))
        self._items(body, tree.children[0])
        return body

    def _items(self, body: Body, tree: SyntaxNode) -> None:
        """Add the attributes and blocks of a body."""
        for item in parts(tree):
            if item.rule == "attribute":
                name, _equals, expression = parts(item)
                self._add(body, *self._name(name), self._value(expression))
            elif item.rule == "block":
                self._block(body, item)

    def _add(self, body: Body, name: str, where: Span, value: Node) -> None:
        if name in body.attributes:
            line, _ = self.text.line_column(body.attributes[name].name_span.start)
            raise self.text.refusal("duplicate", f"{name[:40]} is set twice", where,
                                    f"each attribute once; the first stands on line {line}")
        body.attributes[name] = Attribute(name, where, value)

    def _block(self, body: Body, tree: SyntaxNode) -> None:
        first, *rest = parts(tree)
        opening, inside, closing = rest[-3:]
        text, where = self._name(first)
        labels = [self._label(label) for label in rest[:-3]]
        inner = Body(Span(span(opening).start, span(closing).end))
        self._items(inner, inside)
        body.blocks.append(BlockNode(text, where, tuple(labels), inner, Span(where.start, inner.span.end)))

    def _name(self, tree: SyntaxNode) -> tuple[str, Span]:
        """Return a name that stands without quotes, and where it stands."""
        name, where = name_of(tree)
        if not name.isascii():
            raise self.text.refusal("syntax", "this name has a letter beyond ASCII", where,
                                    "names of letters a to z, A to Z, digits, _ and -")
        return name, where

    def _label(self, tree: SyntaxNode) -> tuple[str, Span]:
        if tree.rule == "string":
            return string_of(tree)
        if tree.rule == GAP:
            raise self.text.refusal("syntax", "the opening brace stands on a line of its own", span(first_of(tree)))
        text, where = name_of(tree)
        if text not in ("true", "false"):
            raise self.text.refusal("syntax", "this label stands without quotes", where)
        return text, where

    def _value(self, tree: SyntaxNode) -> Node:
        """Return the value of an expression that is a literal, a list or an object."""
        where = span_of(tree)
        term = tree.children[0] if tree.rule == "expr_term" and len(tree.children) == 1 else tree
        take = _TAKEN.get(term.rule)
        if take is None:
            raise self.text.refusal("expression", "this is an expression, which has to be computed", where, LITERALS)
        node: Node = take(self, term, where)
        return node

    def _text(self, tree: SyntaxNode, where: Span) -> Node:
        return Literal(string_of(tree)[0], where)

    def _heredoc(self, tree: SyntaxNode, where: Span) -> Node:
        return Literal(str(first_of(tree)), where)

    def _number(self, tree: SyntaxNode, where: Span) -> Node:
        """Return an int for a whole number, however it is written; a float for any other."""
        word = str(first_of(tree))
        value = number_of(word)
        if value is None:
            raise self.text.refusal("syntax", "this is too large a number", where,
                                    f"numbers from -{MAX_INTEGER} to {MAX_INTEGER}")
        return Literal(value, where)

    def _word(self, tree: SyntaxNode, where: Span) -> Node:
        word = str(first_of(tree))
        if word not in ("true", "false"):
            raise self.text.refusal("expression", "a name is not a value here", where,
                                    "true or false, in lower case; a text stands in quotes")
        return Literal(word == "true", where)

    def _list(self, tree: SyntaxNode, where: Span) -> Node:
        return ListNode(tuple(self._value(part) for part in parts(tree)
                              if isinstance(part, SyntaxNode) and part.rule != GAP), where)

    def _object(self, tree: SyntaxNode, where: Span) -> Node:
        body = Body(where)
        for part in parts(tree):
            if isinstance(part, SyntaxNode) and part.rule == "object_elem":
                key, _equals, expression = part.children
                self._add(body, *self._key(key), self._value(expression))
        return body

    def _key(self, key: SyntaxNode) -> tuple[str, Span]:
        """Return the name of an object's field."""
        where, word = span_of(key), key.children[0]
        word = word.children[0] if word.rule == "expr_term" and len(word.children) == 1 else word
        if word.rule not in ("identifier", "literal_value", "keyword", "string"):
            raise self.text.refusal("expression", "this is an expression, which has to be computed", where, LITERALS)
        return (string_of(word)[0] if word.rule == "string" else self._name(word)[0]), where


_TAKEN: dict[str, Any] = {
    "string": Values._text, "int_lit": Values._number, "float_lit": Values._number, "identifier": Values._word,
    "literal_value": Values._word, "tuple": Values._list, "object": Values._object,
    "heredoc_template": Values._heredoc,
}


def number_of(word: str) -> int | float | None:
    """Return the number that a literal stands for; None for one that is too large."""
    number = float(word)
    if abs(number) <= MAX_INTEGER and (whole := _whole(word)) is not None and abs(whole) <= MAX_INTEGER:
        return whole
    return number if abs(number) < MAX_INTEGER else None


def _whole(word: str) -> int | None:
    """Return the whole number that a literal stands for, exactly; None for a fraction. It is not
    for numbers that are too large."""
    mantissa, _, exponent = word.lower().partition("e")
    digits = mantissa.replace(".", "")
    shift = int(exponent or "0") - len(mantissa.partition(".")[2])
    if int(digits) == 0 or shift >= 0:
        return int(digits) * 10**shift if int(digits) else 0
    kept, cut = digits[:shift], digits[shift:]
    return int(kept) if kept.strip("-") and not cut.strip("0") else None


def parts(tree: SyntaxNode) -> list[Any]:
    """Return the parts of a tree, with those of its rules that only repeat in their place."""
    found, waiting = [], [*reversed(tree.children)]
    while waiting:
        part = waiting.pop()
        if isinstance(part, SyntaxNode) and part.rule.startswith("_"):
            waiting += reversed(part.children)
        else:
            found.append(part)
    return found


def first_of(part: Any) -> Token:
    """Return the first token."""
    while isinstance(part, SyntaxNode):
        part = part.children[0]
    token: Token = part
    return token


def span_of(tree: SyntaxNode) -> Span:
    """Return where a tree stands, without the line ends behind it that the grammar counts to an
    operation."""
    part: Any = tree
    while isinstance(part, SyntaxNode):
        part = next(each for each in reversed(part.children) if not isinstance(each, SyntaxNode) or each.rule != GAP)
    return Span(span(first_of(tree)).start, span(part).end)


def name_of(tree: SyntaxNode) -> tuple[str, Span]:
    """Return a name and where it stands."""
    token = first_of(tree)
    return str(token), span(token)


def string_of(tree: SyntaxNode) -> tuple[str, Span]:
    """Return the text of a string, and where it stands."""
    return "".join(str(first_of(part)) for part in parts(tree) if isinstance(part, SyntaxNode)), span_of(tree)
