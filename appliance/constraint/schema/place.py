"""Places in a schema, and the error that names one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from appliance.errors import ConstraintError

STANDARD = frozenset((
    "$anchor", "$defs", "$dynamicAnchor", "$dynamicRef", "$id", "$recursiveRef", "$ref", "$schema", "$vocabulary",
    "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains", "definitions", "dependencies",
    "dependentRequired", "dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "format", "if",
    "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
    "minProperties", "minimum", "multipleOf", "not", "oneOf", "pattern", "patternProperties", "prefixItems",
    "properties", "propertyNames", "required", "then", "type", "unevaluatedItems", "unevaluatedProperties",
    "uniqueItems"))
"""Keywords of JSON Schema that an error may name: words of the standard, not of the request."""


@dataclass(frozen=True, slots=True)
class SchemaPath:
    """A keyword or a schema within a schema; the root's path is empty."""

    path: tuple[str, ...] = ()

    def __truediv__(self, part: str | int) -> SchemaPath:
        return SchemaPath((*self.path, str(part)))

    def __str__(self) -> str:
        return ".".join(self.path)

    def refusal(self, what: str, allowed: str) -> ConstraintError:
        """The error for what stands here: what it is, and what is allowed in its place."""
        named = f" at {self.path[-1]}" if self.path and self.path[-1] in STANDARD else ""
        return ConstraintError(f"the schema has {what}{named}: that is not enforced to the letter", path=str(self),
                               hint=f"allowed: {allowed}")


_SHORT_ESCAPES = frozenset("\b\t\n\f\r")


def has_no_spelling(text: str) -> bool:
    """Whether a text has a character without an agreed spelling in JSON, or half a character."""
    codes = [ord(each) for each in text if each not in _SHORT_ESCAPES]
    return any(code < 0x20 or code == 0x7F or 0xD800 <= code <= 0xDFFF for code in codes)


def check_text(text: str, place: SchemaPath) -> None:
    """Refuse a text that JSON has no agreed spelling for."""
    if has_no_spelling(text):
        raise place.refusal("a text with a control character or half a character", "other characters, \\t and \\n")


def list_of(value: Any, place: SchemaPath, most: int) -> list[Any]:
    """A list of one to `most` values."""
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= most:
        raise place.refusal("something else than a list, or one that is empty or too long", f"a list of 1 to {most}")
    return list(value)


def mapping_of(value: Any, place: SchemaPath, most: int) -> dict[str, Any]:
    """An object of at most `most` members, whose names are texts that can be written."""
    if not isinstance(value, Mapping) or len(value) > most or not all(isinstance(name, str) for name in value):
        raise place.refusal("something else than an object, or one that is too large", f"an object of up to {most}")
    for name in value:
        check_text(name, place / name)
    return dict(value)


def count_of(value: Any, place: SchemaPath, most: int) -> int:
    """A whole number from 0 to `most`."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value or not 0 <= value <= most \
            or value != int(value):
        raise place.refusal("something else than a whole number, or one that is too large", f"0 to {most}")
    return int(value)
