"""The filters that templates may use.

They do what Jinja 3.1 does ("List of Builtin Filters" of its documentation) with Hugging Face's
`tojson`. Here are those that chat templates use, and not all of their options; a template with
another one is refused. Each takes the budget first and counts what it makes; each says which
characters came from outside, or marks its whole result.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping

from appliance.text.jinja import marks
from appliance.text.jinja.marks import is_marked, mark, marked_like
from appliance.text.jinja.operators import attribute_path, key, marked_within, numeric, text_of, whole
from appliance.text.jinja.standins import BLANKS
from appliance.text.jinja.tests import TESTS
from appliance.text.jinja.values import (
    ITEM_COST,
    Absent,
    Budget,
    Misuse,
    Undefined,
    Value,
    bounded,
    has_marked,
    is_true,
    kind,
)

MAX_WIDTH = 1000  # of indentation, and of a number as text
_WORD = re.compile(r"([-\s({\[<]+)")  # what words begin after


def default(budget: Budget, value: Value, replacement: Value = "", boolean: bool = False) -> Value:
    """The replacement for what is undefined (or, with `boolean`, false)."""
    missing = isinstance(value, Undefined) or (boolean and not is_true(value))
    return replacement if missing else value


def length(budget: Budget, value: Value) -> int:
    """The number of characters or items."""
    if isinstance(value, Undefined):
        return 0
    if not isinstance(value, str | list | tuple | dict):
        raise Misuse(f"{kind(value)} has no length")
    if isinstance(value, str):
        budget.need(value)
    return len(value)


def stripping(left: bool = True, right: bool = True) -> Callable[..., str]:
    """A filter that takes white space (or the characters given) off the ends."""

    def strip(budget: Budget, value: Value, chars: Value = None) -> str:
        text = budget.to_text(value)
        budget.make(len(text))
        budget.match(len(text), chars)
        characters = None if chars is None else text_of(chars, "strip")
        budget.need("" if characters is None or BLANKS.issuperset(characters) else text, characters)
        return marks.strip(text, characters, left, right)

    return strip


def recased(change: Callable[[str], str]) -> Callable[..., str]:
    """A filter that changes the case of letters."""

    def apply(budget: Budget, value: Value) -> str:
        text = budget.to_text(value)
        budget.need(text)
        budget.make(len(text))
        return marks.recase(text, change(text))

    return apply


def _title(text: str) -> str:
    """Each word with its first letter alone in upper case; only white space, brackets and hyphens
    part words."""
    return "".join(word[:1].upper() + word[1:].lower() for word in _WORD.split(text))


def replace(budget: Budget, value: Value, old: Value, new: Value, count: Value = None) -> str:
    """With `old` replaced by `new`."""
    text, old, new = budget.to_text(value), budget.to_text(old), budget.to_text(new)
    budget.read(len(text))
    budget.seek(text, old or None)
    times = text.count(old) if count is None else whole(count, "replace", -1, 1 << 31)
    budget.make(len(text) + max(times, 0) * (len(new) + ITEM_COST))
    return marks.replace(text, old, new, -1 if count is None else times)


def join(budget: Budget, value: Value, separator: Value = "") -> str:
    """All items as one string."""
    parts = [budget.to_text(item) for item in budget.items_of(value)]
    between = budget.to_text(separator)
    budget.make(sum(map(len, parts)) + (len(between) + ITEM_COST) * len(parts))
    return marks.join(between, parts)


def tojson(budget: Budget, value: Value, indent: Value = None, ensure_ascii: bool = False,
           sort_keys: bool = False, separators: Value = None, **_: Value) -> str:
    """As JSON, the way Hugging Face's templates have it: nothing escaped for HTML."""
    value = None if isinstance(value, Absent) else value
    budget.need(value)
    size = budget.measure(value)
    width = 0 if indent is None else whole(len(indent) if isinstance(indent, str) else indent, "tojson", 0, 16)
    budget.make((6 + 4 * width) * size)
    between = tuple(separators) if isinstance(separators, list | tuple) else None
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=is_true(ensure_ascii), sort_keys=is_true(sort_keys),
                          separators=between)
    except (TypeError, ValueError):
        raise Misuse(f"{kind(value)} cannot be written as JSON") from None
    return mark(text) if has_marked(value) else text


def from_json(budget: Budget, value: Value) -> Value:
    """The value of a JSON text."""
    text = text_of(value, "from_json")
    budget.need(text)
    budget.make(ITEM_COST * len(text))
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise Misuse("from_json needs JSON") from None
    budget.measure(parsed)
    return marked_within(parsed) if is_marked(text) else parsed


def dictsort(budget: Budget, value: Value) -> list[Value]:
    """The pairs of a mapping in the order of its keys."""
    return _sorted(budget, pairs(budget, value), lambda pair: pair[0])


def sort(budget: Budget, value: Value, reverse: bool = False, case_sensitive: bool = False,
         attribute: Value = None) -> list[Value]:
    """The items in order."""
    def part(item: Value) -> Value:
        return item if attribute is None else attribute_path(budget, item, attribute)

    return _sorted(budget, budget.make_list(budget.items_of(value)), part, case_sensitive, reverse)


