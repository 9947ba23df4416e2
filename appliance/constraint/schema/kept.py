"""The part of a schema that is enforced: without the keywords that are not, each of which is named.

It is for schemas that a caller does not demand to the letter. A keyword goes with those that count
on it: without `properties`, `additionalProperties` would forbid what is named there. Within `not`
and `if` nothing is left out, since they would then say something else; they go as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from appliance.constraint.schema.keywords import Schema
from appliance.constraint.schema.languages import Work
from appliance.constraint.schema.place import SchemaPath
from appliance.constraint.schema.rewriter import Allowance, Rewriter, rewrite
from appliance.errors import ConstraintError

MOST = 256  # keywords that are left out of one schema
Path = tuple[str, ...]

_VALUES = frozenset(("const", "enum", "default", "examples", "example"))  # have no schemas within them
_REST = ("additionalProperties", "unevaluatedProperties")
_COUNT_ON = {"properties": _REST, "patternProperties": _REST, "prefixItems": ("items", "unevaluatedItems"),
             "items": ("unevaluatedItems",)}


def kept(schema: Mapping[str, Any], work: Work) -> tuple[Mapping[str, Any], list[Path]]:
    """The schema without the keywords that are not enforced, and their paths. ConstraintError where
    nothing of it would be left. `work`: what is left for patterns that look ahead."""
    try:
        reader = _Lenient(schema, work)
    except ConstraintError:  # a draft that is not known here
        found, dropped = kept({name: each for name, each in schema.items() if name != "$schema"}, work)
        return found, [("$schema",), *dropped]
    reader.document()
    found = _without(schema, reader.dropped, ()) if reader.dropped else schema
    rewrite(found, Allowance(work))
    return found, list(reader.dropped)


def without_one_of(schema: Any, at: Path = ()) -> tuple[Any, list[Path]]:
    """The schema with `anyOf` for each `oneOf`, and their paths."""
    if isinstance(schema, list):
        parts = [without_one_of(item, (*at, str(place))) for place, item in enumerate(schema)]
        return [found for found, _ in parts], [path for _, some in parts for path in some]
    if not isinstance(schema, Mapping):
        return schema, []
    eased, paths = dict[str, Any](), list[Path]()
    for name, item in schema.items():
        eased[name], more = (item, []) if name in _VALUES else without_one_of(item, (*at, name))
        paths += more
    if isinstance(eased.get("oneOf"), list):
        branches = {"anyOf": eased.pop("oneOf")}
        eased["allOf"] = [*eased.get("allOf", []), branches]
        paths.append((*at, "oneOf"))
    return eased, paths


class _Lenient(Rewriter):
    """Reads a schema, and leaves out what is not enforced."""

    def __init__(self, root: Any, work: Work) -> None:
        super().__init__(root, Allowance(work))
        self.dropped: dict[Path, None] = {}  # in order, each once
        self._opposed = False

    def _object(self, schema: Mapping[str, Any], place: SchemaPath) -> Schema:
        while True:
            try:
                return super()._object(schema, place)
            except ConstraintError as error:
                name = _keyword(schema, place, error.path)
                if name is None or self._opposed or len(self.dropped) >= MOST:
                    raise
                left_out = [each for each in (name, *_COUNT_ON.get(name, ())) if each in schema]
                self.dropped |= dict.fromkeys((*place.path, each) for each in left_out)
                schema = {each: value for each, value in schema.items() if each not in left_out}

    def _conditional(self, schema: Mapping[str, Any], place: SchemaPath) -> list[Schema]:
        before, self._opposed = self._opposed, True
        try:
            return super()._conditional(schema, place)
        finally:
            self._opposed = before


def _keyword(schema: Mapping[str, Any], place: SchemaPath, path: str) -> str | None:
    """The keyword of a schema that has the fault at a path in it."""
    rest = path.removeprefix(f"{place}." if place.path else "")
    names = [name for name in schema if rest == name or rest.startswith(f"{name}.")]
    return max(names, key=len) if names else "$ref" if "$ref" in schema else None


def _without(value: Any, paths: Mapping[Path, None], at: Path) -> Any:
    """A value without its members at some paths."""
    if isinstance(value, Mapping):
        return {name: _without(item, paths, (*at, name)) for name, item in value.items() if (*at, name) not in paths}
    if isinstance(value, list):
        return [_without(item, paths, (*at, str(place))) for place, item in enumerate(value)]
    return value
