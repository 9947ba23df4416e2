"""The kinds of values in a policy: one small class per kind, used as pydantic metadata.

A kind knows two things: how to turn a literal into the value that the program uses (`parse`),
and what it allows in words (`allowed`, shown in diagnostics and in the reference).
Parsing is strict: a number in quotes is not a number, `1` is not `true`. A refusal never repeats a
value that could be a secret.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

MAX_INTEGER = 2**53 - 1  # the largest integer that RFC 8785 and every JSON reader carry exactly

_UNITS_BYTES = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


class Mismatch(ValueError):  # noqa: N818 - a refusal is a finding, not a failure of the program
    """A value that its kind does not allow: what was found, what to write instead. `expected`: the
    type of literal that was wanted, where another one stands."""

    def __init__(self, found: str, fix: str | None = None, *, secret: bool = False,
                 expected: type | None = None) -> None:
        super().__init__(found)
        self.found = found
        self.fix = fix
        self.secret = secret  # the source line must not be shown
        self.expected = expected


def shown(value: object) -> str:
    """Return a value as it would stand in a policy, shortened: for messages."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        text = value if len(value) <= 60 else value[:57] + "..."
        return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text) + '"'
    if isinstance(value, list | tuple):
        return "a list"
    return "an object" if isinstance(value, dict) else str(value)


def type_name(value: object) -> str:
    """Return the policy language's word for the type of a value."""
    if isinstance(value, bool):
        return "a boolean"
    names: dict[type, str] = {str: "a string", int: "a whole number", float: "a number", list: "a list",
                              tuple: "a list", dict: "an object"}
    return names.get(type(value), "a value")


@dataclass(frozen=True)
class Kind:
    """Base of all kinds."""

    def parse(self, value: Any) -> Any:
        """Return the program's value for a literal; raise `Mismatch`."""
        raise NotImplementedError

    def allowed(self) -> str:
        """Say in words what is allowed, to follow "allowed:"."""
        raise NotImplementedError

    def source(self) -> str:
        """Say where a value comes from, to go on in a fix; nothing where that is plain."""
        return ""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.parse)


def expect(value: Any, kind: type, example: str) -> None:
    """Refuse a literal of the wrong type."""
    if type(value) is not kind:
        raise Mismatch(f"is {type_name(value)}, not {type_name(kind())}", f"write {example}", expected=kind)


