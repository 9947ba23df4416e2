"""The tests that templates may use: `value is name`. As Jinja 3.1 has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from appliance.text.jinja.operators import compare, numeric
from appliance.text.jinja.values import Undefined


def _comparing(sign: str, *names: str) -> dict[str, Callable[..., bool]]:
    return dict.fromkeys((sign, *names), partial(compare, sign))


TESTS: Mapping[str, Callable[..., bool]] = {
    "defined": lambda _, value: not isinstance(value, Undefined),
    "undefined": lambda _, value: isinstance(value, Undefined),
    "none": lambda _, value: value is None, "string": lambda _, value: isinstance(value, str),
    "mapping": lambda _, value: isinstance(value, dict),
    "sequence": lambda _, value: isinstance(value, str | list | tuple | dict | Undefined),
    "iterable": lambda _, value: isinstance(value, str | list | tuple | dict | Undefined),
    "number": lambda _, value: isinstance(value, int | float), "boolean": lambda _, value: isinstance(value, bool),
    "integer": lambda _, value: isinstance(value, int) and not isinstance(value, bool),
    "float": lambda _, value: isinstance(value, float), "true": lambda _, value: value is True,
    "false": lambda _, value: value is False, "odd": lambda _, value: numeric(value) % 2 == 1,
    "even": lambda _, value: numeric(value) % 2 == 0,
    "divisibleby": lambda _, value, num: numeric(value) % (numeric(num) or 1) == 0,
    **_comparing("in"), **_comparing("==", "eq", "equalto"), **_comparing("!=", "ne"),
    **_comparing("<", "lt", "lessthan"), **_comparing(">", "gt", "greaterthan"), **_comparing("<=", "le"),
    **_comparing(">=", "ge"),
}
