"""JSON Schemas, checked and written again for llguidance: what it enforces to the letter, and
nothing else.

`rewrite` returns a schema whose keywords are all known to hold, in an order that is known to be
right. All its references lead to its own `$defs`. Every keyword that is not in the
tables here is refused, with its path. So is a schema that no document of finite size can meet.

A subset of what a schema allows is enforced where the whole cannot be: every such document
conforms. That concerns strings with control characters, formats and patterns, see `formats` and
`pattern`.
`oneOf` is left to llguidance, which proves that its schemas exclude each other. Where it cannot, it
is written as what one schema allows and the others do not, see `logic`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from appliance.constraint.schema import numbers
from appliance.constraint.schema.keywords import TYPES, Schema, of_array, of_number, of_object, of_string
from appliance.constraint.schema.languages import Work
from appliance.constraint.schema.logic import Opposites, conditional, exclusive, kinds
from appliance.constraint.schema.place import SchemaPath, check_text, list_of, mapping_of
from appliance.errors import ConstraintError

MOST_SCHEMAS = 10_000  # within one, references followed once; and in all of a grammar's
MOST_VALUES = 50_000  # of enum and const, parts included
DEEPEST = 64  # schemas within schemas, along references
MOST_BRANCHES = 1024  # of anyOf, oneOf and allOf

DRAFTS = {"https://json-schema.org/draft/2020-12/schema": False, "https://json-schema.org/draft/2019-09/schema": True,
          "http://json-schema.org/draft-07/schema": True, "http://json-schema.org/draft-06/schema": True}
"""Drafts that are read, and whether `items` may be a list there."""

ANNOTATIONS = frozenset((
    "title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly", "writeOnly",
    "$defs", "definitions", "$anchor", "$dynamicAnchor", "contentMediaType", "contentEncoding", "contentSchema",
    "discriminator", "xml", "externalDocs", "propertyOrdering"))
"""Keywords that restrict nothing by themselves; the last line has those of OpenAPI and Gemini."""

_BY_TYPE = (
    (of_string, ("minLength", "maxLength", "pattern", "format")),
    (of_number, ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format")),
    (of_array, ("prefixItems", "items", "additionalItems", "minItems", "maxItems", "uniqueItems", "unevaluatedItems")),
    (of_object, ("properties", "required", "patternProperties", "additionalProperties", "minProperties",
                 "maxProperties", "propertyNames", "unevaluatedProperties")),
)
_TYPED = frozenset(name for _, names in _BY_TYPE for name in names)
_LOGIC = ("not", "if", "dependentRequired", "dependentSchemas", "dependencies")
_IN_PLACE = ("const", "enum", "$ref", "allOf", "anyOf", "oneOf", *_LOGIC)
_WITHOUT = {"then": "if", "else": "if", "minContains": "contains", "maxContains": "contains"}
"""Keywords that count for nothing without another."""

_OTHERS = frozenset(("type", "nullable", "$schema", "$id", "then", "else", *_IN_PLACE))
KEYWORDS = ANNOTATIONS | _TYPED | _OTHERS
"""All keywords that a schema may have; and any that begins with `x-`, which restricts nothing."""


def check_schema(schema: Mapping[str, Any] | bool, work: Work | None = None) -> None:
    """Refuse a schema that would not be enforced to the letter: ConstraintError, with the path of
    the keyword. It may still be too large to compile, or be met by no document. `work`: what is
    left for patterns that look ahead."""
    rewrite(schema, Allowance(work))


def rewrite(schema: Mapping[str, Any] | bool, budget: Allowance | None = None, *,
            spell_out: bool = False) -> dict[str, Any]:
    """The same schema, for llguidance; ConstraintError as `check_schema` has it. `spell_out`:
    without `oneOf`.

    Nor has it one where a part of it is a subset of what was asked, as some opposites are. Schemas
    may then seem to exclude each other, and do not.
    """
    budget = budget or Allowance()
    reader = Rewriter(schema, budget, spell_out=spell_out)
    found = reader.document()
    return Rewriter(schema, budget, spell_out=True).document() if reader.subset and reader.kept_one_of else found


class Allowance:
    """Schemas and values that there may be, in one or in several that belong together."""

    def __init__(self, work: Work | None = None) -> None:
        """`work`: what is left for patterns that look ahead."""
        self._schemas, self._values = 0, 0
        self.work = work or Work()

    def schema(self, place: SchemaPath) -> None:
        """Count a schema."""
        self._schemas += 1
        if self._schemas > MOST_SCHEMAS:
            raise place.refusal("too many schemas within it", f"at most {MOST_SCHEMAS}")

    def value(self, place: SchemaPath) -> None:
        """Count a value of `const` or `enum`."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise place.refusal("too many values", f"at most {MOST_VALUES}")


