"""The keywords `not`, `if` and those of dependencies, written by `anyOf` and `allOf` alone.

The opposite of a schema is written keyword by keyword; most have one. Where it cannot be written in
full, a part is: `not` over `integer` allows no number. A schema that has no written opposite is
refused. All functions take and return schemas as a request has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from appliance.constraint.schema import numbers
from appliance.constraint.schema.place import SchemaPath, list_of, mapping_of

MOST_BRANCHES = 64  # of one opposite
DEEPEST = 16  # opposites within opposites
_TYPES = ("null", "boolean", "number", "string", "array", "object")
_BOUNDS = {"minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum", "maximum": "exclusiveMinimum",
           "exclusiveMaximum": "minimum"}
_LEAST = {"minLength": ("string", "maxLength"), "minItems": ("array", "maxItems"),
          "minProperties": ("object", "maxProperties")}
_MOST = {"maxLength": ("string", "minLength"), "maxItems": ("array", "minItems"),
         "maxProperties": ("object", "minProperties")}

Target = Callable[[Any, SchemaPath], Any]
"""The schema that a reference leads to."""


class Opposites:
    """Writes opposites of schemas; `target` follows references, `annotations` restrict nothing."""

    def __init__(self, target: Target, annotations: frozenset[str]) -> None:
        self.subset = False
        """Whether some opposite bars a type as a whole, where not all of it was to be barred."""
        self.whole = False
        """Whether that is since whole numbers were to be barred, and no others."""
        self._target, self._annotations, self._depth = target, annotations, 0

    def of(self, schema: Any, place: SchemaPath) -> Any:
        """A schema for values that `schema` does not allow. ConstraintError where there is none."""
        if isinstance(schema, bool):
            return not schema
        if not isinstance(schema, Mapping):
            raise place.refusal("something else than a schema", "an object, true or false")
        if "nullable" in schema:
            rest = self.of({name: each for name, each in schema.items() if name != "nullable"}, place)
            return {"allOf": [rest, {"type": list(_TYPES[1:])}]} if schema["nullable"] is True else rest
        self._depth += 1
        if self._depth > DEEPEST:
            raise place.refusal("opposites too deep within each other", f"at most {DEEPEST}, references included")
        branches: list[Any] = []
        for name, value in schema.items():
            if name not in self._annotations and name not in ("$schema", "then", "else"):
                branches += self._of_keyword(schema, name, value, place / name)
        self._depth -= 1
        if len(branches) > MOST_BRANCHES:
            raise place.refusal("an opposite of too many parts", f"at most {MOST_BRANCHES}")
        return {"anyOf": branches} if branches else False

    def _of_keyword(self, schema: Mapping[str, Any], name: str, value: Any, place: SchemaPath) -> Iterable[Any]:
        """Schemas for what one keyword does not allow."""
        if name == "type":
            types = [value] if isinstance(value, str) else list_of(value, place, 7)
            if not all(isinstance(each, str) for each in types):
                raise place.refusal("a type that is not known here", ", ".join(_TYPES))
            self.whole = self.whole or ("integer" in types and "number" not in types)
            self.subset = self.subset or self.whole
            return _of_types(types)
        if name in ("const", "enum"):
            values = [value] if name == "const" else list_of(value, place, MOST_BRANCHES)
            self.subset = self.subset or any(isinstance(each, list | dict) for each in values)
            return _of_values(values, place)
        if name == "required":
            if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
                raise place.refusal("something else than a list of names", "names")
            return [{"type": "object", "properties": {each: False}} for each in value]
        if name == "properties":
            return [{"type": "object", "required": [key], "properties": {key: self.of(each, place / key)}}
                    for key, each in mapping_of(value, place, MOST_BRANCHES).items() if each is not True and each != {}]
        if name in _BOUNDS:
            return [{"type": "number", _BOUNDS[name]: value}]
        if name in _LEAST or name in _MOST:
            return _of_count(name, value, place)
        if name == "allOf":
            return [self.of(each, place / index) for index, each in enumerate(list_of(value, place, MOST_BRANCHES))]
        if name == "anyOf":
            return [{"allOf": [self.of(each, place / index)
                               for index, each in enumerate(list_of(value, place, MOST_BRANCHES))]}]
        if name == "not":
            return [value]
        if name == "$ref":
            return [self.of(self._target(value, place), place)]
        if name == "if":
            return [{"allOf": [value, self.of(schema.get("then", True), place)]},
                    {"allOf": [self.of(value, place), self.of(schema.get("else", True), place)]}]
        raise place.refusal("a keyword whose opposite cannot be written", "type, const, enum, required, properties, "
                            "bounds, lengths, allOf, anyOf, not and if under not and if")


Part = tuple[Any, SchemaPath]
Said = tuple[str, Any, list[Part]]
"""A keyword, a schema that says the same, and the schemas of the request that it has within."""


def conditional(schema: Mapping[str, Any], opposites: Opposites, place: SchemaPath) -> Iterator[Said]:
    """Write `not`, `if` and dependencies of a schema by `anyOf` and `allOf`."""
    if "not" in schema:
        yield "not", opposites.of(schema["not"], place / "not"), []
    if "if" in schema and ("then" in schema or "else" in schema):
        yield "if", {"anyOf": [
            {"allOf": [schema["if"], schema.get("then", True)]},
            {"allOf": [opposites.of(schema["if"], place / "if"), schema.get("else", True)]}]}, \
            [(schema[name], place / name) for name in ("if", "then", "else") if name in schema]
    for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        for name, each in mapping_of(schema.get(keyword, {}), place / keyword, MOST_BRANCHES).items():
            then = {"required": list(each)} if isinstance(each, list | tuple) else each
            yield keyword, {"anyOf": [{"properties": {name: False}}, {"allOf": [{"required": [name]}, then]}]}, \
                [(then, place / keyword / name)]


def exclusive(schemas: Sequence[Any], opposites: Opposites, place: SchemaPath) -> dict[str, Any]:
    """`oneOf`: one holds, and none of the others."""
    if len(schemas) > 8:
        raise place.refusal("too many schemas that may hold together", "8, or schemas that exclude each other")
    others = [opposites.of(each, place / index) for index, each in enumerate(schemas)]
    return {"anyOf": [{"allOf": [each, *(other for at, other in enumerate(others) if at != index)]}
                      for index, each in enumerate(schemas)]}


def kinds(schema: Any) -> set[str]:
    """The types that a schema may leave, by its `type`, `allOf` and `anyOf` alone. Whole numbers
    are numbers."""
    if not isinstance(schema, Mapping):
        return set(_TYPES) if schema else set()
    types = schema.get("type", list(_TYPES))
    found = {"number" if each == "integer" else each for each in ([types] if isinstance(types, str) else types)}
    for each in schema.get("allOf", ()):
        found &= kinds(each)
    return found & set().union(*map(kinds, schema["anyOf"])) if "anyOf" in schema else found


def _of_types(types: Sequence[Any]) -> list[Any]:
    """All types but these. A number that is not whole has no type of its own, so it goes with whole
    ones."""
    barred = {"number" if each == "integer" else each for each in types}
    rest = [each for each in _TYPES if each not in barred]
    return [{"type": rest}] if rest else []


def _of_count(name: str, value: Any, place: SchemaPath) -> list[Any]:
    if isinstance(value, bool) or not isinstance(value, int | float) or value != int(value):
        raise place.refusal("something else than a whole number", "0 and more")
    if name in _LEAST:
        kind, opposite = _LEAST[name]
        return [{"type": kind, opposite: int(value) - 1}] if value >= 1 else []
    kind, opposite = _MOST[name]
    return [{"type": kind, opposite: int(value) + 1}]


def _of_values(values: Sequence[Any], place: SchemaPath) -> list[Any]:
    """All values but these. Arrays and objects are barred where one of them is."""
    found: list[Any] = [] if None in values else [{"type": "null"}]
    found += [{"const": each} for each in (True, False) if not any(each is value for value in values)]
    texts = sorted({each for each in values if isinstance(each, str)})
    found.append({"type": "string", "pattern": f"^(?:{_other_texts(texts, place)})$"} if texts else {"type": "string"})
    plain = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    if any(numbers.exact(each) is None for each in plain):
        raise place.refusal("a number that programs read differently", "whole numbers up to 2^53")
    edges = sorted(set(plain))
    found += [{"type": "number", **({} if low is None else {"exclusiveMinimum": low}),
               **({} if high is None else {"exclusiveMaximum": high})}
              for low, high in zip([None, *edges], [*edges, None], strict=True)]
    found += [{"type": kind} for kind, python in (("array", list), ("object", dict))
              if not any(isinstance(each, python) for each in values)]
    return found


_ANY = "[^\\r]|\\r"  # any character, whatever a dialect says of a dot


def _other_texts(texts: Sequence[str], place: SchemaPath) -> str:
    """A pattern for all texts but these: by the first character that differs."""
    if sum(map(len, texts)) > 256:
        raise place.refusal("too many characters of texts whose opposite is asked for", "256")
    firsts = sorted({text[0] for text in texts if text})
    parts = [f"[^{''.join(map(_escaped, firsts))}](?:{_ANY})*" if firsts else f"(?:{_ANY})+"]
    parts += [f"{_escaped(first)}(?:{_other_texts([text[1:] for text in texts if text[:1] == first], place)})"
              for first in firsts]
    return "|".join(parts if "" in texts else ["", *parts])


def _escaped(character: str) -> str:
    return character if character.isalnum() or ord(character) >= 0x80 else f"\\x{ord(character):02x}"
