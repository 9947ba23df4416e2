"""The places of a policy that one field of the language has: none, one, or one for each block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.policy.bind import Path
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, FieldShape, fields


@dataclass(frozen=True)
class FieldPlace:
    """One place: its path with labels, and its value; None where nothing stands there."""

    path: Path
    value: Any
    labels: tuple[tuple[str, str], ...] = ()  # the block's field, without labels, and the label chosen there

    def beside(self, other: FieldPlace) -> bool:
        """Whether both stand in the same labelled blocks, as far as they share any."""
        mine = dict(self.labels)
        return all(mine.get(place, label) == label for place, label in other.labels)


def shape_of(field: str) -> FieldShape | None:
    """Return the field at a path of the newest schema, or None if there is none. A label of a map
    stands in the path: `tee.evidence.sev_snp.min_tcb.genoa.snp`."""
    cls: type[Block] | None = Policy
    shape, names = None, field.split(".")
    while names:
        shape = None if cls is None else next((each for each in fields(cls) if each.name == names[0]), None)
        if shape is None:
            return None
        cls, names = shape.block, names[1:]
        if shape.labels:
            if not names or names[0] not in shape.labels:
                return None
            names = names[1:]
    return shape


def places_of(policy: Policy, field: str) -> list[FieldPlace]:
    """Return the places of a field that `shape_of` knows; for a field in a block that does not
    stand, one place without a value."""
    return list(_walk(policy, field.split("."), FieldPlace((), None), ""))


def _walk(block: Block, names: list[str], here: FieldPlace, around: str) -> Iterator[FieldPlace]:
    shape = next(each for each in fields(type(block)) if each.name == names[0])
    value, rest, around = getattr(block, shape.attribute), names[1:], f"{around}.{names[0]}" if around else names[0]
    path: Path = (*here.path, shape.name)
    if shape.labels:  # the path names one of the map's blocks
        value, rest, path = next(each for each in value if _label(each) == rest[0]), rest[1:], (*path, rest[0])
    if not rest:
        yield FieldPlace(path, value, here.labels)
    elif isinstance(value, tuple) and value:
        for each in value:
            label = _label(each)
            yield from _walk(each, rest, FieldPlace((*path, label), None, (*here.labels, (around, label))), around)
    elif isinstance(value, Block):
        yield from _walk(value, rest, FieldPlace(path, None, here.labels), around)
    else:
        yield FieldPlace((*path, *rest), None, here.labels)


def _label(block: Block) -> str:
    return str(getattr(block, block.LABEL or ""))
