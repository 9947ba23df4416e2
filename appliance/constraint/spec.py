"""The kinds of constraint that a request may ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class JsonSchema:
    """JSON that a JSON Schema accepts, in compact form."""

    schema: Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class JsonObject:
    """Any JSON object, in compact form."""


@dataclass(frozen=True, slots=True)
class RegexText:
    """Text that a regular expression matches from its first character to its last."""

    pattern: str


@dataclass(frozen=True, slots=True)
class TextList:
    """One of some texts."""

    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lark:
    """Text of a grammar in llguidance's dialect of Lark. It may hold JSON Schemas: `%json {...}`.

    `<name>` stands for the control token of that name, or, where the vocabulary has none, for the
    name's own text, angle brackets included.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Gbnf:
    """Text of a grammar in llama.cpp's notation, which starts at the rule `root`."""

    text: str


Spec = JsonSchema | JsonObject | RegexText | TextList | Lark | Gbnf
