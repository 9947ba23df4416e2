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
from typing import Any

from appliance import packaged
from appliance.policy.schema.versions import LATEST, OPEN, VERSIONS

__all__ = ["LATEST", "OPEN", "VERSIONS", "Entry", "table", "value_of"]

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
