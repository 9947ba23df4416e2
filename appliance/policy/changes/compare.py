"""Two policies to the fields that differ between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from appliance.policy.bind import Path, path_text
from appliance.policy.changes.directions import Direction, of_block, of_field
from appliance.policy.hcl import literal
from appliance.policy.schema import Policy, Tenant, Tenants
from appliance.policy.schema.base import Block, FieldShape, fields


@dataclass(frozen=True)
class FieldChange:
    """One field, or a block that comes or goes. `before` and `after`: as a policy writes them; None
    where it is absent."""

    path: str  # with labels, as a person reads it
    place: str  # without labels
    before: str | None
    after: str | None
    direction: Direction
    meaning: str  # of the field, as the reference has it

    def as_json(self) -> dict[str, Any]:
        """Return the change for JSON output."""
        return {"path": self.path, "field": self.place, "before": self.before, "after": self.after,
                "direction": self.direction, "meaning": self.meaning}


def changes(old: Policy, new: Policy) -> list[FieldChange]:
    """Return what differs in meaning, in the order of the language."""
    return list(_between(old, new, (), ""))


def of_tenants(old: Iterable[Tenant], new: Iterable[Tenant]) -> list[FieldChange]:
    """Return what differs between two lists of tenants, as between two policies that have them."""
    shape = next(each for each in fields(Tenants) if each.block is Tenant)
    return list(_labelled(shape, old, new, ("tenants", "tenant"), "tenants.tenant"))


def _between(old: Block, new: Block, path: Path, around: str) -> Iterator[FieldChange]:
    for shape in fields(type(new)):
        before, after = getattr(old, shape.attribute), getattr(new, shape.attribute)
        place, here = f"{around}.{shape.name}" if around else shape.name, (*path, shape.name)
        if shape.labelled:
            yield from _labelled(shape, before, after, here, place)
        elif shape.block is not None and before is not None and after is not None:
            yield from _between(before, after, here, place)
        elif shape.block is not None and (before is None) != (after is None):
            yield _block(shape, here, place, comes=before is None)
        elif shape.block is None and (type(before) is not type(after) or before != after):
            yield FieldChange(path_text(here), place, _text(shape, before), _text(shape, after),
                              of_field(place, before, after), shape.description)


def _labelled(shape: FieldShape, before: Any, after: Any, path: Path, place: str) -> Iterator[FieldChange]:
    olds, news = ({getattr(each, each.LABEL): each for each in blocks} for blocks in (before, after))
    for label in sorted(olds.keys() | news.keys()):
        here = (*path, label)
        if label in olds and label in news:
            yield from _between(olds[label], news[label], here, place)
        else:
            yield _block(shape, here, place, comes=label in news)


def _block(shape: FieldShape, path: Path, place: str, *, comes: bool) -> FieldChange:
    before, after = (None, "a block") if comes else ("a block", None)
    return FieldChange(path_text(path), place, before, after, of_block(place, comes=comes), shape.description)


def _text(shape: FieldShape, value: Any) -> str | None:
    return None if shape.kind is None else literal.text(shape.kind, value)
