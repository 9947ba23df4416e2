"""The fields of the policy, one by one: what each means, what it may be, and where it stands."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.policy.enforcement import stands
from appliance.policy.hcl import literal
from appliance.policy.language.json_schema import meaning
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, PerLabel, fields
from appliance.policy.schema.kinds import Kind

VERSION = frozen.LATEST
_BLOCKS = {"required": None, "always": "its fields' own defaults", "optional": "absent", "labelled": "none, or several",
           "map": "those of each label"}


@dataclass(frozen=True, slots=True)
class FieldEntry:
    """A field or a block by its path. `default`: None where it must be written."""

    path: str
    means: str
    block: str  # what the block around it is for
    allowed: str = ""
    default: str | None = "absent"
    enforced_by: str = ""
    since: int = 1
    within: tuple[str, ...] = ()  # of a block: its fields
    labelled: bool = False

    def example(self) -> str:
        """Return the field in its blocks, as it would stand in a policy."""
        *outer, name = self.path.split(".")
        lines = []
        for depth, each in enumerate(outer):
            label = ' "name"' if _labelled(".".join(outer[:depth + 1])) else ""
            lines.append(f"{'  ' * depth}{each}{label} {{")
        value = "…" if self.default in (None, "absent", "by label") else self.default
        body = f'{name}{" " + chr(34) + "name" + chr(34) if self.labelled else ""} {{ … }}' if self.within else (
            f"{name} = {value}")
        lines.append("  " * len(outer) + body)
        return "\n".join([*lines, *("  " * depth + "}" for depth in reversed(range(len(outer))))])


@functools.cache
def entries() -> dict[str, FieldEntry]:
    """Return all fields and blocks of the newest schema by path, in the reference's order."""
    return {each.path: each for each in _walk(Policy, "", None)}


def _labelled(path: str) -> bool:
    found = entries().get(path)
    return found is not None and found.labelled


def _walk(cls: type[Block], place: str, label: str | None) -> Iterator[FieldEntry]:
    for shape in (each.of(label) for each in fields(cls, VERSION)):
        path = f"{place}.{shape.name}" if place else shape.name
        about = meaning(cls, label) if place else ""
        if shape.block is None:
            yield _attribute(shape, path, about)
            continue
        named = shape.name if shape.block.LABEL and not shape.labelled else None
        within = tuple(each.name for each in fields(shape.block, VERSION))
        need = frozen.table(VERSION)[path]["block"]
        purpose = meaning(shape.block, named)
        yield FieldEntry(path, f"{shape.description} {purpose}" if shape.description else purpose, about, "a block",
                         _BLOCKS[need],
                         "" if stands(path, VERSION) else "later", _since(shape), within, bool(shape.labelled))
        yield from _walk(shape.block, path, named)


def _attribute(shape: FieldShape, path: str, about: str) -> FieldEntry:
    entry, kind = frozen.table(VERSION)[path], shape.kind
    by = shape.enforced.by or ()
    return FieldEntry(
        path, shape.description, about, "as its label says" if isinstance(kind, PerLabel) else
        kind.allowed() if isinstance(kind, Kind) else "", _default(kind, entry),
        ", ".join((by,) if isinstance(by, str) else by) or "later", _since(shape))


def _since(shape: FieldShape) -> int:
    return 1 if shape.since is None else shape.since.version


def _default(kind: object, entry: frozen.Entry) -> str | None:
    """Return a default as it would stand in a policy; None for a field that must be written."""
    if "required" in entry:
        return None
    if isinstance(entry["default"], dict):
        return "by label"
    return (literal.text(kind, frozen.value_of(entry)) if isinstance(kind, Kind) else None) or "absent"


def matching(name: str) -> list[FieldEntry]:
    """Return the field of a path, else all fields whose paths end in it. Labels may stand in the
    path, as in `model.demo.key`."""
    known = entries()
    if (found := known.get(name) or known.get(_without_labels(name))) is not None:
        return [found]
    return [each for path, each in known.items() if path.endswith(f".{name}")]


def _without_labels(name: str) -> str:
    """Return a path without the words that stand behind labelled blocks."""
    kept: list[str] = []
    for word in name.split("."):
        if not _labelled(".".join(kept)) or ".".join([*kept, word]) in entries():
            kept.append(word)
    return ".".join(kept)