class Rewriter:
    """Reads one schema, and those that it refers to. `spell_out`: `oneOf` is not left to
    llguidance."""

    def __init__(self, root: Any, budget: Allowance | None = None, *, spell_out: bool = False) -> None:
        self.multiple = 1
        self.subset, self.kept_one_of = False, False
        self._spell_out = spell_out
        self._opposites = Opposites(lambda reference, place: self._target(self._parts(reference, place), place),
                                    ANNOTATIONS)
        self._root, self._depth, self.budget = root, 0, budget or Allowance()
        self._definitions: dict[tuple[str, ...], str] = {}  # name of what a reference leads to
        self._written: dict[str, Any] = {}
        self._open: frozenset[tuple[str, ...]] = frozenset({()})  # what is being read
        self._draft = "https://json-schema.org/draft/2020-12/schema"
        if isinstance(root, Mapping) and "$schema" in root:
            named = root["$schema"]
            self._draft = named.removesuffix("#") if isinstance(named, str) else ""
            if self._draft not in DRAFTS:
                raise (SchemaPath() / "$schema").refusal("a draft that is not known here", ", ".join(DRAFTS))
        self.arrays_are_tuples = DRAFTS[self._draft]
        self.is_latest = self._draft.startswith("https:")

    def document(self) -> dict[str, Any]:
        """The whole schema."""
        found = self.schema(self._root, SchemaPath())
        if found is False:
            raise SchemaPath().refusal("no document that it allows", "a schema that something conforms to")
        out: dict[str, Any] = {} if found is True else dict(found)
        endless = _endless(out, self._written)
        if endless:
            raise SchemaPath().refusal("no document of finite size that it allows", "an end to each recursion")
        return out | ({"$defs": self._written} if self._written else {}) | _spaced(self._root)

    def schema(self, value: Any, place: SchemaPath) -> Schema:
        """A schema within; ConstraintError with the path of a keyword."""
        if isinstance(value, bool):
            return value
        schema = value
        if not isinstance(schema, Mapping):
            raise place.refusal("something else than a schema", "an object, true or false")
        self.budget.schema(place)
        if self._depth >= DEEPEST:
            raise place.refusal("schemas too deep within each other", f"at most {DEEPEST}, references included")
        self._depth += 1
        try:
            return self._object(schema, place)
        finally:
            self._depth -= 1

    def _object(self, schema: Mapping[str, Any], place: SchemaPath) -> Schema:
        self._check_names(schema, place)
        if "nullable" in schema:
            return self._nullable(schema, place)
        out: dict[str, Any] = {}
        types = self._types(schema, place)
        if types is not None:
            out["type"] = types
        every = self._conditional(schema, place)
        for write, names in _BY_TYPE:
            if any(name in schema for name in names):
                part = write(schema, place, self)
                every += part.pop("allOf", [])
                out |= part
        if "const" in schema:
            out["const"] = self._constant(schema["const"], place / "const")
        if "enum" in schema:
            out["enum"] = [self._constant(each, place / "enum" / index) for index, each
                           in enumerate(list_of(schema["enum"], place / "enum", MOST_VALUES))]
        if "$ref" in schema:
            out["$ref"] = self._reference(schema["$ref"], place / "$ref")
        every += self._branches(schema, "allOf", place)
        if "oneOf" in schema and self._spell_out:
            every.append(self._exclusive(schema["oneOf"], place / "oneOf"))
        if every:
            out["allOf"] = every
        if "anyOf" in schema:
            out["anyOf"] = self._branches(schema, "anyOf", place)
        if "oneOf" in schema and not self._spell_out:
            self.kept_one_of = True
            out["oneOf"] = [self._in_full(each, place / "oneOf" / index) for index, each
                            in enumerate(list_of(schema["oneOf"], place / "oneOf", MOST_BRANCHES))]
        return out

    def _nullable(self, schema: Mapping[str, Any], place: SchemaPath) -> Schema:
        """A schema with OpenAPI's `nullable`: null, or what the rest of it allows."""
        if not isinstance(schema["nullable"], bool):
            raise (place / "nullable").refusal("something else than a boolean", "true or false")
        rest = {name: each for name, each in schema.items() if name != "nullable"}
        types = rest.get("type")
        if schema["nullable"] and isinstance(types, str) and not any(name in rest for name in _IN_PLACE):
            return self._object({**rest, "type": list(dict.fromkeys((types, "null")))}, place)
        found = self._object(rest, place)
        return {"anyOf": [found, {"type": "null"}]} if schema["nullable"] else found

    def _exclusive(self, value: Any, place: SchemaPath) -> Schema:
        """`oneOf` without it. A whole number is also a number; the others have no type by which to
        tell them from it."""
        branches = list_of(value, place, MOST_BRANCHES)
        found = self.schema(exclusive(branches, self._opposites, place), place)
        if not kinds(found) and self._opposites.whole:
            raise place.refusal("schemas of numbers, of which a whole number meets several, and others are not told "
                                "from whole ones,", "anyOf, or number alone")
        if not kinds(found):
            raise place.refusal("schemas of which no value meets exactly one", "anyOf, or schemas that exclude each "
                                "other")
        return found

    def _conditional(self, schema: Mapping[str, Any], place: SchemaPath) -> list[Schema]:
        """Write `not`, `if` and dependencies by others. Their parts are read for themselves first,
        so that an error has their own path."""
        found: list[Schema] = []
        for name, each, parts in conditional(schema, self._opposites, place):
            for part, where in parts:
                self.schema(part, where)
            try:
                found.append(self.schema(each, place))
            except ConstraintError as error:
                raise ConstraintError(error.summary, path=str(place / name), hint=error.hint) from None
        self.subset = self.subset or self._opposites.subset
        return found

    def _check_names(self, schema: Mapping[str, Any], place: SchemaPath) -> None:
        """Refuse keywords that are not in the tables, or that count for nothing or more here."""
        for name in schema:
            if name not in KEYWORDS and not str(name).startswith("x-") and _WITHOUT.get(name, name) in schema:
                raise (place / str(name)).refusal("a keyword that is not enforced here",
                                                  "leave it out; allowed are " + ", ".join(sorted(KEYWORDS)))
        if place.path and "$id" in schema:
            raise (place / "$id").refusal("a base of its own within it", "$id at the root alone")
        if place.path and schema.get("$schema", self._draft).removesuffix("#") != self._draft:
            raise (place / "$schema").refusal("another draft within it", "one draft")
        content = next((name for name in schema if name.startswith("content") and not self.is_latest), None)
        if content is not None:
            raise (place / content).refusal("a content keyword, which this draft may check", "2020-12, where it says "
                                            "nothing")
        if "$ref" in schema and not self.is_latest:
            for name in schema:
                if name not in ANNOTATIONS and name not in ("$ref", "$schema"):
                    raise (place / name).refusal("a keyword beside $ref, which this draft ignores", "allOf for both")
        if "unevaluatedItems" in schema or "unevaluatedProperties" in schema:
            for name in _IN_PLACE[2:]:
                if name in schema:
                    raise (place / name).refusal("a keyword beside unevaluatedItems or unevaluatedProperties",
                                                 "additionalProperties and items")

    def _types(self, schema: Mapping[str, Any], place: SchemaPath) -> str | list[str] | None:
        if "type" not in schema:
            return None
        types = schema["type"]
        found = [types] if isinstance(types, str) else list_of(types, place / "type", len(TYPES))
        if not all(isinstance(each, str) and each in TYPES for each in found) or len(set(found)) < len(found):
            raise (place / "type").refusal("a type that is not known here", ", ".join(TYPES))
        return types if isinstance(types, str) else [each for each in TYPES if each in found]

    def _branches(self, schema: Mapping[str, Any], name: str, place: SchemaPath) -> list[Schema]:
        if name not in schema:
            return []
        return [self.schema(each, place / name / index)
                for index, each in enumerate(list_of(schema[name], place / name, MOST_BRANCHES))]

    def _in_full(self, schema: Any, place: SchemaPath) -> Schema:
        """A branch of `oneOf`: one that is elsewhere comes here as a copy, since llguidance looks
        behind no reference to tell branches apart. One that is within itself stays where it is."""
        if isinstance(schema, Mapping) and "$ref" in schema and not schema.keys() - ANNOTATIONS - {"$ref"}:
            parts = self._parts(schema["$ref"], place / "$ref")
            if parts not in self._open:
                return self._opened(parts, self._target(parts, place / "$ref"))
        return self.schema(schema, place)

    def _opened(self, parts: tuple[str, ...], schema: Any) -> Schema:
        """A schema of this document, known to be read while it is."""
        before = self._open
        self._open = before | {parts}
        try:
            return self.schema(schema, SchemaPath(parts))
        finally:
            self._open = before

    def _constant(self, value: Any, place: SchemaPath) -> Any:
        """A value of `const` or `enum`, whole numbers as such."""
        self.budget.value(place)
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            check_text(value, place)
            return value
        if isinstance(value, int | float):
            number = numbers.exact(value)
            if number is None:
                raise place.refusal("a number that programs read differently", "whole numbers up to 2^53; others up to "
                                    "a million, with up to nine decimal places")
            return number
        if len(place.path) > 4 * DEEPEST:
            raise place.refusal("values too deep within each other", f"at most {DEEPEST}")
        if isinstance(value, list | tuple):
            return [self._constant(each, place / index) for index, each in enumerate(value)]
        return {name: self._constant(each, place / name) for name, each
                in mapping_of(value, place, MOST_VALUES).items()}

    def _reference(self, reference: Any, place: SchemaPath) -> str:
        """A reference to a schema of this document; it is read when it is first met."""
        parts = self._parts(reference, place)
        if parts not in self._definitions:
            target = self._target(parts, place)
            name = self._definitions[parts] = str(len(self._definitions))
            self._written[name] = True  # the name is taken
            self._written[name] = self._opened(parts, target)
        return f"#/$defs/{self._definitions[parts]}"

    def _parts(self, reference: Any, place: SchemaPath) -> tuple[str, ...]:
        """Where in this document a reference leads."""
        text = reference if isinstance(reference, str) else ""
        base = self._root.get("$id") if isinstance(self._root, Mapping) else None
        if isinstance(base, str) and base and text.startswith(base.rstrip("#") + "#"):
            text = text[len(base.rstrip("#")):]
        if text != "#" and not text.startswith("#/"):
            raise place.refusal("a reference that leads elsewhere, or by an anchor", 'within the document: "#/$defs/…"')
        return tuple(part.replace("~1", "/").replace("~0", "~") for part in _unquoted(text).split("/")[1:])

    def _target(self, parts: tuple[str, ...], place: SchemaPath) -> Any:
        at: Any = self._root
        for part in parts:
            if isinstance(at, Mapping) and part in at:
                at = at[part]
            elif isinstance(at, list) and part.isascii() and part.isdigit() and int(part) < len(at):
                at = at[int(part)]
            else:
                raise place.refusal("a reference that leads nowhere", "a schema of this document")
            if isinstance(at, Mapping) and "$id" in at:
                raise place.refusal("a reference into a schema with a base of its own", "$id at the root alone")
        return at


