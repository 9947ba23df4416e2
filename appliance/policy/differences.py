"""What differs between a version of the policy language and the one before it, from schema and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.policy import frozen, literal
from appliance.policy.kinds import Choice, Kind, SetOf, shown
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, FieldShape, every_field


@dataclass(frozen=True)
class Difference:
    """One field, as an older and a newer version have it; None where a version lacks it."""

    place: str  # its path, without labels
    older: FieldShape | None
    newer: FieldShape | None
    version: int  # the newer one

    @property
    def defaults(self) -> tuple[Any, Any]:
        """The default of each version; None of a field without one."""
        return (frozen.table(self.version - 1).get(self.place, {}).get("default"),
                frozen.table(self.version).get(self.place, {}).get("default"))

    @property
    def shape(self) -> FieldShape:
        """The field, in the newer version if this has it."""
        found = self.newer or self.older
        if found is None:
            raise ValueError(f"{self.place} is in neither version")
        return found


def between(version: int, cls: type[Block] = Policy, path: str = "") -> Iterator[Difference]:
    """Yield each field in which a version differs from the one before; of a whole block, the block alone."""
    for shape in every_field(cls):
        place = f"{path}.{shape.name}" if path else shape.name
        older, newer = (shape.at(v) if shape.stands_in(v) else None for v in (version - 1, version))
        found = Difference(place, older, newer, version)
        if older is None and newer is None:
            continue
        if older is None or newer is None or older.kind != newer.kind or older.description != newer.description or (
                len(set(map(repr, found.defaults))) > 1):
            yield found
        if older is not None and newer is not None and shape.block is not None:
            yield from between(version, shape.block, place)


def markdown(version: int) -> Iterator[str]:
    """Yield a section on what is new in a version; nothing for the first."""
    if version - 1 not in frozen.VERSIONS:
        return
    rows: dict[str, list[str]] = {}
    for found in between(version):
        rows.setdefault(_words(found), []).append(f"`{found.place}`")
    yield "\n".join([f"\n## What schema {version} changed", "",
                     f"`appliance check --upgrade FILE` writes a file of schema {version - 1} in schema {version} and "
                     "keeps its meaning.", "", "| field | difference |", "|---|---|",
                     *(f"| {', '.join(places)} | {words} |" for words, places in rows.items())]) + "\n"


def _words(found: Difference) -> str:
    """Say what a difference is."""
    old = found.version - 1
    if found.older is None:
        return f"New. {found.shape.description}"
    if found.newer is None:
        return f"Ended; {found.older.until.instead if found.older.until else 'leave it out'}."
    parts = []
    if found.older.kind != found.newer.kind and found.older.kind and found.newer.kind:
        parts.append(_allowed(found.older.kind, found.newer.kind, old))
        parts += [f"Instead, {was.instead}." for was in found.newer.former if was.until == old and was.instead]
    if repr(found.defaults[0]) != repr(found.defaults[1]) and found.newer.kind:
        before, now = (literal.text(found.newer.kind, value) for value in found.defaults)
        parts.append(f"The default is {f'`{now}`' if now else 'none'}; in schema {old}: "
                     f"{f'`{before}`' if before else 'none'}.")
    if found.older.description != found.newer.description and found.older.kind == found.newer.kind:
        parts.append(f"{found.newer.description} In schema {old}: {found.older.description}")
    return " ".join(parts)


def _allowed(older: Kind, newer: Kind, old: int) -> str:
    """Say how the allowed values of two versions differ."""
    before, now = (kind.item if isinstance(kind, SetOf) else kind for kind in (older, newer))
    if not isinstance(before, Choice) or not isinstance(now, Choice):
        return f"Allowed: {newer.allowed()}; in schema {old}: {older.allowed()}."
    new, ended = ([shown(option) for option in one.options if option not in other.options]
                  for one, other in ((now, before), (before, now)))
    return " ".join(f"{word}: {', '.join(options)}." for word, options in (("New", new), ("Ended", ended)) if options)
