"""The expressions of a template. Each counts a step; whatever makes text or lists counts it before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from appliance.engine.jinja import methods, operators
from appliance.engine.jinja.filters import FILTERS
from appliance.engine.jinja.nodes import Expression, Macro, Run, Scope
from appliance.engine.jinja.tests import TESTS
from appliance.engine.jinja.text import is_marked, mark, part
from appliance.engine.jinja.values import (
    ITEM_COST,
    Fault,
    Function,
    Undefined,
    Value,
    bounded,
    is_true,
    items_of,
    joined,
    kind,
    make_list,
    to_text,
)


@dataclass(frozen=True, slots=True)
class Constant(Expression):
    """A literal."""

    constant: Value

    def value(self, run: Run, scope: Scope) -> Value:
        return self.constant


@dataclass(frozen=True, slots=True)
class Name(Expression):
    """A variable."""

    name: str

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        return scope.get(self.name)


@dataclass(frozen=True, slots=True)
class Items(Expression):
    """A list or a tuple."""

    items: Sequence[Expression]
    is_list: bool

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.make(ITEM_COST * len(self.items))
        values = [item.value(run, scope) for item in self.items]
        return values if self.is_list else tuple(values)


@dataclass(frozen=True, slots=True)
class Pairs(Expression):
    """A mapping."""

    pairs: Sequence[tuple[Expression, Expression]]

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.make(2 * ITEM_COST * len(self.pairs))
        return {operators.key(name.value(run, scope)): item.value(run, scope) for name, item in self.pairs}


@dataclass(frozen=True, slots=True)
class Attribute(Expression):
    """`target.name`: a method, or else an item."""

    target: Expression
    name: str

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        return methods.attribute(run.budget, self.target.value(run, scope), self.name)


@dataclass(frozen=True, slots=True)
class Item(Expression):
    """`target[index]`: an item, or else a method."""

    target: Expression
    index: Expression

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        return methods.item(run.budget, self.target.value(run, scope), self.index.value(run, scope))


@dataclass(frozen=True, slots=True)
class Slice(Expression):
    """`target[start:stop:step]`."""

    target: Expression
    bounds: Sequence[Expression | None]

    def value(self, run: Run, scope: Scope) -> Value:
        target = self.target.value(run, scope)
        start, stop, step = (None if bound is None else bound.value(run, scope) for bound in self.bounds)
        if not all(bound is None or isinstance(bound, int) for bound in (start, stop, step)) or step == 0:
            raise Fault("the bounds of a slice are not numbers")
        span = slice(start, stop, step)
        if isinstance(target, str):
            run.budget.make(len(target))
            first, last, stride = span.indices(len(target))
            if stride == 1:
                return part(target, first, max(first, last))
            return mark(target[span]) if is_marked(target) else target[span]
        if isinstance(target, Undefined):
            return []
        if not isinstance(target, list | tuple):
            raise Fault(f"{kind(target)} has no slices")
        items = make_list(run.budget, target[span])
        return items if isinstance(target, list) else tuple(items)


@dataclass(frozen=True, slots=True)
class Arguments:
    """The arguments of a call, filter or test."""

    positional: Sequence[Expression] = ()
    named: Sequence[tuple[str, Expression]] = ()
    rest: Expression | None = None  # `*rest`: the positional ones after those above

    def values(self, run: Run, scope: Scope) -> tuple[list[Value], dict[str, Value]]:
        """The values of all arguments."""
        positional = [argument.value(run, scope) for argument in self.positional]
        if self.rest is not None:
            positional += make_list(run.budget, items_of(run.budget, self.rest.value(run, scope)))
        return (positional, {name: argument.value(run, scope) for name, argument in self.named})


@dataclass(frozen=True, slots=True)
class Call(Expression):
    """`target(...)`."""

    target: Expression
    arguments: Arguments

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        target = self.target.value(run, scope)
        positional, named = self.arguments.values(run, scope)
        if isinstance(target, Macro):
            return target.call(run, positional, named)
        if not isinstance(target, Function):
            raise Fault(f"{kind(target)} cannot be called")
        return target.call(*positional, **named)


@dataclass(frozen=True, slots=True)
class Filter(Expression):
    """`value | name(...)`."""

    target: Expression
    name: str
    arguments: Arguments

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        target = self.target.value(run, scope)
        positional, named = self.arguments.values(run, scope)
        return FILTERS[self.name](run.budget, target, *positional, **named)


@dataclass(frozen=True, slots=True)
class Test(Expression):
    """`value is name(...)`."""

    target: Expression
    name: str
    arguments: Arguments

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        target = self.target.value(run, scope)
        return TESTS[self.name](run.budget, target, *self.arguments.values(run, scope)[0])


@dataclass(frozen=True, slots=True)
class Unary(Expression):
    """`not x`, `-x`, `+x`."""

    sign: str
    operand: Expression

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        operand = self.operand.value(run, scope)
        if self.sign == "not":
            return not is_true(operand)
        if not isinstance(operand, int | float):
            raise Fault(f"{kind(operand)} has no sign")
        return bounded(-operand if self.sign == "-" else +operand)


@dataclass(frozen=True, slots=True)
class Binary(Expression):
    """Two operands and an arithmetic operator or `~`."""

    sign: str
    left: Expression
    right: Expression

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        left, right = self.left.value(run, scope), self.right.value(run, scope)
        if self.sign == "~":
            return joined(run.budget, [to_text(run.budget, left), to_text(run.budget, right)])
        return operators.arithmetic(run.budget, self.sign, left, right)


@dataclass(frozen=True, slots=True)
class Logic(Expression):
    """`and`, `or`: the value of the operand that decides."""

    sign: str
    left: Expression
    right: Expression

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        left = self.left.value(run, scope)
        return left if is_true(left) == (self.sign == "or") else self.right.value(run, scope)


@dataclass(frozen=True, slots=True)
class Comparison(Expression):
    """`a < b <= c`, `a in b`, ..."""

    first: Expression
    rest: Sequence[tuple[str, Expression]]

    def value(self, run: Run, scope: Scope) -> Value:
        left = self.first.value(run, scope)
        for sign, node in self.rest:
            run.budget.step()
            right = node.value(run, scope)
            if not operators.compare(run.budget, sign, left, right):
                return False
            left = right
        return True


@dataclass(frozen=True, slots=True)
class Choice(Expression):
    """`a if condition else b`."""

    condition: Expression
    yes: Expression
    no: Expression | None

    def value(self, run: Run, scope: Scope) -> Value:
        run.budget.step()
        if is_true(self.condition.value(run, scope)):
            return self.yes.value(run, scope)
        return Undefined("the else of an if") if self.no is None else self.no.value(run, scope)