@dataclass(frozen=True)
class Switch(Kind):
    """`true` or `false`."""

    def parse(self, value: Any) -> bool:
        """Return the boolean."""
        expect(value, bool, "true or false")
        return bool(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return "true or false"


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `low` to `high`, both allowed."""

    low: int
    high: int = MAX_INTEGER

    def parse(self, value: Any) -> int:
        """Return the integer."""
        expect(value, int, str(max(self.low, 1)))
        if not self.low <= value <= self.high:
            nearest = self.low if value < self.low else self.high
            raise Mismatch(f"is {value}, outside of what is allowed", f"the nearest allowed number is {nearest}")
        return int(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"a whole number from {self.low} to {self.high}"


@dataclass(frozen=True)
class Number(Kind):
    """A number from `low` to `high`, both allowed; kept as a float."""

    low: float
    high: float

    def parse(self, value: Any) -> float:
        """Return the float; an integer literal is taken as one."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Mismatch(f"is {type_name(value)}, not a number", f"write {self.low}", expected=float)
        if not math.isfinite(value) or not self.low <= value <= self.high:
            nearest = self.low if value < self.low else self.high
            raise Mismatch(f"is {value}, outside of what is allowed", f"the nearest allowed number is {nearest}")
        return float(value) + 0.0  # no negative zero: it has no text of its own in canonical JSON

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"a number from {self.low:g} to {self.high:g}"


@dataclass(frozen=True)
class _Measured(Kind):
    """A string of digits and a unit; subclasses name the units."""

    low: str
    high: str

    units: ClassVar[Mapping[str, int]] = {"B": 1}
    noun: ClassVar[str] = "size"
    example: ClassVar[str] = "512MiB"

    def _amount(self, text: str) -> int:
        match = re.fullmatch(r"([0-9]{1,15}) ?([A-Za-z]{1,5})", text)
        units = ", ".join(self.units)
        if match is None:
            raise Mismatch(f"is {shown(text)}, not a {self.noun}",
                          f'write digits and a unit ({units}), such as "{self.example}"')
        unit = self.units.get(match[2])
        if unit is None:
            raise Mismatch(f'has the unknown unit "{match[2]}"', f"units are {units}")
        return int(match[1]) * unit

    def parse(self, value: Any) -> int:
        """Return the amount in the smallest unit."""
        expect(value, str, f'"{self.example}"')
        amount = self._amount(value)
        if not self._amount(self.low) <= amount <= self._amount(self.high):
            nearest = self.low if amount < self._amount(self.low) else self.high
            raise Mismatch(f"is {shown(value)}, outside of what is allowed", f'the nearest allowed is "{nearest}"')
        return amount

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f'a {self.noun} from "{self.low}" to "{self.high}"'


@dataclass(frozen=True)
class Size(_Measured):
    """A number of bytes with a binary unit, such as "512MiB"; parsed to bytes."""

    units = _UNITS_BYTES


@dataclass(frozen=True)
class Duration(_Measured):
    """A length of time with a unit, such as "250ms"; parsed to milliseconds."""

    units = _UNITS_MS
    noun = "duration"
    example = "250ms"


@dataclass(frozen=True)
class Pick(Kind):
    """One of a closed set of literals (strings, or booleans beside strings)."""

    options: tuple[str | bool | int, ...]

    def parse(self, value: Any) -> str | bool | int:
        """Return the option itself."""
        for option in self.options:
            if type(option) is type(value) and option == value:
                return option
        raise Mismatch(f"is {shown(value)}, which is not one of the choices",
                      f"write {' or '.join(shown(option) for option in self.options)}")

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return ", ".join(shown(option) for option in self.options)


@dataclass(frozen=True)
class Version(Pick):
    """A version of the policy language."""

    def parse(self, value: Any) -> str | bool | int:
        """Return the version."""
        known = " and ".join(map(str, self.options))
        if type(value) is int and value not in self.options:
            latest = self.options[-1]
            raise Mismatch(f"is {value}, but this version of the appliance knows {known}",
                          f"write {latest}, or use a newer appliance" if value > int(latest) else f"write {latest}")
        expect(value, int, str(self.options[-1]))
        return super().parse(value)


@dataclass(frozen=True)
class SetOf(Kind):
    """A list whose order means nothing and in which nothing stands twice; parsed to a sorted tuple.
    """

    item: Kind
    low: int = 0
    high: int = 256

    def parse(self, value: Any) -> tuple[Any, ...]:
        """Return the parsed items, sorted."""
        expect(list(value) if isinstance(value, tuple) else value, list, "a list, such as [...]")
        return self.finish([self.item.parse(item) for item in value])

    def finish(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return already parsed items as a sorted tuple; refuse duplicates and a wrong count."""
        if not self.low <= len(items) <= self.high:
            raise Mismatch(f"has {len(items)} items", "add what is missing" if len(items) < self.low else "remove some")
        unique = tuple(sorted(set(items)))
        if len(unique) != len(items):
            twice = next(item for index, item in enumerate(items) if item in items[:index])
            raise Mismatch(f"has {shown(twice)} twice", "leave one of them out")
        return unique

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"a list of {self.low} to {self.high} items, each {self.item.allowed()}"


@dataclass(frozen=True)
class ListOf(SetOf):
    """A list whose order counts and in which nothing stands twice; parsed to a tuple."""

    def finish(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return already parsed items as a tuple; refuse duplicates and a wrong count."""
        super().finish(items)
        return tuple(items)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"a list of {self.low} to {self.high} items in their order, each {self.item.allowed()}"


@dataclass(frozen=True)
class Order(Kind):
    """Some of a closed set of names in an order that counts, with semicolons between them."""

    names: tuple[str, ...]

    def parse(self, value: Any) -> str:
        """Return the same text."""
        expect(value, str, f'"{";".join(self.names)}"')
        found = value.split(";")
        for name in found:
            if name not in self.names:
                raise Mismatch(f"has {shown(name)}, which is not one of the names",
                              f"names are {', '.join(self.names)}")
        if len(set(found)) != len(found):
            twice = next(name for index, name in enumerate(found) if name in found[:index])
            raise Mismatch(f"has {shown(twice)} twice", "leave one of them out")
        return str(value)

    def allowed(self) -> str:
        """Say in words what is allowed."""
        return f"some of {', '.join(self.names)} in an order, with semicolons between them"
