"""The fields and defaults of each schema version, frozen: `schema_1.json` and its successors.

A policy that declares `schema = 1` gets the fields and defaults of that table, whatever a later
version of the code would choose, so that an old file keeps its meaning and its digest. A table is
never edited once released; a new field, or another default, takes a new schema version.
`tests/policy/test_policy_digest.py` pins the bytes of a released table.

The table of an open version is what the classes of `schema/` state: `make reference` writes it
again after a class has changed, and a test compares both.

Each entry maps a field's path, without labels, to `{"required": true}`, `{"default": value}` or
`{"block": "always" | "optional" | "labelled" | "required"}`. A map is `{"block": "map", "labels":
[...]}`, and the default of a field in it is an object by label.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from typing import Any

from appliance import packaged
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, fields
from appliance.policy.schema.versions import LATEST, OPEN, VERSIONS

__all__ = ["LATEST", "OPEN", "VERSIONS", "Entry", "from_code", "table", "text_of", "value_of"]

Entry = dict[str, Any]


@functools.cache
def table(version: int) -> dict[str, Entry]:
    """Return the frozen table of a schema version: path to entry."""
    loaded: dict[str, Entry] = packaged.document(
        f"policy/schema/schema_{version}.json", f"the fields of schema {version}", packaged.entries)
    return loaded


def value_of(entry: Entry, label: str | None = None) -> Any:
    """Return an entry's default as the program holds it: a list as a tuple. `label`: of the block.
    """
    default = entry["default"]
    return tuple(default) if isinstance(default, list) else default.get(label) if isinstance(default, dict) else default


def from_code(version: int = LATEST, cls: type[Block] = Policy, path: str = "",
              label: str | None = None) -> Iterator[tuple[str, Entry]]:
    """Yield the entries that the classes of `schema/` state for a version; older versions had
    defaults of their own. `label`: that of a map's block which stands alone."""
    for shape in fields(cls, version):
        place = f"{path}.{shape.name}" if path else shape.name
        if shape.block is not None:
            kind = ("map" if shape.labels else "labelled" if shape.labelled else "required" if shape.required
                    else "optional" if shape.optional else "always")
            yield place, {"block": kind, "labels": list(shape.labels)} if shape.labels else {"block": kind}
            yield from from_code(version, shape.block, place, None if shape.labelled else shape.name)
        elif shape.required:
            yield place, {"required": True}
        else:
            default = shape.info.get_default()
            default = default[label] if label is not None and isinstance(default, dict) else default
            yield place, {"default": list(default) if isinstance(default, tuple) else default}


def text_of(version: int) -> str:
    """Return the text of a version's table, one line for each field; an open version's is what the
    classes state."""
    if version not in OPEN:
        return (packaged.ROOT / f"policy/schema/schema_{version}.json").read_text(encoding="utf-8")
    lines = (f"  {json.dumps(place)}: {json.dumps(entry)}" for place, entry in from_code(version))
    return "{\n" + ",\n".join(lines) + "\n}\n"
