"""The tables of fields and defaults, as the classes of the schema state them."""

from __future__ import annotations

import json
from collections.abc import Iterator

from appliance import packaged
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, fields
from appliance.policy.schema.frozen import LATEST, OPEN, Entry


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
