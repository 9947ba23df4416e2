"""The fields and defaults of each schema version, frozen: `schema_1.json` and its successors.

A policy that declares `schema = 1` gets the fields and defaults of that table, whatever a later version of the code
would choose, so that an old file keeps its meaning and its digest. A table is never edited once released; a new
field, or another default, takes a new schema version. `tests/test_policy_digest.py` pins the table's bytes.

Each entry maps a field's path, without labels, to `{"required": true}`, `{"default": value}` or
`{"block": "always" | "optional" | "labelled" | "required"}`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from appliance import packaged
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, fields

VERSIONS = (1,)
LATEST = 1

Entry = dict[str, Any]


@functools.cache
def table(version: int) -> dict[str, Entry]:
    """Return the frozen table of a schema version: path to entry."""
    loaded: dict[str, Entry] = packaged.document(
        f"policy/schema_{version}.json", f"the fields of schema {version}", packaged.entries)
    return loaded


def value_of(entry: Entry) -> Any:
    """Return an entry's default as the program holds it: a list as a tuple."""
    default = entry["default"]
    return tuple(default) if isinstance(default, list) else default


def from_code(cls: type[Block] = Policy, path: str = "") -> Iterator[tuple[str, Entry]]:
    """Yield the entries that the classes of `schema/` state today: what a new version's table would hold."""
    for shape in fields(cls):
        place = f"{path}.{shape.name}" if path else shape.name
        if shape.block is not None:
            kind = ("labelled" if shape.labelled else "required" if shape.required
                    else "optional" if shape.optional else "always")
            yield place, {"block": kind}
            yield from from_code(shape.block, place)
        elif shape.required:
            yield place, {"required": True}
        else:
            default = shape.info.get_default()
            yield place, {"default": list(default) if isinstance(default, tuple) else default}
