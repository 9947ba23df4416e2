"""Tokens to expressions, with the precedences of Jinja 3.1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from appliance.text.jinja import expressions, methods
from appliance.text.jinja.filters import FILTERS
from appliance.text.jinja.lexer import Token, error
from appliance.text.jinja.nodes import Expression
from appliance.text.jinja.operators import BINARY, UNARY
from appliance.text.jinja.tests import TESTS
from appliance.text.jinja.tokens import CONSTANTS, RESERVED, TokenReader
from appliance.text.jinja.values import Value

T = TypeVar("T")

_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN")
_PRECEDENCE = {"+": 1, "-": 1, "~": 2, "*": 3, "/": 3, "//": 3, "%": 3}
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")


def _without_warning(escape: re.Match[str]) -> str:
    """The same value in a form that Python does not warn of: a backslash before a letter of no
    escape is itself, octal digits beyond \\377 for a character beyond a byte."""
    if escape[1] is not None:
        return f"\\u{int(escape[1], 8):04x}"
    return escape[0] if escape[2] in _ESCAPES or not escape[2].isascii() else "\\" + escape[0]


def unquote(token: Token) -> str:
    """The value of a string literal: escapes as Python has them, but no half of a surrogate pair.
    """
    body = token.value[1:-1]
    if "\\" not in body:
        return body
    try:
        text = _ESCAPE.sub(_without_warning, body).encode("ascii", "backslashreplace").decode("unicode-escape")
        text.encode()
    except UnicodeError:
        raise error("an escape in a string is no character", token.line) from None
    return text


class ExpressionParser:
    """Recursive descent over tokens."""

    def __init__(self, tokens: TokenReader) -> None:
        self._tokens = tokens

    # From the weakest operator to the strongest

    def _tuple(self, part: Callable[[], Expression]) -> Expression:
        """An expression, or several with commas."""
        first = part()
        if not self._tokens.at(","):
            return first
        items = [first]
        while self._tokens.take(","):
            if self._tokens.now.kind == "end" or self._tokens.at(")"):
                break
            items.append(part())
        return expressions.Items(items, is_list=False)

    def _expression(self) -> Expression:
        self._tokens.deeper()
        result = self._or()
        while self._tokens.take("if"):
            condition = self._or()
            otherwise = self._expression() if self._tokens.take("else") else None
            result = expressions.Conditional(condition, result, otherwise)
        self._tokens.shallower()
        return result

    def _or(self) -> Expression:
        left = self._and()
        while self._tokens.take("or"):
            left = expressions.Logic("or", left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._not()
        while self._tokens.take("and"):
            left = expressions.Logic("and", left, self._not())
        return left

    def _not(self) -> Expression:
        if not self._tokens.take("not"):
            return self._comparison()
        self._tokens.deeper()
        result = expressions.Computation(UNARY["not"], [self._not()])
        self._tokens.shallower()
        return result

    def _comparison(self) -> Expression:
        first = self._arithmetic(1)
        rest: list[tuple[str, Expression]] = []
        while True:
            if self._tokens.at(*_COMPARISONS):
                sign = self._tokens.next().value
            elif self._tokens.take("in"):
                sign = "in"
            elif self._tokens.at("not") and self._tokens.following.value == "in":
                self._tokens.skip(2)
                sign = "not in"
            else:
                break
            rest.append((sign, self._arithmetic(1)))
        return expressions.Comparison(first, rest) if rest else first

    def _arithmetic(self, lowest: int) -> Expression:
        left = self._unary(True)
        while self._tokens.now.kind == "operator" and _PRECEDENCE.get(self._tokens.now.value, 0) >= lowest:
            sign = self._tokens.next().value
            left = expressions.Computation(BINARY[sign], [left, self._arithmetic(_PRECEDENCE[sign] + 1)])
        return left

    def _unary(self, with_filters: bool) -> Expression:
        self._tokens.deeper()
        if self._tokens.at("-", "+"):
            result: Expression = expressions.Computation(UNARY[self._tokens.next().value], [self._unary(False)])
        else:
            result = self._primary()
        result = self._postfix(result)
        result = self._filters(result) if with_filters else result
        self._tokens.shallower()
        return result

    def _primary(self) -> Expression:
        token = self._tokens.now
        if token.kind == "string":
            parts = []
            while self._tokens.now.kind == "string":
                parts.append(unquote(self._tokens.next()))
            return expressions.Constant("".join(parts))
        if token.kind in ("int", "float"):
            return self._number(self._tokens.next())
        if token.kind == "name" and token.value not in RESERVED:
            self._tokens.next()
            if token.value in CONSTANTS:
                return expressions.Constant(CONSTANTS[token.value])
            return expressions.Variable(token.value)
        if self._tokens.take("("):
            return self._parenthesis()
        if self._tokens.take("["):
            return expressions.Items(self._list("]", self._expression), is_list=True)
        if self._tokens.take("{"):
            return expressions.Pairs(self._list("}", self._pair))
        raise self._tokens.unexpected("an expression")

    @staticmethod
    def _number(token: Token) -> Expression:
        digits = token.value.replace("_", "")
        if len(digits) > 18:
            raise error("a number is too long", token.line)
        return expressions.Constant(int(digits) if token.kind == "int" else float(digits))

    def _parenthesis(self) -> Expression:
        """Read what comes after "(", with ")"."""
        if self._tokens.take(")"):
            return expressions.Items((), is_list=False)
        result = self._tuple(self._expression)
        self._tokens.need(")")
        return result

    def _list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them up to `end`, which is read too; a comma may stand before
        it."""
        items: list[T] = []
        while not self._tokens.take(end):
            if items:
                self._tokens.need(",")
                if self._tokens.take(end):
                    break
            items.append(item())
        return items

    def _pair(self) -> tuple[Expression, Expression]:
        name = self._expression()
        self._tokens.need(":")
        return name, self._expression()

    def _postfix(self, target: Expression) -> Expression:
        while self._tokens.at(".", "[", "("):
            opening = self._tokens.next()
            if opening.value == "." and self._tokens.now.kind == "int":
                target = expressions.Computation(methods.item, [target, self._number(self._tokens.next())])
            elif opening.value == ".":
                name = expressions.Constant(self._tokens.name_after_dot())
                target = expressions.Computation(methods.attribute, [target, name])
            elif opening.value == "[":
                target = self._subscript(target, opening.line)
            else:
                target = expressions.Invocation(target, self._arguments())
        return target

    def _subscript(self, target: Expression, line: int) -> Expression:
        bounds: list[Expression] = []
        while True:
            absent = self._tokens.at(":") or (bounds and self._tokens.at("]"))
            bounds.append(expressions.Constant(None) if absent else self._expression())
            if not self._tokens.take(":"):
                break
        self._tokens.need("]")
        if len(bounds) > 3:
            raise error("a subscript is not understood", line)
        return expressions.Computation(methods.item if len(bounds) == 1 else methods.section, [target, *bounds])

    def _arguments(self) -> expressions.ArgumentList:
        """The arguments after "(" and with ")"."""
        positional: list[Expression] = []
        named: list[tuple[str, Expression]] = []
        rest: list[Expression] = []

        def argument() -> None:
            name = self._tokens.now
            if name.kind == "name" and self._tokens.following[:2] == ("operator", "="):
                self._tokens.skip(2)
                named.append((name.value, self._expression()))
            elif not rest and self._tokens.take("*"):
                rest.append(self._expression())
            elif named or rest:
                raise self._tokens.unexpected("a named argument")
            else:
                positional.append(self._expression())

        self._list(")", argument)
        return expressions.ArgumentList(positional, named, *rest)

    def _filters(self, target: Expression) -> Expression:
        """All filters, tests and calls that follow an expression."""
        while True:
            if self._tokens.take("|"):
                target = self._filter(target)
            elif self._tokens.take("is"):
                target = self._test(target)
            elif self._tokens.at(".", "[", "("):
                target = self._postfix(target)
            else:
                return target

    def _function(self, what: str, table: Mapping[str, Callable[..., Value]]) -> Callable[..., Value]:
        """The filter or test whose name, maybe with dots, comes next."""
        token = self._tokens.next()
        name = token.value
        while self._tokens.take("."):
            name += "." + self._tokens.name_after_dot()
        if name not in table:
            raise error(f"{what} {name[:40]!r} is not known here; known: {', '.join(sorted(table))}", token.line)
        return table[name]

    def _filter(self, target: Expression) -> Expression:
        function = self._function("filter", FILTERS)
        arguments = self._arguments() if self._tokens.take("(") else expressions.ArgumentList()
        return expressions.Filter(target, function, arguments)

    def _test(self, target: Expression) -> Expression:
        negated = self._tokens.take("not")
        function = self._function("test", TESTS)
        arguments = expressions.ArgumentList()
        if self._tokens.take("("):
            arguments = self._arguments()
        elif (self._tokens.now.kind in ("string", "int", "float") or self._tokens.at("[", "{")
              or (self._tokens.now.kind == "name" and self._tokens.now.value not in (RESERVED | {"recursive"}))):
            arguments = expressions.ArgumentList([self._postfix(self._primary())])
        result = expressions.Filter(target, function, arguments)
        return expressions.Computation(UNARY["not"], [result]) if negated else result
