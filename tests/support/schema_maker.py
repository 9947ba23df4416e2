"""Random JSON Schemas, of the keywords that constraints have and a few that they refuse, and their judge."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema

_NAMES = ("a", "b", "name", "x_1", "é", "q\"", "")
_PATTERNS = ("^[a-c]+$", "b", "^a|b$", "^\\d{1,3}$", "^(ab|c)*$", "[^x]{2}", "^\\S+$", "^.{0,3}$")
_NAME_PATTERNS = ("^x_", "^[0-9]+$", "^n[a-z]*$", "a$", "^\\d+$", "^b.*$", "^\\w$")
_FORMATS = ("date", "time", "date-time", "uuid", "ipv4", "email", "duration")
_TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
_REFUSED = ("contains", "uniqueItems", "unevaluatedItems")


def value(rng: random.Random, depth: int = 2) -> Any:
    """A small value."""
    kind = rng.randrange(8 if depth else 6)
    simple = [None, rng.random() < 0.5, rng.randint(-20, 20), rng.randint(-40, 40) / 4,
              rng.choice(("a", "b", "é\"\n", "")), str(rng.randint(0, 99))]
    if kind < 6:
        return simple[kind]
    if kind == 6:
        return [value(rng, depth - 1) for _ in range(rng.randrange(3))]
    return {name: value(rng, depth - 1) for name in rng.sample(_NAMES, rng.randrange(3))}


def _strings(rng: random.Random, out: dict[str, Any]) -> None:
    if rng.random() < 0.4:
        out["minLength"] = rng.randrange(4)
    if rng.random() < 0.4:
        out["maxLength"] = rng.randrange(8)
    if rng.random() < 0.3:
        out["pattern"] = rng.choice(_PATTERNS)
    if rng.random() < 0.15:
        out["format"] = rng.choice(_FORMATS)


def _numbers(rng: random.Random, out: dict[str, Any]) -> None:
    for name in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if rng.random() < 0.3:
            sign = -1 if "inimum" in name and rng.random() < 0.8 else 1
            out[name] = sign * rng.choice((rng.randint(0, 120), rng.randint(0, 400) / 8, rng.randint(0, 10**6)))
    if rng.random() < 0.2:
        out["multipleOf"] = rng.choice((1, 2, 3, 5, 7, 10, 0.5))


def _arrays(rng: random.Random, depth: int, out: dict[str, Any]) -> None:
    if rng.random() < 0.3:
        out["prefixItems"] = [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.6:
        out["items"] = schema(rng, depth - 1)
    if rng.random() < 0.3:
        out["minItems"] = rng.randrange(3)
    if rng.random() < 0.4:
        out["maxItems"] = rng.randrange(4)


def _objects(rng: random.Random, depth: int, out: dict[str, Any]) -> None:
    if rng.random() < 0.8:
        out["properties"] = {name: schema(rng, depth - 1) for name in rng.sample(_NAMES, rng.randrange(4))}
    if rng.random() < 0.5:
        out["required"] = rng.sample(_NAMES, rng.randrange(3))
    if rng.random() < 0.2:
        out["patternProperties"] = {name: schema(rng, depth - 1)
                                    for name in rng.sample(_NAME_PATTERNS, rng.randint(1, 2))}
    if rng.random() < 0.5:
        out["additionalProperties"] = rng.choice((False, schema(rng, depth - 1)))
    if rng.random() < 0.15:
        out["minProperties"] = rng.randrange(4)
    if rng.random() < 0.15:
        out["maxProperties"] = rng.randrange(4)


def _simple(rng: random.Random) -> dict[str, Any]:
    """A schema that has an opposite."""
    return rng.choice(({"type": rng.choice(_TYPES)}, {"const": value(rng)}, {"enum": [value(rng) for _ in range(3)]},
                       {"required": ["a"]}, {"properties": {"a": {"const": value(rng)}}, "required": ["a"]},
                       {"minimum": rng.randint(-5, 50)}, {"maxLength": rng.randrange(5)}, {"minItems": 1},
                       {"type": ["string", "object"], "maxProperties": 1},
                       {"anyOf": [{"type": "null"}, {"const": "b"}]}, {"$ref": "#/$defs/one"}))


def _logic(rng: random.Random, depth: int, out: dict[str, Any]) -> None:
    if rng.random() < 0.05:
        out["not"] = _simple(rng)
    if rng.random() < 0.05:
        out |= {"if": _simple(rng), "then": schema(rng, depth - 1)}
        out |= {"else": _simple(rng)} if rng.random() < 0.5 else {}
    if rng.random() < 0.04:
        out["dependentRequired"] = {"a": ["b"]}
    if rng.random() < 0.04:
        out["dependentSchemas"] = {"b": schema(rng, depth - 1)}
    if rng.random() < 0.04:
        out["propertyNames"] = rng.choice(({"maxLength": 2}, {"enum": ["a", "q\""]}, {"pattern": "^x"}, {"const": "a"}))
    if rng.random() < 0.04 and "oneOf" not in out:
        out["oneOf"] = [_simple(rng) for _ in range(rng.randint(1, 3))]


def schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema that may refer to two definitions of the root."""
    if rng.random() < 0.06 or depth < 0:
        return rng.random() < 0.9
    out: dict[str, Any] = {}
    kinds = rng.sample(_TYPES, rng.choice((1, 1, 1, 2, 3)))
    if rng.random() < 0.85:
        out["type"] = kinds[0] if len(kinds) == 1 else kinds
    else:
        kinds = list(_TYPES)
    for names, write in ((("string",), lambda: _strings(rng, out)), (("integer", "number"), lambda: _numbers(rng, out)),
                         (("array",), lambda: _arrays(rng, depth, out)),
                         (("object",), lambda: _objects(rng, depth, out))):
        if set(names) & set(kinds) and (len(kinds) <= 2 or rng.random() < 0.4):
            write()
    if rng.random() < 0.1:
        out["enum"] = [value(rng) for _ in range(rng.randint(1, 4))]
    if rng.random() < 0.05:
        out["const"] = value(rng)
    for name, share in (("allOf", 0.12), ("anyOf", 0.12), ("oneOf", 0.1)):
        if rng.random() < share and depth:
            out[name] = [schema(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    if rng.random() < 0.08:
        out["$ref"] = rng.choice(("#", "#/$defs/one", "#/$defs/two"))
    if rng.random() < 0.03:
        name = rng.choice(_REFUSED)
        out[name] = {"uniqueItems": True}.get(name, schema(rng, depth - 1))
    _logic(rng, depth, out)
    return dict(rng.sample(sorted(out.items()), len(out)))


def document(rng: random.Random) -> Any:
    """A whole schema, with its definitions."""
    root = schema(rng)
    return root if isinstance(root, bool) else {**root, "$defs": {"one": schema(rng, 1), "two": schema(rng, 2)}}


def judge(document: Any, text: str) -> str | None:
    """Why an answer is wrong, by `jsonschema`; None where it is not."""
    validator = jsonschema.validators.validator_for(document, jsonschema.Draft202012Validator)(
        document, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
    try:
        validator.validate(json.loads(text))
    except (jsonschema.ValidationError, ValueError) as error:
        return str(error).partition("\n")[0]
    return None