def _spaced(root: Any) -> dict[str, Any]:
    """The blanks after commas and colons that guidance's option asks for: its client reads no other
    answers."""
    options = root.get("x-guidance") if isinstance(root, Mapping) else None
    found = {name: options[name] for name, allowed in _SEPARATORS.items() if options.get(name) in allowed} \
        if isinstance(options, Mapping) and options.get("whitespace_flexible") is not True else {}
    return {"x-guidance": found} if found else {}


_SEPARATORS = {"item_separator": (",", ", "), "key_separator": (":", ": ")}


def _unquoted(text: str) -> str:
    """A fragment of a URI without percent signs."""
    data = text.encode("utf-8", "replace")
    data = re.sub(rb"%([0-9A-Fa-f]{2})", lambda match: bytes.fromhex(match[1].decode()), data)
    return data.decode("utf-8", "replace")


def _endless(root: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Whether no finite document can meet a schema, since it needs one within itself."""
    ending: set[str] = set()

    def ends(schema: Any) -> bool:
        if isinstance(schema, bool):
            return schema
        types = schema.get("type", TYPES)
        kinds = {types} if isinstance(types, str) else set(types)
        if "$ref" in schema and schema["$ref"].removeprefix("#/$defs/") not in ending:
            return False
        if not all(map(ends, schema.get("allOf", ()))):
            return False
        if any(name in schema and not any(map(ends, schema[name])) for name in ("anyOf", "oneOf")):
            return False
        return bool(kinds - {"array", "object"}) or ("object" in kinds and object_ends(schema)) \
            or ("array" in kinds and array_ends(schema))

    def object_ends(schema: Mapping[str, Any]) -> bool:
        properties, rest = schema.get("properties", {}), schema.get("additionalProperties", True)
        patterns = bool(schema.get("patternProperties"))
        return all(ends(properties[name]) if name in properties else patterns or ends(rest)
                   for name in schema.get("required", ()))

    def array_ends(schema: Mapping[str, Any]) -> bool:
        first, least = schema.get("prefixItems", []), schema.get("minItems", 0)
        return all(map(ends, first[:least])) and (least <= len(first) or ends(schema.get("items", True)))

    while True:
        more = {name for name, schema in definitions.items() if name not in ending and ends(schema)}
        if not more:
            return not ends(root)
        ending |= more


def as_text(schema: Mapping[str, Any]) -> str:
    """A rewritten schema as JSON, with the options that keep it compact: a model that may write
    blanks may write nothing else."""
    options = {"whitespace_flexible": False, "json_allowed_escapes": 'nrbtf\\"', **schema.get("x-guidance", {})}
    return json.dumps({**schema, "x-guidance": options}, ensure_ascii=False, separators=(",", ":"))
