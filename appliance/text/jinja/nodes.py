"""The common parts of all nodes of a parsed template: the state of a rendering, scopes, macros."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from appliance.text.jinja.values import Budget, Misuse, Opaque, Undefined, Value

MAX_CALLS = 60  # macros within macros


@dataclass(slots=True)
class Rendering:
    """The state of one rendering."""

    budget: Budget
    out: list[str] = field(default_factory=list)
    calls: int = 0  # macros that are running

    def write(self, text: str) -> None:
        """Add to the output."""
        self.budget.make(len(text))
        self.out.append(text)

    def capture(self, body: Statement, scope: Scope) -> str:
        """The output of a block, as a string."""
        outer, self.out = self.out, []
        try:
            body.run(self, scope)
            return self.budget.joined(self.out)
        finally:
            self.out = outer


class Scope:
    """Variables by name; what is not here is looked up further out."""

    __slots__ = ("outer", "values")

    def __init__(self, values: dict[str, Value], outer: Scope | None = None) -> None:
        self.values, self.outer = values, outer

    def get(self, name: str) -> Value:
        """The value of a variable, or an `Undefined`."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return Undefined(name)


class Break(Exception):  # noqa: N818 - a signal
    """`{% break %}`."""


class Continue(Exception):  # noqa: N818 - a signal
    """`{% continue %}`."""


class Expression:
    """A node with a value."""

    __slots__ = ()

    def value(self, run: Rendering, scope: Scope) -> Value:
        """Evaluate the node."""
        raise NotImplementedError


class Statement:
    """A node that writes or sets."""

    __slots__ = ()

    def run(self, run: Rendering, scope: Scope) -> None:
        """Execute the node."""
        raise NotImplementedError


@dataclass(slots=True, eq=False, repr=False)
class Macro(Opaque):
    """A macro with the variables that it sees."""

    word = "macro"
    name: str
    parameters: Sequence[tuple[str, Expression | None]]
    body: Statement
    scope: Scope

    def call(self, run: Rendering, positional: Sequence[Value], named: Mapping[str, Value]) -> str:
        """The macro's output."""
        parameters = self.parameters
        if len(positional) > len(parameters):
            raise Misuse(f"macro {self.name!r} takes at most {len(parameters)} arguments")
        run.calls += 1
        if run.calls > MAX_CALLS:
            raise Misuse(f"macros call each other more than {MAX_CALLS} deep")
        scope = Scope({}, self.scope)
        given = dict(zip((name for name, _ in parameters), positional, strict=False)) | dict(named)
        for name, default in parameters:
            if name in given:
                scope.values[name] = given.pop(name)
            else:
                scope.values[name] = Undefined(name) if default is None else default.value(run, scope)
        if given:
            raise Misuse(f"macro {self.name!r} has no parameter {min(given)!r}")
        try:
            return run.capture(self.body, scope)
        finally:
            run.calls -= 1
