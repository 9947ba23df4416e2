"""The values that templates work on, and the budget that bounds what a template may do with them.

Values are Python's str (see `jinja.marks`), int, float, bool, None, list, tuple and dict of these,
and the classes below. Templates reach no other Python object: attributes and methods go through
tables.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from appliance.errors import TemplateError
from appliance.text.jinja.marks import Marked, concatenate, mark
from appliance.text.jinja.standins import StandIns, holds

MAX_INT = 1 << 63
MAX_NESTING = 200  # of lists and dicts
ITEM_COST = 8  # characters that an item of a list counts as

EXHAUSTED = "template-exhausted"  # the code of an error about the budget

Value = Any  # any of the values above
SCALARS = (str, int, float, type(None))


class Misuse(Exception):  # noqa: N818 - it becomes a TemplateError with a line number
    """The template asked for something that cannot be done."""


class Undefined:
    """The value of a missing variable or key: empty, false, and an error on any other use."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return "Undefined"


class Absent(Undefined):
    """A variable that a caller may give and did not: `Undefined`, and also empty where it is joined
    or written."""

    __slots__ = ()


class Opaque:
    """A value that shows nothing of what it holds, so that printing it costs nothing."""

    __slots__ = ()
    word = "value"

    def __repr__(self) -> str:
        return f"<{self.word}>"


@dataclass(slots=True, eq=False, repr=False)
class NamespaceObject(Opaque):
    """`namespace()`: the only object that a template can change."""

    word = "namespace"
    values: dict[str, Value]


@dataclass(slots=True, eq=False, repr=False)
class TemplateFunction(Opaque):
    """Something to call: `call(*arguments, **named)`."""

    word = "function"
    name: str
    call: Callable[..., Value]


@dataclass(slots=True, eq=False, repr=False)
class LoopVariable(Opaque):
    """The variable `loop`."""

    word = "loop"
    items: Sequence[Value]
    index0: int = 0

    def attribute(self, name: str) -> Value:
        """`loop.name`."""
        index, count, nothing = self.index0, len(self.items), Undefined(name)
        known = {"index": index + 1, "index0": index, "first": index == 0, "last": index == count - 1,
                 "length": count, "revindex": count - index, "revindex0": count - index - 1, "depth": 1, "depth0": 0,
                 "previtem": self.items[index - 1] if index else nothing,
                 "nextitem": self.items[index + 1] if index + 1 < count else nothing}
        return known.get(name, nothing)


def is_true(value: Value) -> bool:
    """Whether a value counts as true."""
    return not isinstance(value, Undefined) and bool(value)


