"""Operators, and the checks that filters and methods share."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from appliance.text.jinja import marks
from appliance.text.jinja.marks import Marked, mark
from appliance.text.jinja.values import (
    ITEM_COST,
    SCALARS,
    Absent,
    Budget,
    Misuse,
    NamespaceObject,
    Undefined,
    Value,
    bounded,
    is_true,
    kind,
)

_ORDER: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_CALCULATE: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod}


def key(value: Value) -> Value:
    """A value that may be a key of a mapping."""
    if not isinstance(value, SCALARS):
        raise Misuse(f"{kind(value)} cannot be a key")
    return value


def text_of(value: Value, what: str) -> str:
    """A value that must be a string."""
    if not isinstance(value, str):
        raise Misuse(f"{what} needs a string, not {kind(value)}")
    return value


def whole(value: Value, what: str, low: int, high: int) -> int:
    """A value that must be an integer within bounds."""
    if not isinstance(value, int) or not low <= value <= high:
        raise Misuse(f"{what} needs a whole number from {low} to {high}")
    return value


def compare(sign: str, budget: Budget, left: Value, right: Value, /) -> bool:
    """`left sign right`; only numbers and only strings have an order."""
    if sign in ("==", "!="):
        return budget.equal(left, right) == (sign == "==")
    if sign in ("in", "not in"):
        return budget.contains(right, left) == (sign == "in")
    if isinstance(left, str) and isinstance(right, str):
        budget.read(min(len(left), len(right)))
        budget.need(left, right)
    elif not isinstance(left, int | float) or not isinstance(right, int | float):
        raise Misuse(f"{kind(left)} and {kind(right)} have no order")
    return _ORDER[sign](left, right)


def _arithmetic(sign: str, budget: Budget, left: Value, right: Value) -> Value:
    """`left sign right` for numbers; `+` and `*` for strings and lists too, `~` for all."""
    if sign == "~":
        return budget.joined([budget.to_text(left), budget.to_text(right)])
    if isinstance(left, int | float) and isinstance(right, int | float):
        if sign in ("/", "//", "%") and right == 0:
            raise Misuse("division by zero")
        return bounded(_CALCULATE[sign](left, right))
    if sign == "+" and isinstance(left, str) and isinstance(right, str):
        return budget.joined([left, right])
    if sign == "+" and isinstance(left, list | tuple) and type(left) is type(right):
        budget.make(ITEM_COST * (len(left) + len(right)))
        return type(left)([*left, *right])
    if sign == "+" and (isinstance(left, Absent) or isinstance(right, Absent)):
        return _beside_nothing(right if isinstance(left, Absent) else left)
    if sign == "*" and isinstance(right, str | list | tuple):
        left, right = right, left
    if sign == "*" and isinstance(left, str | list | tuple) and isinstance(right, int):
        count = max(0, right)
        budget.make(len(left) * count * (1 if isinstance(left, str) else ITEM_COST))
        return marks.concatenate([left] * count) if isinstance(left, Marked) else left * count
    raise Misuse(f"{kind(left)} and {kind(right)} do not go with {sign!r}")


def _beside_nothing(value: Value) -> Value:
    """The result of joining a value with an absent variable: text and lists stay as they are."""
    if isinstance(value, Absent):
        return ""
    if isinstance(value, str | list | tuple):
        return value
    raise Misuse(f"{kind(value)} and an undefined value do not go with '+'")


def numeric(value: Value) -> float:
    """A value that must be a number."""
    if not isinstance(value, int | float):
        raise Misuse(f"a number is needed, not {kind(value)}")
    return value


UNARY: Mapping[str, Callable[[Budget, Value], Value]] = {
    "not": lambda _, value: not is_true(value),
    "-": lambda _, value: bounded(-numeric(value)), "+": lambda _, value: +numeric(value)}
BINARY: Mapping[str, Callable[[Budget, Value, Value], Value]] = {
    sign: partial(_arithmetic, sign) for sign in ("~", *_CALCULATE)}


def marked_within(value: Any) -> Value:
    """A value from outside: all strings in it marked, keys too."""
    if isinstance(value, str):
        return mark(value)
    if isinstance(value, list | tuple):
        return [marked_within(item) for item in value]
    if isinstance(value, Mapping):
        return {marked_within(name): marked_within(item) for name, item in value.items()}
    return value


def at_index(sequence: str | list[Value] | tuple[Value, ...], index: int) -> Value:
    """An item of a list, or a character of a string; from its end where the index is negative."""
    if not -len(sequence) <= index < len(sequence):
        return Undefined("an item beyond the end")
    index %= len(sequence)
    return marks.part(sequence, index, index + 1) if isinstance(sequence, str) else sequence[index]


def attribute_path(budget: Budget, value: Value, path: Value) -> Value:
    """`value.a.b` for the path "a.b"."""
    if not isinstance(path, int):
        budget.read(len(text_of(path, "an attribute")))
    names = [path] if isinstance(path, int) else path.split(".")
    for name in names:
        if isinstance(value, str):
            budget.need(value)
        if isinstance(value, dict):
            value = value.get(name, Undefined(str(name)))
        elif isinstance(value, str | list | tuple) and str(name).isdecimal() and len(str(name)) < 9:
            value = at_index(value, int(name))
        elif isinstance(value, NamespaceObject):
            value = value.values.get(str(name), Undefined(str(name)))
        else:
            value = Undefined(str(name))
    budget.step(len(names))
    return value
