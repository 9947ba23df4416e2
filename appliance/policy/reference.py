"""The reference of the policy language, made from the schema: Markdown for people, JSON Schema for machines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from appliance.policy import frozen
from appliance.policy.enforcement import ANY, BLOCKS, allowed_values
from appliance.policy.kinds import Duration, Kind, Size, shown
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, FieldShape, fields

_HEAD = """# Policy reference

Made by `appliance schema`; do not edit. Version {version} of the language.

A policy is an HCL file. It is data: strings, numbers, `true`, `false`, lists and blocks stand in it as they are;
expressions, references, function calls and templates are refused, and so is every unknown or repeated key. A size is
a string such as `"512MiB"` (B, KiB, MiB, GiB, TiB), a duration one such as `"250ms"` (ms, s, m, h, d). A list is a
set: its order means nothing, and nothing stands in it twice. The order of blocks means nothing either; labelled
blocks count in the order of their labels.

A field marked *later* is checked, and its meaning is fixed, but this version does not enforce it: `appliance check`
says so, and the boot refuses a policy that sets it to anything but its default.
"""


def _plain(cls: type[Block]) -> str:
    return " ".join(inspect.cleandoc(cls.__doc__ or "").split())


def _default(shape: FieldShape, kind: Kind, entry: frozen.Entry) -> str:
    """Return a default as it would be written in a policy."""
    if "required" in entry:
        return "required"
    value = frozen.value_of(entry)
    if value is None:
        return "absent"
    if isinstance(kind, Size | Duration):
        unit = next(unit for unit, size in reversed(kind.units.items()) if value % size == 0)
        return f'`"{value // kind.units[unit]}{unit}"`' if value else f'`"0{next(iter(kind.units))}"`'
    if isinstance(value, tuple):
        return f"`[{', '.join(shown(item) for item in value)}]`"
    return f"`{shown(value)}`"


def _standing(place: str, entry: frozen.Entry) -> str:
    """Say whether a field is enforced."""
    if "block" in entry:
        return "" if entry["block"] in ("required", "always") or place in BLOCKS else " *Later.*"
    if any(place.startswith(block + ".") for block in _later_blocks()):
        return ""  # said at the block
    allowed = allowed_values(place)
    if allowed is ANY:
        return ""
    return " *Later.*" if not allowed else f" *Now: {', '.join(shown(value) for value in allowed)}; others later.*"


def _later_blocks() -> list[str]:
    return [path for path, entry in frozen.table(frozen.LATEST).items()
            if entry.get("block") in ("optional", "labelled") and path not in BLOCKS]


def _section(cls: type[Block], place: str, title: str) -> Iterator[str]:
    """Yield the Markdown of a block and of those in it."""
    table = frozen.table(frozen.LATEST)
    yield f"\n{'#' * min(6, place.count('.') + 2)} {title}\n\n{_plain(cls)}\n"
    if cls.LABEL is not None:
        yield f"\nThe label: {cls.model_fields[cls.LABEL].description} It is {_label_kind(cls).allowed()}.\n"
    shapes = [s for s in fields(cls) if (f"{place}.{s.name}" if place else s.name) in table]
    rows = []
    for shape in shapes:
        where = f"{place}.{shape.name}" if place else shape.name
        text = (shape.info.description or "") + _standing(where, table[where])
        if shape.kind is not None:
            allowed = shape.kind.allowed()
            rows.append(f"| `{shape.name}` | {allowed[0].upper() + allowed[1:]} | "
                        f"{_default(shape, shape.kind, table[where])} | {text} |")
        else:
            label = ' "label"' if shape.labelled else ""
            need = {"required": "required", "always": "defaults", "optional": "absent", "labelled": "any number"}
            rows.append(f"| `{shape.name}{label} {{}}` | Block | {need[table[where]['block']]} | {text} |")
    yield "\n".join(["", "| field | allowed | default | meaning |", "|---|---|---|---|", *rows]) + "\n"
    for shape in shapes:
        if shape.block is not None:
            where = f"{place}.{shape.name}" if place else shape.name
            label = ' "label"' if shape.labelled else ""
            yield from _section(shape.block, where, f"`{where}{label}`")


def markdown() -> str:
    """Return the reference as Markdown."""
    table = "".join(_section(Policy, "", "The file"))
    return _HEAD.format(version=frozen.LATEST) + re.sub(r"\n{3,}", "\n\n", table)


def json_schema() -> dict[str, Any]:
    """Return a JSON Schema (2020-12) of a policy as values: blocks as objects, labelled blocks keyed by label."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Appliance policy",
            "$comment": f"schema version {frozen.LATEST}", **_object(Policy, "")}


def _object(cls: type[Block], place: str) -> dict[str, Any]:
    table = frozen.table(frozen.LATEST)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for shape in fields(cls):
        where = f"{place}.{shape.name}" if place else shape.name
        if where not in table:
            continue
        entry = table[where]
        if shape.kind is not None:
            schema = shape.kind.json_schema()
            if entry.get("default") is not None and not isinstance(shape.kind, Size | Duration):
                schema["default"] = entry["default"]
        elif shape.block is not None:
            schema = _object(shape.block, where)
            if shape.labelled:
                label = _label_kind(shape.block).json_schema()
                schema = {"type": "object", "additionalProperties": schema, "propertyNames": label}
        schema["description"] = shape.info.description
        properties[shape.name] = schema
        if "required" in entry or entry.get("block") == "required":
            required.append(shape.name)
    return {"type": "object", "description": _plain(cls), "properties": properties, "required": required,
            "additionalProperties": False}


def _label_kind(cls: type[Block]) -> Kind:
    return next(entry for entry in cls.model_fields[cls.LABEL or ""].metadata if isinstance(entry, Kind))