def has_marked(value: Value) -> bool:
    """Whether anything from outside is in a value (that was measured before)."""
    if isinstance(value, dict):
        return any(has_marked(key) or has_marked(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return any(map(has_marked, value))
    return isinstance(value, Marked)


@dataclass(slots=True)
class Budget:
    """The rest of one rendering's allowance: `steps` of evaluation, and `room`, the characters that
    may be made in all. No step takes more than time in proportion to what it makes or reads, so
    that both bound the time. Every construct's work on values is here, too, counted."""

    steps: int
    room: int
    stand_ins: StandIns | None = None  # None: texts are themselves

    def need(self, *values: Value) -> None:
        """Say that an operation reads these values. TextNeeded where one has a stand-in."""
        if self.stand_ins is not None:
            self.stand_ins.need(*values)

    def seek(self, text: str, *words: Value) -> None:
        """Say that an operation looks for words in a text. TextNeeded as `StandIns.seek`."""
        if self.stand_ins is not None:
            for word in words:
                if isinstance(word, str):
                    self.stand_ins.seek(text, word)
                else:
                    self.seek(text, *word) if isinstance(word, tuple) else self.need(text)

    def step(self, count: int = 1) -> None:
        """Count work."""
        self.steps -= count
        if self.steps < 0:
            raise TemplateError("the chat template takes too many steps", code=EXHAUSTED,
                                hint="the template loops without end, or the conversation is too long")

    def make(self, characters: int) -> None:
        """Count characters about to be made."""
        self.room -= characters
        if self.room < 0:
            raise TemplateError("the chat template makes too much text", code=EXHAUSTED,
                                hint="the template repeats itself without end, or the conversation is too long")

    def read(self, characters: int) -> None:
        """Count the work of searching so many characters."""
        self.step(1 + characters // 256)

    def match(self, characters: int, wanted: object) -> None:
        """Count a search that may look at all of `wanted` for each of so many characters: Python
        looks for a string from the right, and strips one of many characters, in quadratic time."""
        self.read(characters * (1 + (len(wanted) // 64 if isinstance(wanted, str) else 0)))

    def measure(self, value: Value, depth: int = 0) -> int:
        """The characters that a value needs as text, about; counts a step for each value within, so
        that structures that contain one value many times over are refused before anything walks
        them."""
        self.step()
        if depth > MAX_NESTING:
            raise Misuse("a value is nested too deeply")
        if isinstance(value, str):
            return len(value) + 2
        if isinstance(value, list | tuple):
            return sum(self.measure(item, depth + 1) + 2 for item in value)
        if isinstance(value, dict):
            return sum(self.measure(key) + self.measure(item, depth + 1) + 4 for key, item in value.items())
        return 24

    def to_text(self, value: Value) -> str:
        """A value as it is printed."""
        if isinstance(value, str):
            return value
        if isinstance(value, Undefined):
            return ""
        if isinstance(value, list | tuple | dict):
            self.need(value)
            self.make(self.measure(value))
            text = str(value)
            return mark(text) if has_marked(value) else text
        return str(value)

    def equal(self, left: Value, right: Value, depth: int = 0) -> bool:
        """Whether two values are equal, counting steps for each pair of items."""
        self.step(2)
        if depth > MAX_NESTING:
            raise Misuse("a value is nested too deeply")
        if isinstance(left, Undefined) or isinstance(right, Undefined):
            return isinstance(left, Undefined) and isinstance(right, Undefined)
        if isinstance(left, dict) and isinstance(right, dict):
            return len(left) == len(right) and all(
                key in right and self.equal(item, right[key], depth + 1) for key, item in left.items())
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            return isinstance(left, list) == isinstance(right, list) and len(left) == len(right) and all(
                self.equal(*pair, depth + 1) for pair in zip(left, right, strict=True))
        if isinstance(left, str) and isinstance(right, str):
            self.read(min(len(left), len(right)))
            self.seek(*((left, right) if holds(left) else (right, left)))
        return bool(left == right)

    def contains(self, container: Value, item: Value) -> bool:
        """`item in container`."""
        if isinstance(container, Undefined):
            return False
        if isinstance(container, str):
            if not isinstance(item, str):
                raise Misuse(f"{kind(item)} cannot be looked for in a string")
            self.read(len(container))
            self.seek(container, item)
            return item in container
        if isinstance(container, dict):
            self.need(item)
            return isinstance(item, SCALARS) and item in container
        return any(self.equal(item, other) for other in self.items_of(container))

    def items_of(self, value: Value) -> Sequence[Value]:
        """The items that a loop over `value` goes through."""
        if isinstance(value, Undefined):
            return ()
        if isinstance(value, list | tuple):
            return value
        if isinstance(value, dict | str):
            if isinstance(value, str):
                self.need(value)
            self.make(ITEM_COST * len(value))
            return [mark(letter) for letter in value] if isinstance(value, Marked) else list(value)
        raise Misuse(f"{kind(value)} cannot be gone through")

    def make_list(self, values: Sequence[Value]) -> list[Value]:
        """A new list, counted."""
        self.make(ITEM_COST * len(values))
        return list(values)

    def joined(self, parts: Sequence[str]) -> str:
        """Strings in a row, counted."""
        self.make(sum(map(len, parts)))
        return concatenate(parts)


def bounded(number: float) -> float:
    """A number that fits into 64 bits."""
    if isinstance(number, int) and not -MAX_INT <= number < MAX_INT:
        raise Misuse("a number is too large")
    return number


def kind(value: Value) -> str:
    """The kind of a value, for errors; nothing of its content."""
    if isinstance(value, Undefined):
        return f"{value.name!r}, which is undefined," if value.name.isidentifier() else "an undefined value"
    names: Mapping[type, str] = {str: "a string", Marked: "a string", list: "a list", tuple: "a tuple",
                                 dict: "a mapping", bool: "a boolean", int: "a number", float: "a number",
                                 type(None): "none"}
    return f"a {value.word}" if isinstance(value, Opaque) else names.get(type(value), "a value")
