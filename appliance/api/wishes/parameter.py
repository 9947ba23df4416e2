"""One row of the table of names.

A demand changes what the answer must be. It is met, or the request is refused. A wish says how the
answer might be made. It is accepted without effect, and named to the caller. So is a name that no
row and no type has.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

Endpoint = Literal["chat", "completions"]


@dataclass(frozen=True)
class Extra:
    """A parameter that no type declares, by the name that a client sends. Within another one it has
    a path without numbers: `tools.defer_loading`."""

    name: str
    neutral: tuple[Any, ...] = ()  # values that ask for nothing; null is one always
    instead: str = ""  # the end of a refusal: how to ask for it here
    chat: tuple[Any, ...] | None = None  # `neutral` for chats, where it differs
    becomes: str | None = None  # the name of a declared parameter with this meaning
    taken: tuple[Any, ...] = ()  # values of a wish that have an effect: a type declares it, for these
    chats_have: bool = False  # whether a chat declares it: the row is for completions
    texts_have: bool = False  # the same the other way round
    wish: bool = False
    idle: bool = False  # a wish that asks nothing of the answer: a strict policy takes it as well
    why: str = ""  # it is a demand, or a wish

    def allows(self, value: Any, endpoint: Endpoint = "chat") -> bool:
        """Return whether a value asks for nothing."""
        return value is None or any(same(value, each) for each in self.values(endpoint))

    def values(self, endpoint: Endpoint = "chat") -> tuple[Any, ...]:
        """Return the neutral values of an endpoint."""
        return self.chat if endpoint == "chat" and self.chat is not None else self.neutral

    def words(self, endpoint: Endpoint = "chat") -> str:
        """Return the words of a refusal of another value."""
        allowed = " or ".join([*map(json.dumps, (*self.values(endpoint), *self.taken)), "null"])
        hint = f"; {self.instead}" if self.instead else ""
        return f"this service supports no value but {allowed}{hint}"


def demands(why: str, *rows: Extra | str) -> list[Extra]:
    """Return rows of demands with one reason. A bare name takes only null."""
    return [replace(_row(each), why=why) for each in rows]


def wishes(why: str, *rows: Extra | str) -> list[Extra]:
    """Return rows of wishes with one reason."""
    return [replace(_row(each), why=why, wish=True) for each in rows]


def idle(why: str, *rows: Extra | str) -> list[Extra]:
    """Return rows of wishes that ask nothing of an answer, with one reason."""
    return [replace(row, idle=True) for row in wishes(why, *rows)]


def _row(each: Extra | str) -> Extra:
    return Extra(each) if isinstance(each, str) else each


def by_name(rows: Sequence[Extra]) -> dict[str, Extra]:
    """Return rows by their names."""
    return {row.name: row for row in rows}


def same(value: Any, other: Any) -> bool:
    """Return whether two values of JSON are one: 1 and 1.0 are, 1 and true are not."""
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    if isinstance(value, list) and isinstance(other, list):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict) and isinstance(other, dict):
        return value.keys() == other.keys() and all(same(value[key], other[key]) for key in value)
    return bool(value == other)
