"""A parsed template, ready to be rendered any number of times."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.errors import TemplateError
from appliance.text.jinja.free_names import free_names
from appliance.text.jinja.marks import concatenate
from appliance.text.jinja.nodes import Rendering, Scope
from appliance.text.jinja.operators import key, whole
from appliance.text.jinja.parser import parse
from appliance.text.jinja.values import ITEM_COST, Budget, NamespaceObject, TemplateFunction, Value

MAX_RANGE = 1_000_000  # the budget ends before


class Template:
    """One template. Rendering it changes nothing in it, so that threads may share it."""

    def __init__(self, source: str) -> None:
        self._tree = parse(source)
        self.free = free_names(self._tree)
        """The variables that it reads and does not set itself."""

    def render(self, variables: Mapping[str, Value], budget: Budget) -> str:
        """The output; `variables` hold only the values of `jinja.values`. TemplateError says which
        line asks for what cannot be done, or that the budget is used up. It has nothing of the
        variables' content."""
        run = Rendering(budget)
        scope = Scope({**_functions(budget), **variables})
        try:
            self._tree.run(run, Scope({}, scope))
        except RecursionError:
            raise TemplateError("the chat template is nested too deeply") from None
        except (TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise TemplateError("the chat template calls something with arguments that it does not take "
                                f"({type(error).__name__})") from None
        return concatenate(run.out)


def _functions(budget: Budget) -> dict[str, Value]:
    """The functions that every template has, bound to the budget of one rendering."""

    def numbers(*bounds: Value) -> list[int]:
        span = range(*(whole(bound, "range", -MAX_RANGE, MAX_RANGE) for bound in bounds))
        budget.make(ITEM_COST * len(span))
        return list(span)

    def namespace(*given: Value, **named: Value) -> NamespaceObject:
        return NamespaceObject(mapping(*given, **named))

    def mapping(*given: Value, **named: Value) -> dict[str, Value]:
        merged: dict[str, Value] = {}
        for part in (*given, named):
            pairs = part.items() if isinstance(part, dict) else part
            budget.make(2 * ITEM_COST * len(pairs))
            merged.update({key(name): value for name, value in pairs})
        return merged

    functions: Mapping[str, Callable[..., Value]] = {"range": numbers, "namespace": namespace, "dict": mapping}
    return {name: TemplateFunction(name, call) for name, call in functions.items()}
