"""The variables that a template reads and does not set itself: what its caller may give, by name.

A name is free where some evaluation could look it up outside of the template: before it is set, or
where only one branch of an `if` sets it. Attributes, keys, filters and texts are no variables,
whatever their names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from appliance.text.jinja import statements
from appliance.text.jinja.expressions import ArgumentList, Variable
from appliance.text.jinja.nodes import Expression, Statement

_LOOP = "loop"


def free_names(tree: statements.StatementList) -> frozenset[str]:
    """The free names of a parsed template."""
    walk = _Walk(frozenset(_all_set(tree)))
    walk.statement(tree, set())
    return frozenset(walk.found - {statements.BODY})


def _all_set(node: object) -> Iterator[str]:
    """Every name that is set anywhere outside of macros, by `set` or as a macro."""
    stack = [node]
    while stack:
        each = stack.pop()
        if isinstance(each, statements.Set) and each.attribute is None:
            yield from each.names
        if isinstance(each, statements.Define):
            yield each.name
            continue  # what it sets is its own
        stack += _parts(each)


def _parts(node: object) -> Sequence[object]:
    """The parts of a node, one level down."""
    if isinstance(node, Expression | Statement | ArgumentList):
        return [getattr(node, field.name) for field in fields(node)]  # type: ignore[arg-type]
    return node if isinstance(node, list | tuple) else ()


class _Walk:
    """Goes through statements in the order of their execution; `bound` are the names that are set
    for certain."""

    def __init__(self, set_somewhere: frozenset[str]) -> None:
        self.found: set[str] = set()
        self._set_somewhere = set_somewhere

    def expression(self, node: object, bound: set[str]) -> None:
        """Collect the free names of an expression, or of all that are in a list of them."""
        stack = [node]
        while stack:
            each = stack.pop()
            if isinstance(each, Variable) and each.name not in bound:
                self.found.add(each.name)
            elif isinstance(each, statements.Captured):
                self.statement(each.body, set(bound))
                stack.append(each.filtered)
            else:
                stack += _parts(each)

    def statement(self, node: Statement, bound: set[str]) -> None:
        """Collect the free names of a statement, and add what it sets to `bound`."""
        if isinstance(node, statements.StatementList):
            for _, each in node.body:
                self.statement(each, bound)
        elif isinstance(node, statements.If):
            self._branches(node, bound)
        elif isinstance(node, statements.For):
            self._loop(node, bound)
        elif isinstance(node, statements.Define):
            self._macro(node, bound)
        elif isinstance(node, statements.With):
            self.expression(node.variables, bound)
            self.statement(node.body, bound | {name for name, _ in node.variables})
        else:
            self.expression(_parts(node), bound)
            if isinstance(node, statements.Set) and node.attribute is None:
                bound.update(node.names)

    def _branches(self, node: statements.If, bound: set[str]) -> None:
        """A name that every branch sets is set; without an `else` no branch may run."""
        ends = []
        for condition, body in node.branches:
            self.expression(condition, bound)
            ends.append(set(bound))
            self.statement(body, ends[-1])
        if node.branches[-1][0] is None:
            bound |= set.intersection(*ends)

    def _loop(self, node: statements.For, bound: set[str]) -> None:
        self.expression(node.items, bound)
        self.expression(node.condition, bound | set(node.names))
        self.statement(node.body, bound | {*node.names, _LOOP})
        if node.otherwise is not None:
            self.statement(node.otherwise, set(bound))

    def _macro(self, node: statements.Define, bound: set[str]) -> None:
        """A macro runs later: it sees what the template will have set by then."""
        bound.add(node.name)
        inner = bound | self._set_somewhere
        for name, default in node.parameters:
            self.expression(default, inner)
            inner.add(name)
        self.statement(node.body, inner)