def _sorted(budget: Budget, items: list[Value], part: Callable[[Value], Value], case_sensitive: bool = False,
            reverse: bool = False) -> list[Value]:
    keys = [part(item) for item in items]
    budget.need(keys)
    if not any(all(isinstance(value, wanted) for value in keys) for wanted in (str, int | float)):
        raise Misuse("only strings or only numbers have an order")
    characters = sum(len(value) for value in keys if isinstance(value, str))
    budget.step((len(items) + characters // 256) * max(1, len(items).bit_length()))
    if not is_true(case_sensitive):
        budget.make(characters)
        keys = [value.lower() if isinstance(value, str) else value for value in keys]
    order = sorted(range(len(items)), key=keys.__getitem__, reverse=is_true(reverse))
    return [items[index] for index in order]


def unique(budget: Budget, value: Value) -> list[Value]:
    """The items without repetitions, whatever their case."""
    found: list[Value] = []
    keys: set[Value] = set()
    for item in budget.items_of(value):
        budget.step()
        name = key(item)
        if isinstance(name, str):
            budget.need(name)
            budget.make(len(name))
            name = name.lower()
        if name not in keys:
            keys.add(name)
            found.append(item)
    return budget.make_list(found)


def map_items(budget: Budget, value: Value, name: Value = None, *arguments: Value, attribute: Value = None,
              default: Value = None) -> list[Value]:
    """An attribute or a filter of every item."""
    items = budget.items_of(value) if is_true(value) else ()
    if attribute is not None:
        found = [attribute_path(budget, item, attribute) for item in items]
        return budget.make_list(found if default is None else [
            default if isinstance(item, Undefined) else item for item in found])
    apply = FILTERS.get(text_of(name, "map"))
    if apply is None:
        raise Misuse("map names no filter that is known here")
    return budget.make_list([apply(budget, item, *arguments) for item in items])


def selecting(wanted: bool, by_attribute: bool) -> Callable[..., list[Value]]:
    """`select`, `reject`, and the same by an attribute."""

    def select(budget: Budget, value: Value, *arguments: Value) -> list[Value]:
        names = list(arguments)
        path = names.pop(0) if by_attribute else None
        test = TESTS.get(text_of(names.pop(0), "select")) if names else (lambda _, item: is_true(item))
        if test is None:
            raise Misuse("select names no test that is known here")
        kept = []
        for item in budget.items_of(value) if is_true(value) else ():
            budget.step()
            subject = attribute_path(budget, item, path) if by_attribute else item
            if is_true(test(budget, subject, *names)) == wanted:
                kept.append(item)
        return budget.make_list(kept)

    return select


def indent(budget: Budget, value: Value, width: Value = 4, first: bool = False, blank: bool = False) -> str:
    """Each line but the first indented; all that ends a line becomes a newline."""
    text = budget.to_text(value)
    margin = width if isinstance(width, str) else " " * whole(width, "a width", 0, MAX_WIDTH)
    budget.need(text)
    text = budget.joined([text, "\n"])
    budget.make(len(text) + (len(margin) + ITEM_COST) * len(text.splitlines()))
    lines = marks.lines(text)
    rows = [budget.joined([margin, line]) if index and (line or is_true(blank)) else line
            for index, line in enumerate(lines)]
    result = marks.join("\n", rows)
    return budget.joined([margin, result]) if is_true(first) else result


def end_item(index: int) -> Callable[[Budget, Value], Value]:
    """`first` and `last`."""

    def pick(budget: Budget, value: Value) -> Value:
        items = budget.items_of(value)
        return items[index] if items else Undefined("an item of an empty list")

    return pick


def reverse(budget: Budget, value: Value) -> Value:
    """From the last to the first."""
    if isinstance(value, str):
        budget.need(value)
        budget.make(len(value))
        return marked_like(value[::-1], value)
    return budget.make_list(budget.items_of(value)[::-1])


def pairs(budget: Budget, value: Value) -> list[Value]:
    """The pairs of a mapping."""
    if isinstance(value, Undefined):
        return []
    if not isinstance(value, dict):
        raise Misuse(f"items needs a mapping, not {kind(value)}")
    budget.make(3 * ITEM_COST * len(value))
    return list(value.items())


def to_int(budget: Budget, value: Value, default: Value = 0) -> Value:
    """As a whole number, without what follows its point, or the default."""
    budget.need(value)
    if isinstance(value, str) and len(value) > MAX_WIDTH:
        return default
    for number in (int, lambda text: int(float(text))):
        try:
            return bounded(number(value))
        except (TypeError, ValueError, OverflowError):
            continue
    return default


def extreme(greatest: bool) -> Callable[..., Value]:
    """`min` and `max`: the first among equals."""
    first = end_item(0)
    return lambda budget, value, case_sensitive=False: first(
        budget, sort(budget, value, greatest, case_sensitive))


FILTERS: Mapping[str, Callable[..., Value]] = {
    "abs": lambda _, value: abs(numeric(value)), "capitalize": recased(str.capitalize), "count": length,
    "d": default, "default": default, "dictsort": dictsort, "first": end_item(0), "from_json": from_json,
    "fromjson": from_json, "indent": indent, "int": to_int, "items": pairs, "join": join, "last": end_item(-1),
    "length": length, "list": lambda budget, value: budget.make_list(budget.items_of(value)),
    "lower": recased(str.lower), "map": map_items, "max": extreme(True), "min": extreme(False),
    "reject": selecting(False, False), "rejectattr": selecting(False, True), "replace": replace, "reverse": reverse,
    "safe": Budget.to_text, "select": selecting(True, False), "selectattr": selecting(True, True),
    "sort": sort, "string": Budget.to_text, "title": recased(_title), "tojson": tojson, "trim": stripping(),
    "unique": unique, "upper": recased(str.upper),
}
