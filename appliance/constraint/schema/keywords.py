"""The keywords of JSON Schema that hold for one type of value, written for llguidance.

Each function takes the keywords of its type out of a schema. It returns those that say the same to
llguidance, or something stricter where a text says so. `SchemaReader` reads the schemas within.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from appliance.constraint.schema import dialects, formats, looking, numbers
from appliance.constraint.schema.languages import Work
from appliance.constraint.schema.place import SchemaPath, check_text, count_of, list_of, mapping_of
from appliance.errors import ConstraintError

MOST_ITEMS = 4096  # of an array that says how many it has
MOST_MEMBERS = 1024  # of an object that have a name: compiling goes with their square
MOST_CHARACTERS = 16384  # of a string that says how many it has
MOST_PATTERNS = 8  # of names, in one object
MOST_MULTIPLE = 10_000  # least common multiple of all that a schema asks for

TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")

Schema = dict[str, Any] | bool
P = TypeVar("P")


class Counter(Protocol):
    """Counts what a schema has."""

    work: Work  # that is left for patterns that look ahead


class SchemaReader(Protocol):
    """Reads schemas within a schema."""

    multiple: int  # the least common multiple of all numbers of `multipleOf` so far
    subset: bool  # a part allows less than it was asked for
    arrays_are_tuples: bool  # `items` may be a list: a draft before 2020-12

    @property
    def budget(self) -> Counter:
        """The counts of what the schema has."""

    def schema(self, value: Any, place: SchemaPath) -> Schema:
        """A schema, written for llguidance."""
        ...


def of_string(schema: Mapping[str, Any], place: SchemaPath, reader: SchemaReader) -> dict[str, Any]:
    """`minLength`, `maxLength`, `pattern` and `format`."""
    out: dict[str, Any] = {name: count_of(schema[name], place / name, MOST_CHARACTERS)
                           for name in ("minLength", "maxLength") if name in schema}
    found: list[str] = []
    if "pattern" in schema:
        found += [each.text for each in _pattern(schema["pattern"], place / "pattern", lambda text: looking.search(
            text, reader.budget.work))]
    if "format" in schema:
        name = schema["format"]
        is_known = isinstance(name, str) and (name in formats.KNOWN or (
            name in formats.BESIDE_PATTERN and "pattern" in schema))
        if not is_known:
            raise (place / "format").refusal("a format that is not known here", ", ".join(sorted(formats.KNOWN)))
        if name in formats.PATTERNS:
            found.append(dialects.whole(formats.PATTERNS[name]).text)
    if found:
        out["pattern"] = f"^(?:{found[0]})$"
    if len(found) > 1:
        kind = {"type": "string"} if schema.get("type") == "string" else {}
        out["allOf"] = [{"pattern": f"^(?:{each})$"} | kind for each in found[1:]]
    return out


def _pattern(value: Any, place: SchemaPath, read: Callable[[str], P]) -> P:
    if not isinstance(value, str):
        raise place.refusal("a pattern that is not a text", "a regular expression")
    try:
        return read(value)
    except ConstraintError as error:
        raise ConstraintError(error.summary, path=str(place), hint=error.hint) from None


def of_number(schema: Mapping[str, Any], place: SchemaPath, reader: SchemaReader) -> dict[str, Any]:
    """Bounds, `multipleOf`, and a `format` that is a range."""
    types = schema.get("type")
    whole = types == "integer" or (isinstance(types, list) and "integer" in types and "number" not in types)
    lows, highs = list[int | float](), list[int | float]()
    for name, bounds, read in (
            ("minimum", lows, lambda value: math.ceil(value) if whole else value),
            ("exclusiveMinimum", lows, lambda value: numbers.above(value, whole=whole)),
            ("maximum", highs, lambda value: math.floor(value) if whole else value),
            ("exclusiveMaximum", highs, lambda value: numbers.below(value, whole=whole))):
        if name in schema:
            value = numbers.exact(schema[name])
            if value is None and numbers.is_beyond(schema[name], above=bounds is highs):
                value, reader.subset = numbers.LARGEST if bounds is highs else -numbers.LARGEST, True
            if value is None:
                raise (place / name).refusal("a bound that is not a plain number", "whole numbers up to 2^53; others "
                                             "up to a million, with up to nine decimal places")
            bounds.append(read(value))
    least, most = formats.RANGES.get(str(schema.get("format")), (None, None))
    lows += [] if least is None else [least]
    highs += [] if most is None else [most]
    out: dict[str, Any] = {} if not lows else {"minimum": max(lows)}
    if highs:
        out["maximum"] = min(highs)
    if "multipleOf" in schema:
        multiple = numbers.exact(schema["multipleOf"])
        if not isinstance(multiple, int) or multiple < 1:
            raise (place / "multipleOf").refusal("a multiple of something else than a whole number", "1 and more")
        reader.multiple = math.lcm(reader.multiple, multiple)
        if reader.multiple > MOST_MULTIPLE:
            raise (place / "multipleOf").refusal("multiples whose common multiple is too large", f"{MOST_MULTIPLE}")
        out["multipleOf"] = multiple
    return out


def of_array(schema: Mapping[str, Any], place: SchemaPath, reader: SchemaReader) -> dict[str, Any]:
    """`prefixItems`, `items`, `minItems`, `maxItems`, and the names that older drafts have for
    them."""
    out: dict[str, Any] = {name: count_of(schema[name], place / name, MOST_ITEMS)
                           for name in ("minItems", "maxItems") if name in schema}
    first, rest = "prefixItems", "items"
    if reader.arrays_are_tuples:
        if "prefixItems" in schema:
            raise (place / first).refusal("prefixItems of a later draft", "items as a list")
        if isinstance(schema.get("items"), list):
            first, rest = "items", "additionalItems"
    elif "additionalItems" in schema:
        raise (place / "additionalItems").refusal("additionalItems of an earlier draft", "prefixItems and items")
    if first in schema:
        out["prefixItems"] = [reader.schema(each, place / first / index)
                              for index, each in enumerate(list_of(schema[first], place / first, MOST_ITEMS))]
    for name in (rest, "unevaluatedItems"):
        if name in schema and "items" not in out:
            out["items"] = reader.schema(schema[name], place / name)
    unique = schema.get("uniqueItems", False)
    if not isinstance(unique, bool) or (unique and out.get("maxItems", 2) > 1):
        raise (place / "uniqueItems").refusal("items that have to differ", "uniqueItems false, or maxItems 1")
    return out


def of_object(schema: Mapping[str, Any], place: SchemaPath, reader: SchemaReader) -> dict[str, Any]:
    """`properties`, `required`, `patternProperties`, `additionalProperties`, `minProperties`,
    `maxProperties`."""
    out: dict[str, Any] = {}
    if "properties" in schema:
        out["properties"] = {name: reader.schema(each, place / "properties" / name) for name, each
                             in mapping_of(schema["properties"], place / "properties", MOST_MEMBERS).items()}
    if "patternProperties" in schema:
        named = [*out.get("properties", {}), *_required(schema.get("required", ()), place / "required")]
        out["patternProperties"] = _by_pattern(schema["patternProperties"], place / "patternProperties", reader, named)
    for name in ("additionalProperties", "unevaluatedProperties"):
        if name in schema and "additionalProperties" not in out:
            out["additionalProperties"] = reader.schema(schema[name], place / name)
    if not _are_all(schema.get("propertyNames", True)):
        if out.get("properties") or out.get("patternProperties") or "required" in schema:
            raise (place / "propertyNames").refusal("names of members beside a schema of names", "one of them")
        _names(schema["propertyNames"], place / "propertyNames", out, reader)
    if "required" in schema:
        out["required"] = _required(schema["required"], place / "required")
    return out | _counts(schema, place, out)


def _are_all(names: Any) -> bool:
    """Whether a schema of names allows each, as the one that zod writes for a record does."""
    return names is True or (isinstance(names, Mapping) and names.get("type", "string") == "string"
                             and names.keys() <= {"type", "title", "description"})


def _names(value: Any, place: SchemaPath, out: dict[str, Any], reader: SchemaReader) -> None:
    """The schema of names in an object whose members have no names of their own: as a pattern, with
    the schema of all members."""
    if value is False:
        out["additionalProperties"] = False
        return
    found = reader.schema(value, place)
    given = {} if isinstance(found, bool) else {name: each for name, each in found.items() if name != "type"}
    types = TYPES if isinstance(found, bool) or "type" not in found else found["type"]
    if "string" not in types or len(given) != 1 + ("maxLength" in given and "minLength" in given):
        raise place.refusal("something else than one rule for names", "a pattern, a format, lengths, or an enum")
    if "pattern" in given:
        names = given["pattern"]
    elif "enum" in given or "const" in given:
        texts = [text for text in given.get("enum", [given.get("const")]) if isinstance(text, str)]
        names = "^(?:" + "|".join(map(dialects.literal, texts)) + ")$"
    else:
        least, most = given.get("minLength", 0), given.get("maxLength", "")
        names = f"^(?s:.{{{least},{most}}})$"
    if "pattern" not in given and not given.keys() <= {"enum", "const", "minLength", "maxLength"}:
        raise place.refusal("something else than one rule for names", "a pattern, a format, lengths, or an enum")
    out["patternProperties"] = {names: out.get("additionalProperties", True)}
    out["additionalProperties"] = False
    reader.subset = reader.subset or "pattern" in given


def _by_pattern(value: Any, place: SchemaPath, reader: SchemaReader, named: list[str]) -> dict[str, Schema]:
    """Schemas by patterns of names. Dialects must agree on which names match, since
    `additionalProperties` holds for the others: so no name has a character on which they differ."""
    given = mapping_of(value, place, MOST_PATTERNS)
    work = reader.budget.work
    unsure = dialects.union(*(_pattern(name, place / name, lambda text: looking.name(text, work)).unsure
                             for name in given))
    if any(first <= ord(letter) <= last for name in named for letter in name for first, last in unsure):
        raise place.refusal("a class that dialects read differently, and a name with such a character",
                            "classes written out: [0-9] for \\d, [A-Za-z0-9_] for \\w, [ \\t] for \\s")
    out: dict[str, Schema] = {}
    for name, each in given.items():
        text = _pattern(name, place / name, lambda text: looking.name(text, work, unsure)).text
        if f"^(?:{text})$" in out:
            raise (place / name).refusal("a pattern twice", "one")
        out[f"^(?:{text})$"] = reader.schema(each, place / name)
    if unsure:
        out[f"^{dialects.containing(unsure)}$"], reader.subset = False, True
    return out


def _required(value: Any, place: SchemaPath) -> list[str]:
    if not isinstance(value, list | tuple) or len(value) > MOST_MEMBERS \
            or not all(isinstance(each, str) for each in value):
        raise place.refusal("something else than a list of names", f"up to {MOST_MEMBERS} names")
    for each in value:
        check_text(each, place)
    return list(dict.fromkeys(value))


def _counts(schema: Mapping[str, Any], place: SchemaPath, out: Mapping[str, Any]) -> dict[str, int]:
    """`minProperties` and `maxProperties`, as far as nobody has to count optional members. A member
    that no name foresees may come twice, so that more than one of these cannot be counted on."""
    required = out.get("required", [])
    optional = [name for name in out.get("properties", {}) if name not in required]
    closed = out.get("additionalProperties") is False and not out.get("patternProperties")
    found: dict[str, int] = {}
    for name in ("minProperties", "maxProperties"):
        if name in schema:
            count = count_of(schema[name], place / name, MOST_MEMBERS)
            more = count - len(required)
            if name == "minProperties" and more <= 0:
                continue
            simple = more <= 1 if name == "minProperties" else not optional or (closed and more == 1)
            if not simple or (optional and not closed):
                raise (place / name).refusal("a count of members that are optional", "required members; or, where "
                                             "additionalProperties is false, one optional member at least or most")
            found[name] = count
    return found
