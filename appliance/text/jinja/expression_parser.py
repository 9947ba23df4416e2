"""Tokens to expressions, with the precedences of Jinja 3.1."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from appliance.errors import TemplateError
from appliance.text.jinja import expressions, methods
from appliance.text.jinja.filters import FILTERS
from appliance.text.jinja.lexer import Token, error
from appliance.text.jinja.nodes import Expression
from appliance.text.jinja.operators import BINARY, UNARY
from appliance.text.jinja.tests import TESTS
from appliance.text.jinja.values import Value

T = TypeVar("T")

MAX_DEPTH = 60  # of statements and expressions within each other
CONSTANTS: Mapping[str, object] = {
    "true": True, "True": True, "false": False, "False": False, "none": None, "None": None}
_ESCAPE = re.compile(r"\\(?:([0-7]{1,3})|(.))", re.DOTALL)
_ESCAPES = frozenset("\n\\'\"abfnrtvxuUN")
RESERVED = frozenset(["and", "or", "not", "in", "is", "if", "else", "elif", "for"])
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
    """Recursive descent over tokens; `_depth` bounds the recursion."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    # Tokens

    @property
    def _now(self) -> Token:
        return self._tokens[self._at]

    def _next(self) -> Token:
        token = self._tokens[self._at]
        if token.kind != "eof":
            self._at += 1
        return token

    def _is(self, *values: str) -> bool:
        return self._now.value in values and self._now.kind in ("operator", "name", "end", "begin")

    def _take(self, value: str) -> bool:
        if self._is(value):
            self._at += 1
            return True
        return False

    def _need(self, value: str) -> Token:
        if not self._is(value):
            raise self._unexpected(f"{value!r}")
        return self._next()

    def _unexpected(self, wanted: str) -> TemplateError:
        found = self._now
        shown = "the end of the template" if found.kind == "eof" else "text" if found.kind == "text" else repr(
            found.value[:20])
        return error(f"{shown} found; expected {wanted}", found.line)

    def _name(self) -> str:
        if self._now.kind != "name" or self._now.value in RESERVED or self._now.value in CONSTANTS:
            raise self._unexpected("a name")
        return self._next().value

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise error(f"more than {MAX_DEPTH} statements or brackets within each other", self._now.line)

    # Expressions, from the weakest operator to the strongest

    def _tuple(self, part: Callable[[], Expression]) -> Expression:
        """An expression, or several with commas."""
        first = part()
        if not self._is(","):
            return first
        items = [first]
        while self._take(","):
            if self._now.kind == "end" or self._is(")"):
                break
            items.append(part())
        return expressions.Items(items, is_list=False)

    def _expression(self) -> Expression:
        self._deeper()
        result = self._or()
        while self._take("if"):
            condition = self._or()
            otherwise = self._expression() if self._take("else") else None
            result = expressions.Conditional(condition, result, otherwise)
        self._depth -= 1
        return result

    def _or(self) -> Expression:
        left = self._and()
        while self._take("or"):
            left = expressions.Logic("or", left, self._and())
        return left

    def _and(self) -> Expression:
        left = self._not()
        while self._take("and"):
            left = expressions.Logic("and", left, self._not())
        return left

    def _not(self) -> Expression:
        if not self._take("not"):
            return self._comparison()
        self._deeper()
        result = expressions.Computation(UNARY["not"], [self._not()])
        self._depth -= 1
        return result

    def _comparison(self) -> Expression:
        first = self._arithmetic(1)
        rest: list[tuple[str, Expression]] = []
        while True:
            if self._is(*_COMPARISONS):
                sign = self._next().value
            elif self._take("in"):
                sign = "in"
            elif self._is("not") and self._tokens[self._at + 1].value == "in":
                self._at += 2
                sign = "not in"
            else:
                break
            rest.append((sign, self._arithmetic(1)))
        return expressions.Comparison(first, rest) if rest else first

    def _arithmetic(self, lowest: int) -> Expression:
        left = self._unary(True)
        while self._now.kind == "operator" and _PRECEDENCE.get(self._now.value, 0) >= lowest:
            sign = self._next().value
            left = expressions.Computation(BINARY[sign], [left, self._arithmetic(_PRECEDENCE[sign] + 1)])
        return left

    def _unary(self, with_filters: bool) -> Expression:
        self._deeper()
        if self._is("-", "+"):
            result: Expression = expressions.Computation(UNARY[self._next().value], [self._unary(False)])
        else:
            result = self._primary()
        result = self._postfix(result)
        result = self._filters(result) if with_filters else result
        self._depth -= 1
        return result

    def _primary(self) -> Expression:
        token = self._now
        if token.kind == "string":
            parts = []
            while self._now.kind == "string":
                parts.append(unquote(self._next()))
            return expressions.Constant("".join(parts))
        if token.kind in ("int", "float"):
            return self._number(self._next())
        if token.kind == "name" and token.value not in RESERVED:
            self._next()
            if token.value in CONSTANTS:
                return expressions.Constant(CONSTANTS[token.value])
            return expressions.Variable(token.value)
        if self._take("("):
            return self._parenthesis()
        if self._take("["):
            return expressions.Items(self._list("]", self._expression), is_list=True)
        if self._take("{"):
            return expressions.Pairs(self._list("}", self._pair))
        raise self._unexpected("an expression")

    @staticmethod
    def _number(token: Token) -> Expression:
        digits = token.value.replace("_", "")
        if len(digits) > 18:
            raise error("a number is too long", token.line)
        return expressions.Constant(int(digits) if token.kind == "int" else float(digits))

    def _parenthesis(self) -> Expression:
        """Read what comes after "(", with ")"."""
        if self._take(")"):
            return expressions.Items((), is_list=False)
        result = self._tuple(self._expression)
        self._need(")")
        return result

    def _list(self, end: str, item: Callable[[], T]) -> list[T]:
        """Items with commas between them up to `end`, which is read too; a comma may stand before
        it."""
        items: list[T] = []
        while not self._take(end):
            if items:
                self._need(",")
                if self._take(end):
                    break
            items.append(item())
        return items

    def _pair(self) -> tuple[Expression, Expression]:
        name = self._expression()
        self._need(":")
        return name, self._expression()

    def _name_after_dot(self) -> str:
        if self._now.kind not in ("name", "int"):
            raise self._unexpected("a name")
        return self._next().value

    def _postfix(self, target: Expression) -> Expression:
        while self._is(".", "[", "("):
            opening = self._next()
            if opening.value == "." and self._now.kind == "int":
                target = expressions.Computation(methods.item, [target, self._number(self._next())])
            elif opening.value == ".":
                name = expressions.Constant(self._name_after_dot())
                target = expressions.Computation(methods.attribute, [target, name])
            elif opening.value == "[":
                target = self._subscript(target, opening.line)
            else:
                target = expressions.Invocation(target, self._arguments())
        return target

    def _subscript(self, target: Expression, line: int) -> Expression:
        bounds: list[Expression] = []
        while True:
            absent = self._is(":") or (bounds and self._is("]"))
            bounds.append(expressions.Constant(None) if absent else self._expression())
            if not self._take(":"):
                break
        self._need("]")
        if len(bounds) > 3:
            raise error("a subscript is not understood", line)
        return expressions.Computation(methods.item if len(bounds) == 1 else methods.section, [target, *bounds])

    def _arguments(self) -> expressions.ArgumentList:
        """The arguments after "(" and with ")"."""
        positional: list[Expression] = []
        named: list[tuple[str, Expression]] = []
        rest: list[Expression] = []

        def argument() -> None:
            name = self._now
            if name.kind == "name" and self._tokens[self._at + 1][:2] == ("operator", "="):
                self._at += 2
                named.append((name.value, self._expression()))
            elif not rest and self._take("*"):
                rest.append(self._expression())
            elif named or rest:
                raise self._unexpected("a named argument")
            else:
                positional.append(self._expression())

        self._list(")", argument)
        return expressions.ArgumentList(positional, named, *rest)

    def _filters(self, target: Expression) -> Expression:
        """All filters, tests and calls that follow an expression."""
        while True:
            if self._take("|"):
                target = self._filter(target)
            elif self._take("is"):
                target = self._test(target)
            elif self._is(".", "[", "("):
                target = self._postfix(target)
            else:
                return target

    def _function(self, what: str, table: Mapping[str, Callable[..., Value]]) -> Callable[..., Value]:
        """The filter or test whose name, maybe with dots, comes next."""
        token = self._next()
        name = token.value
        while self._take("."):
            name += "." + self._name_after_dot()
        if name not in table:
            raise error(f"{what} {name[:40]!r} is not known here; known: {', '.join(sorted(table))}", token.line)
        return table[name]

    def _filter(self, target: Expression) -> Expression:
        function = self._function("filter", FILTERS)
        arguments = self._arguments() if self._take("(") else expressions.ArgumentList()
        return expressions.Filter(target, function, arguments)

    def _test(self, target: Expression) -> Expression:
        negated = self._take("not")
        function = self._function("test", TESTS)
        arguments = expressions.ArgumentList()
        if self._take("("):
            arguments = self._arguments()
        elif (self._now.kind in ("string", "int", "float") or self._is("[", "{")
              or (self._now.kind == "name" and self._now.value not in (RESERVED | {"recursive"}))):
            arguments = expressions.ArgumentList([self._postfix(self._primary())])
        result = expressions.Filter(target, function, arguments)
        return expressions.Computation(UNARY["not"], [result]) if negated else result
