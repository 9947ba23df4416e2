"""A policy as values in JSON Schema (2020-12): blocks are objects, labelled ones keyed by label."""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any

from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, fields
from appliance.policy.schema.identifiers import FreeText, Hash, HttpsUrl, IpAddress, Matching, OneOf, Path, TaggedHex
from appliance.policy.schema.kinds import Duration, Kind, Number, Order, Pick, SetOf, Size, Switch, Version, Whole
from appliance.policy.schema.patterns import MAX_LENGTH, BoundedRegex


def json_schema(version: int = frozen.LATEST) -> dict[str, Any]:
    """Return the JSON Schema of a policy in one version of the language."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Appliance policy",
            "$comment": f"schema version {version}", **_object(Policy, version, "")}


def _object(cls: type[Block], version: int, place: str, label: str | None = None) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    for shape in (each.of(label) for each in fields(cls, version)):
        where = f"{place}.{shape.name}" if place else shape.name
        entry = frozen.table(version)[where]
        if shape.kind is not None:
            schema = of_kind(shape.kind)
            default = None if "required" in entry else frozen.value_of(entry, label)
            if default is not None and not isinstance(shape.kind, Size | Duration):
                schema["default"] = list(default) if isinstance(default, tuple) else default
            if isinstance(shape.kind, Version):
                schema["enum"] = [version]
        elif shape.block is not None:
            schema = _nested(shape, shape.block, version, where)
        schema["description"] = shape.description
        properties[shape.name] = schema
        if "required" in entry or entry.get("block") == "required":
            required.append(shape.name)
    return {"type": "object", "description": meaning(cls, label), "properties": properties, "required": required,
            "additionalProperties": False}


def _nested(shape: FieldShape, cls: type[Block], version: int, place: str) -> dict[str, Any]:
    """Return the JSON Schema of a nested block, or of all with labels."""
    if shape.labels:
        return {"type": "object", "additionalProperties": False,
                "properties": {label: _object(cls, version, place, label) for label in shape.labels}}
    if not shape.labelled:
        return _object(cls, version, place, shape.name if cls.LABEL else None)
    return {"type": "object", "additionalProperties": _object(cls, version, place),
            "propertyNames": of_kind(label_kind(cls))}


def meaning(cls: type[Block], label: str | None) -> str:
    """Return what a block is for; of a map, its label: the docstring of the field of that name in
    the module."""
    if label is None:
        return " ".join(inspect.cleandoc(cls.__doc__ or "").split())
    return " ".join(_docstrings(cls.__module__)[label].split())


@functools.cache
def _docstrings(module: str) -> dict[str, str]:
    """Return the docstrings of the fields of a module's classes."""
    nodes = ast.parse(inspect.getsource(sys.modules[module])).body
    return {field.target.id: ast.literal_eval(text.value)
            for node in nodes if isinstance(node, ast.ClassDef) for field, text in itertools.pairwise(node.body)
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr)}


def label_kind(cls: type[Block]) -> Kind:
    """Return the kind of a block's label."""
    return next(entry for entry in cls.model_fields[cls.LABEL or ""].metadata if isinstance(entry, Kind))


def of_kind(kind: Kind) -> dict[str, Any]:
    """Return the JSON Schema of a kind's literals."""
    of = next(_KINDS[cls] for cls in type(kind).__mro__ if cls in _KINDS)
    return dict(of(kind))


def _text(pattern: str) -> dict[str, Any]:
    return {"type": "string", "pattern": pattern}


def _measured(kind: Size | Duration) -> dict[str, Any]:
    return _text(f"^[0-9]{{1,15}} ?({'|'.join(kind.units)})$")


def _order(kind: Order) -> dict[str, Any]:
    name = "|".join(kind.names)
    return _text(f"^({name})(;({name}))*$")


_KINDS: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    Switch: lambda _: {"type": "boolean"},
    Whole: lambda kind: {"type": "integer", "minimum": kind.low, "maximum": kind.high},
    Number: lambda kind: {"type": "number", "minimum": kind.low, "maximum": kind.high},
    Size: _measured, Duration: _measured,
    Pick: lambda kind: {"enum": list(kind.options)},
    SetOf: lambda kind: {"type": "array", "items": of_kind(kind.item), "uniqueItems": True, "minItems": kind.low,
                         "maxItems": kind.high},
    Order: _order,
    Hash: lambda kind: _text(f"^[0-9a-f]{{{kind.bits // 4}}}$"),
    TaggedHex: lambda kind: _text(f"^{kind.algorithm}:[0-9a-f]{{{2 * kind.nbytes}}}$"),
    OneOf: lambda kind: _text("|".join(str(of_kind(each)["pattern"]) for each in kind.kinds)),
    Matching: lambda kind: _text(f"^(?:{kind.pattern})$"),
    Path: lambda _: {"type": "string", "minLength": 1, "maxLength": 255},
    IpAddress: lambda _: {"type": "string", "anyOf": [{"format": "ipv4"}, {"format": "ipv6"}]},
    HttpsUrl: lambda _: _text("^https://"),
    FreeText: lambda kind: {"type": "string", "minLength": kind.low, "maxLength": kind.high},
    BoundedRegex: lambda _: {"type": "string", "minLength": 1, "maxLength": MAX_LENGTH},
}
