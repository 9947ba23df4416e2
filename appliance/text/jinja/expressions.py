"""The expressions of a template. Each counts a step; whatever makes text or lists counts it before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from appliance.text.jinja import filters, operators
from appliance.text.jinja.nodes import Expression, Macro, Rendering, Scope
from appliance.text.jinja.values import ITEM_COST, Misuse, TemplateFunction, Undefined, Value, is_true, kind


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A literal."""

    constant: Value

    def value(self, run: Rendering, scope: Scope) -> Value:
        return self.constant


@dataclass(frozen=True, slots=True)
class Variable(Expression):
    """A variable."""

    name: str

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        return scope.get(self.name)


@dataclass(frozen=True, slots=True)
class Items(Expression):
    """A list or a tuple."""

    items: Sequence[Expression]
    is_list: bool

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.make(ITEM_COST * len(self.items))
        values = [item.value(run, scope) for item in self.items]
        return values if self.is_list else tuple(values)


@dataclass(frozen=True, slots=True)
class Pairs(Expression):
    """A mapping."""

    pairs: Sequence[tuple[Expression, Expression]]

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.make(2 * ITEM_COST * len(self.pairs))
        made = {operators.key(name.value(run, scope)): item.value(run, scope) for name, item in self.pairs}
        run.budget.need(*made)
        return made


@dataclass(frozen=True, slots=True)
class Computation(Expression):
    """`-x`, `a + b`, `a.b`, `a[b]`, `a[b:c]`: what a function makes of its operands' values."""

    function: Callable[..., Value]
    operands: Sequence[Expression]

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        values = []
        for operand in self.operands:  # a comprehension would take one more of Python's frames for each level of depth
            values.append(operand.value(run, scope))
        return self.function(run.budget, *values)


@dataclass(frozen=True, slots=True)
class ArgumentList:
    """The arguments of a call, filter or test."""

    positional: Sequence[Expression] = ()
    named: Sequence[tuple[str, Expression]] = ()
    rest: Expression | None = None  # `*rest`: the positional ones after those above

    def values(self, run: Rendering, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        """The values of all arguments."""
        positional = [argument.value(run, scope) for argument in self.positional]
        if self.rest is not None:
            positional += run.budget.make_list(run.budget.items_of(self.rest.value(run, scope)))
        return (positional, {name: argument.value(run, scope) for name, argument in self.named})


@dataclass(frozen=True, slots=True)
class Invocation(Expression):
    """`target(...)`."""

    target: Expression
    arguments: ArgumentList

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        target = self.target.value(run, scope)
        positional, named = self.arguments.values(run, scope)
        if isinstance(target, Macro):
            return target.call(run, positional, named)
        if not isinstance(target, TemplateFunction):
            raise Misuse(f"{kind(target)} cannot be called")
        return target.call(*positional, **named)


@dataclass(frozen=True, slots=True)
class Filter(Expression):
    """`value | name(...)` and `value is name(...)`."""

    target: Expression
    function: Callable[..., Value]
    arguments: ArgumentList

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        target = self.target.value(run, scope)
        positional, named = self.arguments.values(run, scope)
        return self.function(run.budget, target, *positional, **named)


@dataclass(frozen=True, slots=True)
class Logic(Expression):
    """`and`, `or`: the value of the operand that decides."""

    sign: str
    left: Expression
    right: Expression

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        left = self.left.value(run, scope)
        return left if is_true(left) == (self.sign == "or") else self.right.value(run, scope)


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """`a < b <= c`, `a in b`, ..."""

    first: Expression
    rest: Sequence[tuple[str, Expression]]

    def value(self, run: Rendering, scope: Scope) -> Value:
        left = self._emptiness(run, scope) if run.budget.stand_ins is not None else self.first.value(run, scope)
        for sign, node in self.rest:
            run.budget.step()
            right = node.value(run, scope)
            if not operators.compare(sign, run.budget, left, right):
                return False
            left = right
        return True


    def _emptiness(self, run: Rendering, scope: Scope) -> Value:
        """The first value. Of a length beside 0 it is 1 for each text that is not empty: texts in
        whose place is a stand-in have no length."""
        rest = [node.constant if isinstance(node, Constant) else None for _, node in self.rest]
        if not isinstance(self.first, Filter) or self.first.function is not filters.length or rest != [0]:
            return self.first.value(run, scope)
        target = self.first.target.value(run, scope)
        return int(bool(target)) if isinstance(target, str) else filters.length(run.budget, target)


@dataclass(frozen=True, slots=True)
class Conditional(Expression):
    """`a if condition else b`."""

    condition: Expression
    yes: Expression
    no: Expression | None

    def value(self, run: Rendering, scope: Scope) -> Value:
        run.budget.step()
        if is_true(self.condition.value(run, scope)):
            return self.yes.value(run, scope)
        return Undefined("the else of an if") if self.no is None else self.no.value(run, scope)
