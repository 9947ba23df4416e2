"""Attributes, items and methods of values: what `a.b` and `a[b]` mean, by tables that hold nothing
else.

A method that changes a list or mapping in Python (`append`, `pop`, ...) is refused, as in the
sandbox of Hugging Face.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from functools import partial

from appliance.text.jinja import marks
from appliance.text.jinja.filters import join, pairs, recased, replace, stripping
from appliance.text.jinja.marks import is_marked, mark
from appliance.text.jinja.operators import at_index, text_of, whole
from appliance.text.jinja.values import (
    ITEM_COST,
    Budget,
    LoopVariable,
    Misuse,
    NamespaceObject,
    TemplateFunction,
    Undefined,
    Value,
    kind,
)

_CHANGING = frozenset(["append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort",
                       "update"])


def attribute(budget: Budget, target: Value, name: str) -> Value:
    """`target.name`: a method if there is one, bound to its target and the budget, or else an item.
    """
    table: Mapping[str, Callable[..., Value]] = {}
    if isinstance(target, str):
        table = _STRING
    elif isinstance(target, dict):
        table = _MAPPING
    if name in table:
        return TemplateFunction(name, partial(table[name], budget, target))
    if name in _CHANGING and isinstance(target, list | tuple | dict):
        raise Misuse(f"method {name!r} would change {kind(target)}, which templates may not")
    if isinstance(target, LoopVariable):
        return target.attribute(name)
    if isinstance(target, NamespaceObject):
        return target.values.get(name, Undefined(name))
    if isinstance(target, dict):
        return target.get(name, Undefined(name))
    if isinstance(target, Undefined):
        raise Misuse(f"{kind(target)} has no attribute {name!r}")
    return Undefined(name)


def item(budget: Budget, target: Value, index: Value) -> Value:
    """`target[index]`: an item, or else a method."""
    if isinstance(target, Undefined):
        raise Misuse(f"{kind(target)} has no items")
    budget.need(index, target if isinstance(target, str) else None)
    if isinstance(target, dict) and budget.contains(target, index):
        return target[index]
    if isinstance(target, str | list | tuple) and isinstance(index, int):
        return at_index(target, index)
    return attribute(budget, target, str(index)) if isinstance(index, str) else Undefined("an item")


def section(budget: Budget, target: Value, *bounds: Value) -> Value:
    """`target[start:stop:step]`."""
    if not all(bound is None or isinstance(bound, int) for bound in bounds) or bounds[2:] == (0,):
        raise Misuse("the bounds of a slice are not numbers")
    span = slice(*bounds)
    if isinstance(target, str):
        budget.need(target)
        budget.make(len(target))
        first, last, stride = span.indices(len(target))
        return marks.part(target, first, max(first, last)) if stride == 1 else marks.marked_like(target[span], target)
    if isinstance(target, Undefined):
        return []
    if not isinstance(target, list | tuple):
        raise Misuse(f"{kind(target)} has no slices")
    items = budget.make_list(target[span])
    return items if isinstance(target, list) else tuple(items)


def _splitting(split: Callable[..., list[str]]) -> Callable[..., list[Value]]:
    def apply(budget: Budget, text: str, sep: Value = None, maxsplit: Value = -1) -> list[Value]:
        limit = whole(maxsplit, "split", -1, 1 << 31)
        if sep is not None and not text_of(sep, "split"):
            raise Misuse("split needs a separator that is not empty")
        budget.match(len(text), sep)
        budget.seek(text, sep)
        budget.make(len(text) + ITEM_COST * (1 + (text.count(sep) if sep is not None else len(text) // 2)))
        pieces = split(text, sep, limit)
        return list(marks.parts_in_order(text, pieces, None if sep is None else len(sep)))

    return apply


def _split_lines(budget: Budget, text: str, keepends: Value = False) -> list[Value]:
    budget.need(text)
    budget.make(len(text) + ITEM_COST * (1 + len(text)))
    return list(marks.lines(text, keepends=bool(keepends)))


def _asking(question: Callable[..., Value]) -> Callable[..., Value]:
    """A method that reads the string only."""

    def ask(budget: Budget, text: str, *given: Value) -> Value:
        budget.match(len(text), given[0] if given else None)
        if not all(isinstance(value, str | int) or (isinstance(value, tuple) and all(
                isinstance(part, str) for part in value)) for value in given):
            raise Misuse("a method of a string needs strings")
        budget.seek(text, *(each or None for each in given or (None,)))  # the empty word is counted by characters
        answer = question(str(text), *given)
        if question is str.find and answer >= 0:  # the place goes by what stands before
            budget.need(text)
        return answer

    return ask


def _format(budget: Budget, text: str, *given: Value, **named: Value) -> str:
    """`"...".format(...)`: fields are numbers or names, without attributes, items or a format of
    their own."""
    budget.need(text)
    if len(text) > 1 << 16:
        raise Misuse("a pattern for format is too long")
    parts: list[str] = []
    automatic = iter(range(len(given)))
    try:
        for literal, name, spec, conversion in string.Formatter().parse(str(text)):
            budget.step()
            parts.append(mark(literal) if is_marked(text) else literal)
            if spec or conversion:
                raise Misuse("a field of format is not known here")
            if name is not None:
                index = next(automatic, None) if not name else int(name) if name.isdecimal() else None
                parts.append(budget.to_text(named[name] if index is None else given[index]))
    except (ValueError, KeyError, IndexError):
        raise Misuse("a pattern for format does not fit its arguments") from None
    return budget.joined(parts)


def _get(budget: Budget, mapping: dict[Value, Value], name: Value, default: Value = None) -> Value:
    return mapping[name] if budget.contains(mapping, name) else default


def _listing(part: Callable[[dict[Value, Value]], Value]) -> Callable[..., list[Value]]:
    return lambda budget, mapping: budget.make_list(list(part(mapping)))


_STRING: Mapping[str, Callable[..., Value]] = {
    "strip": stripping(), "lstrip": stripping(right=False), "rstrip": stripping(left=False),
    "split": _splitting(str.split), "rsplit": _splitting(str.rsplit), "splitlines": _split_lines,
    "replace": replace, "join": lambda budget, text, value: join(budget, value, text), "format": _format,
    **{change.__name__: recased(change) for change in (str.upper, str.lower, str.title, str.capitalize)},
    **{question.__name__: _asking(question) for question in (
        str.startswith, str.endswith, str.find, str.count, str.isdigit)},
}
_MAPPING: Mapping[str, Callable[..., Value]] = {
    "get": _get, "items": pairs, "keys": _listing(dict.keys), "values": _listing(dict.values)}
