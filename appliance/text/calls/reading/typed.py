"""Arguments that are written as bare text: which of them are strings, by a tool's schema.

Formats with tags write `<parameter=city>Paris</parameter>`: a string without quotes, anything else
as JSON. The schema of a parameter decides, for readers and for grammars in the same way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from appliance.errors import ConstraintError
from appliance.text.calls.reading.grammar import GrammarWriter, quoted
from appliance.text.calls.reading.pieces import ToolSpec

_DEFINITIONS = ("$defs", "definitions")
_KEPT = frozenset(["type", "properties", "required", "additionalProperties", "$defs", "definitions", "description",
                   "title", "default", "examples", "example", "$schema", "$id", "$comment", "deprecated", "nullable",
                   "propertyOrdering", "readOnly", "writeOnly", "externalDocs", "xml"])
_LIMITS = frozenset(["pattern", "format", "minLength", "maxLength", "not", "allOf", "anyOf", "oneOf", "if"])


def is_bare(schema: object, *, strict: bool = False) -> bool:
    """Whether values of a schema are strings, written as bare text. Where a schema is to be kept
    to the letter (`strict`), a string with limits is written as JSON."""
    return isinstance(schema, Mapping) and schema.get("type") == "string" and not is_nullable(schema) and not (
        strict and _LIMITS & schema.keys())


def is_nullable(schema: Mapping[str, Any]) -> bool:
    """Whether a schema says by OpenAPI's keyword that its values may be null, whatever its type."""
    return schema.get("nullable") is True


def unkept(tool: ToolSpec) -> Iterator[tuple[str, ...]]:
    """The paths of keywords that calls with tags do not keep: limits of bare strings, and what the
    parameters say beside the names of arguments."""
    for name in tool.parameters.keys() - _KEPT:
        if not name.startswith("x-"):
            yield (name,)
    for key, _ in parameters_of(tool):
        schema = schema_of(tool, key)
        if isinstance(schema, Mapping) and is_bare(schema, strict=tool.strict):
            yield from (("properties", key, name) for name in schema if name in _LIMITS)


def schema_of(tool: ToolSpec | None, key: str) -> Mapping[str, Any] | bool:
    """The schema of a tool's parameter, with the definitions that it may refer to; True for one
    that is not known."""
    properties = tool.parameters.get("properties") if tool is not None else None
    found = properties.get(key, True) if isinstance(properties, Mapping) else True
    if not isinstance(found, Mapping) or tool is None:
        return found if isinstance(found, bool) else True
    return {**{name: tool.parameters[name] for name in _DEFINITIONS if name in tool.parameters}, **found}


def tool_of(tools: Sequence[ToolSpec] | None, name: str) -> ToolSpec | None:
    """The tool of a name that the request offered."""
    return next((tool for tool in tools or () if tool.name == name), None)


def json_of(text: str, schema: Mapping[str, Any] | bool) -> str:
    """The JSON text of a value that is no bare string: the text itself if it is JSON, unless only
    a string fits; else the text as a string."""
    wanted = schema.get("type") if isinstance(schema, Mapping) and not is_nullable(schema) else None
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return string_of(text)
    return text.strip() if wanted != "string" or isinstance(value, str) else string_of(text)


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def string_of(text: str) -> str:
    """A text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def parameters_of(tool: ToolSpec) -> list[tuple[str, bool]]:
    """The names of a tool's parameters in their order, and whether each is required."""
    properties, required = tool.parameters.get("properties"), tool.parameters.get("required")
    wanted = set(required) if isinstance(required, list) else set()
    names = list(properties) if isinstance(properties, Mapping) else []
    return [(name, name in wanted) for name in [*names, *sorted(wanted - set(names))]]


def write_value(grammar: GrammarWriter, tool: ToolSpec, key: str, end: str) -> str:
    """An expression for the value of a parameter, and the mark after it."""
    schema = schema_of(tool, key)
    if not is_bare(schema, strict=tool.strict):
        return f"{grammar.json(schema)} {grammar.text(end)}"
    texts = values_of(schema if isinstance(schema, Mapping) else {})
    if texts is None:
        return grammar.up_to(end)
    choices = " | ".join(quoted(text) for text in texts if isinstance(text, str))
    return f"({choices}) {grammar.text(end)}"


_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "boolean": (bool,), "integer": (int,), "number": (int, float), "array": (list,),
    "object": (dict,), "null": (type(None),)}


def values_of(schema: Mapping[str, Any]) -> list[Any] | None:
    """The values that `const` or `enum` leaves, of the types that the schema allows; None: it has
    neither. ConstraintError where it leaves none."""
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return None
    kinds = schema.get("type")
    names = kinds if isinstance(kinds, list) else [kinds]
    found = [each for each in values if any(_is_of(each, name) for name in names)]
    if not found:
        raise ConstraintError("no value of an enum has the type that its schema asks for", path="enum",
                              hint="give values of that type")
    return found


def _is_of(value: object, name: object) -> bool:
    if not isinstance(name, str) or name not in _TYPES:
        return True
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, _TYPES[name]) or (name == "integer" and isinstance(value, float) and value.is_integer())
