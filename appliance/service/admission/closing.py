"""Objects of a schema, closed: with no members beside those that it names.

JSON Schema allows any other member where `additionalProperties` is absent. A model that is not told
to stop may go on for ever with members that nobody reads, and a function fails on them. So other
servers close such objects. A closed schema accepts nothing that the schema does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.constraint.schema import rewriter

_APART = frozenset(("allOf", "not", "if", "dependentSchemas", "$dynamicRef", "$recursiveRef"))
"""Keywords by which two schemas hold for one object: closing one of them would forbid the members of the other."""
_OWN = frozenset(("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames",
                  "minProperties", "anyOf", "oneOf", "$ref"))
"""Keywords beside `properties` that say more about an object's members."""
_SILENT = rewriter.ANNOTATIONS | {"type", "properties", "required", "$schema", "$id"}
"""Keywords that say nothing of members, where `properties` and `required` are empty."""


def arguments(parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments, closed. A function whose parameters name none, and say
    nothing of others, takes none by OpenAI's reference, though its schema allows any."""
    silent = not (parameters.get("properties") or parameters.get("required")) and all(
        name in _SILENT or name.startswith("x-") for name in parameters)
    found = {**parameters, "type": "object", "properties": {}} if silent else parameters
    shut = close_objects(found)
    return found if isinstance(shut, bool) else shut


def close_objects(schema: Mapping[str, Any] | bool) -> Mapping[str, Any] | bool:
    """The schema with its objects closed, where that forbids nothing that it names."""
    return schema if isinstance(schema, bool) or _mentions(schema, _APART) else _close(schema)


def _mentions(value: Any, names: frozenset[str]) -> bool:
    if isinstance(value, Mapping):
        return bool(names & value.keys()) or any(_mentions(item, names) for item in value.values())
    return isinstance(value, list) and any(_mentions(item, names) for item in value)


def _close(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    found = dict(schema)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(name), Mapping):
            found[name] = {key: _close(item) for key, item in schema[name].items()}
    for name in ("items", "additionalItems", "additionalProperties"):
        found.update({name: _close(schema[name])} if isinstance(schema.get(name), Mapping) else {})
    for name in ("prefixItems", "items", *(() if "properties" in schema else ("anyOf", "oneOf"))):
        if isinstance(schema.get(name), list):
            found[name] = [_close(item) for item in schema[name]]
    properties, required = schema.get("properties"), schema.get("required", [])
    if (isinstance(properties, Mapping) and (properties or schema.get("type") == "object")
            and not _OWN & schema.keys() and isinstance(required, list)
            and all(isinstance(name, str) and name in properties for name in required)):
        found["additionalProperties"] = False
    return found
