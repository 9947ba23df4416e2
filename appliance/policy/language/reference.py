"""The reference of the policy language, made from the schema: Markdown for people."""

from __future__ import annotations

import re
from collections.abc import Iterator

from appliance.policy.enforcement import stands
from appliance.policy.hcl import literal
from appliance.policy.language import differences
from appliance.policy.language.json_schema import label_kind, meaning
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import ANY, Block, FieldShape, PerLabel, fields
from appliance.policy.schema.kinds import Kind, shown

_HEAD = """# Policy reference

Made by `appliance schema --version {version}`; do not edit. This is version {version} of the language{standing}.

A policy is an HCL file. It is data: strings, numbers, `true`, `false`, lists and blocks stand in it as they are;
expressions, references, function calls and templates are refused, and so is every unknown or repeated key. A size is
a string such as `"512MiB"` (B, KiB, MiB, GiB, TiB), a duration one such as `"250ms"` (ms, s, m, h, d). A list is a
set: its order means nothing, and nothing stands in it twice. The order of blocks means nothing either; labelled
blocks count in the order of their labels.

The last column names who enforces a field: modules and rooms of `appliance/`. A field marked *later* is checked, and
its meaning is fixed, but this version does not enforce it. If a policy sets it to anything but its default, the boot
refuses the policy, and `appliance check` says so in its first line and by exit code 3.
"""


def _default(kind: Kind, entry: frozen.Entry) -> str:
    """Return a default as it would be written in a policy."""
    if "required" in entry:
        return "required"
    if isinstance(entry["default"], dict):
        return "by label"
    text = literal.text(kind, frozen.value_of(entry))
    return "absent" if text is None else f"`{text}`"


def _enforced(shape: FieldShape, place: str, version: int) -> str:
    """Return who enforces a field, and which of its values; of a block, only whether it may stand.
    """
    if shape.block is not None:
        return "" if stands(place, version) else "*later*"
    by, allowed = shape.enforced.by or (), shape.enforced.values(place, version)
    names = ", ".join(f"`{each}`" for each in ((by,) if isinstance(by, str) else by))
    if allowed is ANY:
        return names
    return f"{names}; {', '.join(map(shown, allowed))} now, others *later*" if allowed else "*later*"


def _section(cls: type[Block], version: int, place: str, title: str, label: str | None = None) -> Iterator[str]:
    """Yield the Markdown of a block and of those in it. `label`: its name, if that is its label."""
    table = frozen.table(version)
    yield f"\n{'#' * min(6, place.count('.') + 2)} {title}\n\n{meaning(cls, label)}\n"
    if cls.LABEL is not None and label is None:
        allowed = "one of those below" if cls.LABELS else label_kind(cls).allowed()
        yield f"\nThe label: {cls.model_fields[cls.LABEL].description} It is {allowed}.\n"
    shapes = [shape.of(label) for shape in fields(cls, version)]
    rows = []
    for shape in shapes:
        where = f"{place}.{shape.name}" if place else shape.name
        new = f" *Since schema {shape.since.version}.*" if shape.since is not None else ""
        text = f"{shape.description}{new} | {_enforced(shape, where, version)}"
        if shape.kind is not None:
            allowed = "as its label says" if isinstance(shape.kind, PerLabel) else shape.kind.allowed()
            rows.append(f"| `{shape.name}` | {allowed[0].upper() + allowed[1:]} | "
                        f"{_default(shape.kind, table[where])} | {text} |")
        else:
            need = {"required": "required", "always": "defaults", "optional": "absent", "labelled": "any number",
                    "map": "defaults for each label"}
            rows.append(f"| `{_head(shape)} {{}}` | Block | {need[table[where]['block']]} | {text} |")
    head = ["", "| field | allowed | default | meaning | enforced by |", "|---|---|---|---|---|"]
    yield "\n".join([*head, *rows]) + "\n"
    for shape in shapes:
        if shape.block is not None:
            where = f"{place}.{shape.name}" if place else shape.name
            named = shape.name if shape.block.LABEL and not shape.labelled else None
            yield from _section(shape.block, version, where, f"`{where}{_head(shape)[len(shape.name):]}`", named)
            if shape.labels:
                yield _map(shape.block, version, where)


def _head(shape: FieldShape) -> str:
    """Return how a nested block begins."""
    return f'{shape.name} "label"' if shape.labelled else shape.name


def _map(cls: type[Block], version: int, place: str) -> str:
    """Return a table with what each label of a map allows, and its defaults."""
    shapes = fields(cls, version)
    entries = [frozen.table(version)[f"{place}.{shape.name}"] for shape in shapes]
    rows = ["", f"| label | allowed | {' | '.join(f'`{shape.name}`' for shape in shapes)} | meaning |",
            f"|---|---|{'---|' * len(shapes)}---|"]
    for label in entries[0]["default"]:
        kind = shapes[0].of(label).kind
        defaults = (f"`{frozen.value_of(entry, label)}`" for entry in entries)
        rows.append(f"| `{label}` | {kind.allowed() if kind else ''} | {' | '.join(defaults)} | "
                    f"{meaning(cls, label)} |")
    return "\n".join(rows) + "\n"


def markdown(version: int = frozen.LATEST) -> str:
    """Return the reference of a version as Markdown."""
    sections = "".join(_section(Policy, version, "", "The file"))
    standing = ", which is open: digests are provisional until release 0.2.0" if version in frozen.OPEN else ""
    return (_HEAD.format(version=version, standing=standing) + "".join(differences.markdown(version))
            + re.sub(r"\n{3,}", "\n\n", sections))
