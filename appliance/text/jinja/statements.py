"""The statements of a template: text, output, if, for, set, macro and the rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.text.jinja.lexer import error
from appliance.text.jinja.nodes import Break, Continue, Expression, Macro, Rendering, Scope, Statement
from appliance.text.jinja.values import LoopVariable, Misuse, NamespaceObject, Value, is_true, kind

BODY = "the body"  # no template can name it


@dataclass(frozen=True, slots=True)
class Captured(Expression):
    """The text of a body, or what filters make of it: their expression sees the text as the
    variable `BODY`."""

    body: Statement
    filtered: Expression | None

    def value(self, run: Rendering, scope: Scope) -> Value:
        text = run.capture(self.body, Scope({}, scope))
        return text if self.filtered is None else self.filtered.value(run, Scope({BODY: text}, scope))


@dataclass(frozen=True, slots=True)
class StatementList(Statement):
    """Statements one after the other, each with its line."""

    body: Sequence[tuple[int, Statement]]

    def run(self, run: Rendering, scope: Scope) -> None:
        for line, statement in self.body:
            run.budget.step()
            try:
                statement.run(run, scope)
            except Misuse as fault:  # the innermost statement around it gives it a line
                raise error(str(fault), line) from None


@dataclass(frozen=True, slots=True)
class LiteralText(Statement):
    """Text of the template."""

    text: str

    def run(self, run: Rendering, scope: Scope) -> None:
        run.write(self.text)


@dataclass(frozen=True, slots=True)
class Output(Statement):
    """`{{ ... }}`, and `{% filter %}`."""

    expression: Expression

    def run(self, run: Rendering, scope: Scope) -> None:
        run.write(run.budget.to_text(self.expression.value(run, scope)))


@dataclass(frozen=True, slots=True)
class If(Statement):
    """`{% if %}` with its branches; the condition of `else` is None."""

    branches: Sequence[tuple[Expression | None, StatementList]]

    def run(self, run: Rendering, scope: Scope) -> None:
        for condition, body in self.branches:
            if condition is None or is_true(condition.value(run, scope)):
                body.run(run, scope)
                return


@dataclass(frozen=True, slots=True)
class For(Statement):
    """`{% for names in items if condition %}`; what is set within stays within. Its `else` runs
    when no turn came to its end, also where all were left by `continue`."""

    names: Sequence[str]
    items: Expression
    condition: Expression | None
    body: StatementList
    otherwise: StatementList | None

    def run(self, run: Rendering, scope: Scope) -> None:
        items = self._items(run, scope)
        loop, came_to_end = LoopVariable(items), False
        for index, item in enumerate(items):
            run.budget.step()
            loop.index0 = index
            values = {"loop": loop}
            bind(values, self.names, item)
            try:
                self.body.run(run, Scope(values, scope))
            except Continue:
                continue
            except Break:
                break
            came_to_end = True
        if not came_to_end and self.otherwise is not None:
            self.otherwise.run(run, scope)

    def _items(self, run: Rendering, scope: Scope) -> Sequence[Value]:
        items = run.budget.items_of(self.items.value(run, scope))
        if self.condition is None:
            return items
        kept = []
        for item in items:
            values: dict[str, Value] = {}
            bind(values, self.names, item)
            if is_true(self.condition.value(run, Scope(values, scope))):
                kept.append(item)
        return run.budget.make_list(kept)


def bind(values: dict[str, Value], names: Sequence[str], item: Value) -> None:
    """Set one name, or several from the items of a list."""
    if len(names) == 1:
        values[names[0]] = item
        return
    if not isinstance(item, list | tuple) or len(item) != len(names):
        raise Misuse(f"{kind(item)} does not unpack to {len(names)} names")
    values.update(zip(names, item, strict=True))


@dataclass(frozen=True, slots=True)
class Set(Statement):
    """`{% set a, b = ... %}`, `{% set n.x = ... %}`."""

    names: Sequence[str]
    attribute: str | None  # of the namespace `names[0]`
    value: Expression

    def run(self, run: Rendering, scope: Scope) -> None:
        value = self.value.value(run, scope)
        if self.attribute is None:
            bind(scope.values, self.names, value)
            return
        target = scope.get(self.names[0])
        if not isinstance(target, NamespaceObject):
            raise Misuse(f"attributes can be set on a namespace only; {self.names[0]!r} is {kind(target)}")
        target.values[self.attribute] = value


@dataclass(frozen=True, slots=True)
class With(Statement):
    """`{% with %}` and `{% generation %}`: a body with variables of its own."""

    variables: Sequence[tuple[str, Expression]]
    body: StatementList

    def run(self, run: Rendering, scope: Scope) -> None:
        values = {name: expression.value(run, scope) for name, expression in self.variables}
        self.body.run(run, Scope(values, scope))


@dataclass(frozen=True, slots=True)
class Jump(Statement):
    """`{% break %}` and `{% continue %}`."""

    signal: type[Break | Continue]

    def run(self, run: Rendering, scope: Scope) -> None:
        raise self.signal


@dataclass(frozen=True, slots=True)
class Define(Statement):
    """`{% macro name(...) %}`; parameters without a default have None."""

    name: str
    parameters: Sequence[tuple[str, Expression | None]]
    body: StatementList

    def run(self, run: Rendering, scope: Scope) -> None:
        scope.values[self.name] = Macro(self.name, self.parameters, self.body, scope)
