"""The fields that this version enforces. A policy that sets anything else is refused at boot:
nothing is silently ignored.

Each field of `schema/` names who enforces it, and where only some of its values are. Every field
may have its default, which asks for nothing beyond what is done. An optional or labelled block may
stand where one of its fields is enforced.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import ANY, Block, FieldShape, fields

REASON = "not enforced by this version"
UNSEALED = "only a sealed model is streamed on demand, and this one has no sealed_header_sha256"
REDACTED = "this is a copy without tenants, which verifies but never boots"


@functools.cache
def places(version: int = frozen.LATEST) -> dict[str, FieldShape]:
    """Return each field and block of a version by its path, without labels."""
    return dict(_places(Policy, "", version))


def _places(cls: type[Block], around: str, version: int) -> Iterator[tuple[str, FieldShape]]:
    for shape in fields(cls, version):
        place = f"{around}.{shape.name}" if around else shape.name
        yield place, shape
        if shape.block is not None:
            yield from _places(shape.block, place, version)


@functools.cache
def stands(place: str, version: int = frozen.LATEST) -> bool:
    """Whether a block may stand: always, or because something in it is enforced."""
    return frozen.table(version)[place]["block"] in ("required", "always") or any(
        shape.enforced.values(each, version) != () for each, shape in places(version).items()
        if shape.kind is not None and each.startswith(place + "."))


def _is_enforced(shape: FieldShape, place: str, value: Any, version: int) -> bool:
    entry, allowed = frozen.table(version)[place], shape.enforced.values(place, version)
    if allowed is ANY or ("default" in entry and value == frozen.value_of(entry)):
        return True
    values = value if isinstance(value, tuple) else (value,)
    return all(any(type(v) is type(a) and v == a for a in allowed) for v in values)


def unenforced(policy: Policy) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the path of each field that asks for something this version does not enforce, with the
    reason."""
    return list(_walk(policy, (), "", policy.appliance.schema_version))


def unbootable(policy: Policy) -> list[tuple[tuple[str | int, ...], str]]:
    """Return the path of each field for which every boot of this version stops, whatever the
    machine and its files, with the reason."""
    streamed = [(("model", model.name, "streaming_decrypt"), UNSEALED) for model in policy.models
                if model.streaming_decrypt is True and model.sealed_header_sha256 is None]
    return [*unenforced(policy), *streamed]


def _walk(block: Block, path: tuple[str | int, ...], place: str,
          version: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for shape in fields(type(block), version):
        where = f"{place}.{shape.name}" if place else shape.name
        here = (*path, shape.name)
        value = getattr(block, shape.attribute)
        if shape.block is not None:
            yield from _nested(shape, value, here, where, version)
        elif not _is_enforced(shape, where, value, version):
            yield here, REDACTED if where == "tenants.commitment" else REASON


def _nested(shape: FieldShape, value: Any, here: tuple[str | int, ...], where: str,
            version: int) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if value is None:
        return
    blocks = [((*here, getattr(item, item.LABEL)), item) for item in value] if shape.labelled else [(here, value)]
    for path, block in blocks:
        if stands(where, version):
            yield from _walk(block, path, where, version)
        else:
            yield path, REASON
