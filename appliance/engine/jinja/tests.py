"""The tests that templates may use: `value is name`. As Jinja 3.1 has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from appliance.engine.jinja.operators import numeric, ordered
from appliance.engine.jinja.values import Budget, Undefined, Value, contains, equal, to_text


def _asking(question: Callable[[str], bool]) -> Callable[[Budget, Value], bool]:
    def test(budget: Budget, value: Value) -> bool:
        text = to_text(budget, value)
        budget.read(len(text))
        return question(text)

    return test


def _order(symbol: str) -> Callable[[Budget, Value, Value], bool]:
    def test(budget: Budget, value: Value, other: Value) -> bool:
        left, right = ordered(budget, value, other)
        return bool({"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}[symbol])

    return test


def _differ(budget: Budget, value: Value, other: Value) -> bool:
    return not equal(budget, value, other)


TESTS: Mapping[str, Callable[..., bool]] = {
    "defined": lambda _, value: not isinstance(value, Undefined),
    "undefined": lambda _, value: isinstance(value, Undefined),
    "none": lambda _, value: value is None, "string": lambda _, value: isinstance(value, str),
    "mapping": lambda _, value: isinstance(value, dict),
    "sequence": lambda _, value: isinstance(value, str | list | tuple | dict),
    "iterable": lambda _, value: isinstance(value, str | list | tuple | dict | Undefined),
    "number": lambda _, value: isinstance(value, int | float), "boolean": lambda _, value: isinstance(value, bool),
    "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda _, value: isinstance(value, float), "true": lambda _, value: value is True,
    "false": lambda _, value: value is False, "odd": lambda _, value: numeric(value) % 2 == 1,
    "even": lambda _, value: numeric(value) % 2 == 0,
    "divisibleby": lambda _, value, by: numeric(value) % (numeric(by) or 1) == 0,
    "lower": _asking(str.islower), "upper": _asking(str.isupper),
    "in": lambda budget, value, container: contains(budget, container, value),
    "sameas": lambda _, value, other: value is other, "escaped": lambda _, value: False,
    **dict.fromkeys(("eq", "equalto", "=="), equal), **dict.fromkeys(("ne", "!="), _differ),
    **dict.fromkeys(("lt", "lessthan", "<"), _order("<")), **dict.fromkeys(("gt", "greaterthan", ">"), _order(">")),
    **dict.fromkeys(("le", "<="), _order("<=")), **dict.fromkeys(("ge", ">="), _order(">=")),
}
