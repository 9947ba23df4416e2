"""Tokens to the tree of a template. The grammar is that of Jinja 3.1.

Not part of it here: `include`, `import`, `extends`, `block` (templates stand alone), recursive
loops, and `call`. All are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from appliance.errors import TemplateError
from appliance.text.jinja import expressions, statements
from appliance.text.jinja.expression_parser import ExpressionParser
from appliance.text.jinja.lexer import error, tokenize
from appliance.text.jinja.nodes import Break, Continue, Expression, Statement
from appliance.text.jinja.tokens import TokenReader


def parse(source: str) -> statements.StatementList:
    """The tree of a template. TemplateError says what is not understood, with its line."""
    parser = StatementParser(TokenReader(tokenize(source)))
    try:
        return parser.block(())
    except RecursionError:
        raise TemplateError("the chat template is nested too deeply") from None


class StatementParser(ExpressionParser):
    """Statements; expressions come from the class below."""

    def __init__(self, tokens: TokenReader) -> None:
        super().__init__(tokens)
        self._loops = 0
        self._statements: Mapping[str, Callable[[], Statement]] = {
            "if": self._if, "for": self._for, "set": self._set, "macro": self._macro, "filter": self._filter_block,
            "with": self._with, "generation": self._generation,
            "break": partial(self._jump, Break), "continue": partial(self._jump, Continue),
        }

    def block(self, ends: Sequence[str]) -> statements.StatementList:
        """Statements up to a tag that begins with one of `ends`, which stays; up to the end if
        there are none."""
        self._tokens.deeper()
        body: list[tuple[int, Statement]] = []
        while True:
            if self._tokens.now.kind == "eof":
                if ends:
                    raise self._tokens.unexpected(" or ".join(repr(end) for end in ends))
                break
            if self._tokens.at("{%") and self._tokens.following.value in ends:
                break
            body.append((self._tokens.now.line, self._statement()))
        self._tokens.shallower()
        return statements.StatementList(body)

    def _statement(self) -> Statement:
        opening = self._tokens.next()
        if opening.kind == "text":
            return statements.LiteralText(opening.value)
        if opening.value == "{{":
            expression = self._expression()
            self._tokens.need("}}")
            return statements.Output(expression)
        name = self._tokens.next()
        make = self._statements.get(name.value) if name.kind == "name" else None
        if make is None:
            raise error(f"statement {name.value[:20]!r} is not known here; known: {', '.join(self._statements)}",
                        name.line)
        return make()

    def _body(self, *ends: str) -> statements.StatementList:
        """A body: the rest of its tag is read already up to "%}"; the tag that ends it is opened.
        """
        self._tokens.need("%}")
        body = self.block(ends)
        self._tokens.need("{%")
        return body

    def _whole_body(self, end: str) -> statements.StatementList:
        """A body and the tag that ends it."""
        body = self._body(end)
        self._end(end)
        return body

    def _end(self, name: str) -> None:
        self._tokens.need(name)
        self._tokens.need("%}")

    def _if(self) -> Statement:
        branches: list[tuple[Expression | None, statements.StatementList]] = []
        condition: Expression | None = self._expression()
        while True:
            branches.append((condition, self._body("elif", "else", "endif")))
            if condition is not None and self._tokens.take("elif"):
                condition = self._expression()
            elif condition is not None and self._tokens.take("else"):
                condition = None
            else:
                break
        self._end("endif")
        return statements.If(branches)

    def _names(self) -> list[str]:
        bracket = self._tokens.take("(")
        names = [self._tokens.name()]
        while self._tokens.take(","):
            if self._tokens.now.kind == "name" and not self._tokens.at("in"):
                names.append(self._tokens.name())
        if bracket:
            self._tokens.need(")")
        return names

    def _for(self) -> Statement:
        names = self._names()
        self._tokens.need("in")
        items = self._tuple(self._or)
        condition = self._expression() if self._tokens.take("if") else None
        if self._tokens.at("recursive"):
            raise error("recursive loops do not run here", self._tokens.now.line)
        self._loops += 1
        body = self._body("else", "endfor")
        self._loops -= 1
        otherwise = self._body("endfor") if self._tokens.take("else") else None
        self._end("endfor")
        return statements.For(names, items, condition, body, otherwise)

    def _set(self) -> Statement:
        first = self._tokens.name()
        if self._tokens.take("."):
            names, attribute = [first], self._tokens.name_after_dot()
        else:
            self._tokens.skip(-1)
            names, attribute = self._names(), None
        if self._tokens.take("="):
            value = self._tuple(self._expression)
            self._tokens.need("%}")
        else:
            filtered = self._filters(expressions.Variable(statements.BODY)) if self._tokens.at("|") else None
            value = statements.Captured(self._whole_body("endset"), filtered)
        return statements.Set(names, attribute, value)

    def _parameters(self) -> list[tuple[str, Expression | None]]:
        def parameter() -> tuple[str, Expression | None]:
            return self._tokens.name(), self._expression() if self._tokens.take("=") else None

        self._tokens.need("(")
        return self._list(")", parameter)

    def _macro(self) -> Statement:
        name = self._tokens.name()
        parameters = self._parameters()
        loops, self._loops = self._loops, 0
        body = self._body("endmacro")
        self._loops = loops
        self._end("endmacro")
        return statements.Define(name, parameters, body)

    def _filter_block(self) -> Statement:
        filtered = self._filters(self._filter(expressions.Variable(statements.BODY)))
        return statements.Output(statements.Captured(self._whole_body("endfilter"), filtered))

    def _with(self) -> Statement:
        variables: list[tuple[str, Expression]] = []
        while not self._tokens.at("%}"):
            if variables:
                self._tokens.need(",")
            name = self._tokens.name()
            self._tokens.need("=")
            variables.append((name, self._expression()))
        return statements.With(variables, self._whole_body("endwith"))

    def _generation(self) -> Statement:
        return statements.With((), self._whole_body("endgeneration"))

    def _jump(self, signal: type[Break | Continue]) -> Statement:
        if not self._loops:
            raise error("break and continue belong into a loop", self._tokens.now.line)
        self._tokens.need("%}")
        return statements.Jump(signal)
