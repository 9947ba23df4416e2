"""Attributes, items and methods of values: what `a.b` and `a[b]` mean, by tables that hold nothing else.

What changes a list or mapping in Python (`append`, `pop`, ...) is refused, as in the sandbox of Hugging Face.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Mapping

from appliance.engine.jinja import text as texts
from appliance.engine.jinja.filters import indent_width, pairs, replace
from appliance.engine.jinja.operators import text_of, whole
from appliance.engine.jinja.text import is_marked, mark, marked_like
from appliance.engine.jinja.values import (
    ITEM_COST,
    SCALARS,
    Budget,
    Fault,
    Function,
    Loop,
    Namespace,
    Undefined,
    Value,
    equal,
    has_marked,
    items_of,
    kind,
    make_list,
    measure,
    to_text,
)

_CHANGING = frozenset(["append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "sort",
                       "update"])
_SPEC = re.compile(r"(?:.?[<>=^])?[-+ ]?#?0?(\d{0,3})[,_]?(?:\.(\d{1,3}))?[a-zA-Z%]?", re.DOTALL)


def attribute(budget: Budget, target: Value, name: str) -> Value:
    """`target.name`: a method if there is one, or else an item."""
    method = _method(budget, target, name)
    if method is not None:
        return method
    if isinstance(target, Loop):
        return target.attribute(name)
    if isinstance(target, Namespace):
        return target.values.get(name, Undefined(name))
    if isinstance(target, dict):
        return target.get(name, Undefined(name))
    if isinstance(target, Undefined):
        raise Fault(f"{kind(target)} has no attribute {name!r}")
    return Undefined(name)


def item(budget: Budget, target: Value, index: Value) -> Value:
    """`target[index]`: an item, or else a method."""
    if isinstance(target, Undefined):
        raise Fault(f"{kind(target)} has no items")
    if isinstance(target, dict) and isinstance(index, SCALARS) and index in target:
        return target[index]
    if isinstance(target, str | list | tuple) and isinstance(index, int):
        if not -len(target) <= index < len(target):
            return Undefined("an item beyond the end")
        index %= len(target)
        return texts.part(target, index, index + 1) if isinstance(target, str) else target[index]
    return attribute(budget, target, str(index)) if isinstance(index, str) else Undefined("an item")


def _method(budget: Budget, target: Value, name: str) -> Function | None:
    """A method bound to its target and the budget."""
    table: Mapping[str, Callable[..., Value]] = {}
    if isinstance(target, str):
        table = _STRING
    elif isinstance(target, dict):
        table = _MAPPING
    elif isinstance(target, list | tuple):
        table = _LIST
    if name in _CHANGING and isinstance(target, list | tuple | dict):
        raise Fault(f"method {name!r} would change {kind(target)}, which templates may not")
    found = table.get(name)
    return None if found is None else Function(name, lambda *given, **named: found(budget, target, *given, **named))


def _stripping(left: bool, right: bool) -> Callable[..., str]:
    def strip(budget: Budget, text: str, chars: Value = None) -> str:
        budget.make(len(text))
        budget.match(len(text), chars)
        return texts.strip(text, None if chars is None else text_of(chars, "strip"), left, right)

    return strip


def _splitting(split: Callable[..., list[str]]) -> Callable[..., list[Value]]:
    def apply(budget: Budget, text: str, sep: Value = None, maxsplit: Value = -1) -> list[Value]:
        limit = whole(maxsplit, "split", -1, 1 << 31)
        if sep is not None and not text_of(sep, "split"):
            raise Fault("split needs a separator that is not empty")
        budget.match(len(text), sep)
        budget.make(len(text) + ITEM_COST * (1 + (text.count(sep) if sep is not None else len(text) // 2)))
        pieces = split(text, sep, limit)
        return list(texts.parts_in_order(text, pieces, None if sep is None else len(sep)))

    return apply


def _split_lines(budget: Budget, text: str, keepends: Value = False) -> list[Value]:
    budget.make(len(text) + ITEM_COST * (1 + len(text)))
    with_ends = texts.parts_in_order(text, text.splitlines(keepends=True), 0)
    if keepends:
        return list(with_ends)
    return [texts.part(line, 0, len(line.splitlines()[0])) for line in with_ends]


def _partition(find: Callable[[str, str], int], at_end: bool) -> Callable[..., Value]:
    def apply(budget: Budget, text: str, sep: Value) -> Value:
        budget.make(len(text))
        budget.match(len(text), sep)
        at = find(text, text_of(sep, "partition"))
        if at < 0:
            return ("", "", text) if at_end else (text, "", "")
        end = at + len(sep)
        return texts.part(text, 0, at), texts.part(text, at, end), texts.part(text, end, len(text))

    return apply


def _asking(question: Callable[..., Value]) -> Callable[..., Value]:
    """A method that reads the string only."""

    def ask(budget: Budget, text: str, *given: Value) -> Value:
        budget.match(len(text), given[0] if given else None)
        if not all(isinstance(value, str | int) or (isinstance(value, tuple) and all(
                isinstance(part, str) for part in value)) for value in given):
            raise Fault("a method of a string needs strings")
        return question(str(text), *given)

    return ask


def _recasing(change: Callable[[str], str]) -> Callable[..., str]:
    def apply(budget: Budget, text: str) -> str:
        budget.make(len(text))
        return texts.recase(text, change(text))

    return apply


def _removing(prefix: bool) -> Callable[..., str]:
    def remove(budget: Budget, text: str, affix: Value) -> str:
        budget.make(len(text))
        short = text.removeprefix(text_of(affix, "remove")) if prefix else text.removesuffix(text_of(affix, "remove"))
        start = len(text) - len(short) if prefix else 0
        return texts.part(text, start, start + len(short))

    return remove


def _padding(pad: Callable[..., str]) -> Callable[..., str]:
    def apply(budget: Budget, text: str, width: Value, fill: Value = " ") -> str:
        budget.make(len(text) + indent_width(width))
        padded = pad(text, width, text_of(fill, "padding")) if pad is not str.zfill else text.zfill(width)
        return marked_like(padded, text)

    return apply


def _join(budget: Budget, text: str, value: Value) -> str:
    parts = [text_of(part, "join") for part in items_of(budget, value)]
    budget.make(sum(map(len, parts)) + (len(text) + ITEM_COST) * len(parts))
    return texts.join(text, parts)


def _format(budget: Budget, text: str, *given: Value, **named: Value) -> str:
    """`"...".format(...)`: fields are numbers or names, without attributes, items or nested fields."""
    if len(text) > 1 << 16:
        raise Fault("a pattern for format is too long")
    parts: list[str] = []
    automatic = iter(range(len(given)))
    try:
        for literal, name, spec, conversion in string.Formatter().parse(str(text)):
            parts.append(mark(literal) if is_marked(text) else literal)
            if name is not None:
                index = next(automatic, None) if not name else int(name) if name.isdecimal() else None
                value = named[name] if index is None else given[index]
                parts.append(_field(budget, value, spec or "", conversion))
    except (ValueError, KeyError, IndexError):
        raise Fault("a pattern for format does not fit its arguments") from None
    budget.make(sum(map(len, parts)))
    return texts.concatenate(parts)


def _field(budget: Budget, value: Value, spec: str, conversion: str | None) -> str:
    found = _SPEC.fullmatch(spec)
    if found is None or conversion not in (None, "s"):
        raise Fault("a field of format is not known here")
    if not spec:
        return to_text(budget, value)
    if not isinstance(value, str | int | float):
        raise Fault(f"{kind(value)} has no format")
    budget.make(measure(budget, value) + 1000)
    result = format(str(value) if isinstance(value, str) else value, spec)
    return mark(result) if has_marked(value) else result


def _get(budget: Budget, mapping: dict[Value, Value], name: Value, default: Value = None) -> Value:
    return mapping.get(name, default) if isinstance(name, SCALARS) else default


def _listing(part: Callable[[dict[Value, Value]], Value]) -> Callable[..., list[Value]]:
    return lambda budget, mapping: make_list(budget, list(part(mapping)))


def _index(budget: Budget, values: list[Value], wanted: Value) -> int:
    for place, value in enumerate(values):
        if equal(budget, value, wanted):
            return place
    raise Fault("a list does not have the item that index looks for")


def _count(budget: Budget, values: list[Value], wanted: Value) -> int:
    return sum(equal(budget, value, wanted) for value in values)


_STRING: Mapping[str, Callable[..., Value]] = {
    "strip": _stripping(True, True), "lstrip": _stripping(True, False), "rstrip": _stripping(False, True),
    "split": _splitting(str.split), "rsplit": _splitting(str.rsplit), "splitlines": _split_lines,
    "partition": _partition(str.find, False), "rpartition": _partition(str.rfind, True),
    "replace": replace, "join": _join, "format": _format,
    "removeprefix": _removing(True), "removesuffix": _removing(False),
    "ljust": _padding(str.ljust), "rjust": _padding(str.rjust), "center": _padding(str.center),
    "zfill": _padding(str.zfill),
    **{change.__name__: _recasing(change) for change in (str.upper, str.lower, str.title, str.capitalize,
                                                         str.swapcase, str.casefold)},
    **{question.__name__: _asking(question) for question in (
        str.startswith, str.endswith, str.find, str.rfind, str.index, str.rindex, str.count, str.isalnum,
        str.isalpha, str.isascii, str.isdecimal, str.isdigit, str.islower, str.isnumeric, str.isspace, str.istitle,
        str.isupper)},
}
_MAPPING: Mapping[str, Callable[..., Value]] = {
    "get": _get, "items": pairs, "keys": _listing(dict.keys), "values": _listing(dict.values),
    "copy": lambda budget, mapping: dict(make_list(budget, list(mapping.items()))),
}
_LIST: Mapping[str, Callable[..., Value]] = {
    "index": _index, "count": _count, "copy": lambda budget, values: make_list(budget, values),
}
