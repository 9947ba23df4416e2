"""Requests by a published schema: the smallest that it accepts, and each with one optional member more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

Schema = dict[str, Any]
Path = tuple[str | int, ...]
DEPTH = 4  # objects within objects that get members


@dataclass(frozen=True)
class Variant:
    """A value without and with one optional member, whose path is `path`."""

    path: Path
    without: Any
    value: Any


class Published:
    """A document's schemas; `root` is where its references lead from."""

    def __init__(self, root: Schema) -> None:
        self._root = root

    def branches(self, schema: Schema) -> Iterator[Schema]:
        """The possible values of a schema, without references and alternatives."""
        if "$ref" in schema:
            found: Any = self._root
            for step in schema["$ref"].removeprefix("#/").split("/"):
                found = found[step]
            yield from self.branches(found)
            return
        for key in ("anyOf", "oneOf"):
            if key in schema:
                for each in schema[key]:
                    yield from self.branches(each)
                return
        if "allOf" in schema:
            merged: Schema = {"type": "object", "properties": dict(schema.get("properties", {})),
                              "required": list(schema.get("required", []))}
            for each in schema["allOf"]:
                inner = next(self.branches(each), {})
                merged["properties"] |= inner.get("properties", {})
                merged["required"] += inner.get("required", [])
                if "properties" not in inner:
                    yield inner
                    return
            yield merged
            return
        yield schema

    def example(self, schema: Schema, depth: int = 8) -> Any:
        """The smallest value of the first branch that is not null."""
        branches = [each for each in self.branches(schema) if each.get("type") != "null"]
        return self._smallest(branches[0], depth) if branches else None

    def _smallest(self, schema: Schema, depth: int) -> Any:
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return next((each for each in schema["enum"] if each is not None), None)
        kind = schema.get("type")
        kind = next((each for each in kind if each != "null"), "null") if isinstance(kind, list) else kind
        if kind == "object" or "properties" in schema:
            properties = schema.get("properties", {})
            return {name: self.example(properties[name], depth - 1) for name in schema.get("required", ())
                    if depth and name in properties}
        if kind == "array":
            return [self.example(schema.get("items", {"type": "string"}), depth - 1)] if depth else []
        number = schema.get("minimum", 1)
        return {"string": "x" * max(1, schema.get("minLength", 1)), "integer": int(max(number, 1)),
                "number": max(number, 1), "boolean": True}.get(kind, {"x": 1})

    def variants(self, schema: Schema, path: Path = (), depth: int = DEPTH) -> Iterator[Variant]:
        """Each branch's smallest value, with one optional member more, at every depth."""
        for branch in self.branches(schema):
            if branch.get("type") == "array" and depth:
                for each in self.variants(branch.get("items", {}), (*path, 0), depth):
                    yield Variant(each.path, [each.without], [each.value])
            elif "properties" in branch and depth:
                yield from self._members(branch, path, depth)

    def _members(self, branch: Schema, path: Path, depth: int) -> Iterator[Variant]:
        base = self._smallest(branch, 8)
        for name, inner in branch["properties"].items():
            here = (*path, name)
            if name not in base:
                yield Variant(here, base, {**base, name: self.example(inner)})
            for each in self.variants(inner, here, depth - 1):
                yield Variant(each.path, {**base, name: each.without}, {**base, name: each.value})
