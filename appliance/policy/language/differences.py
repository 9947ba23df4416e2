"""The differences between a version of the policy language and the one before it, from schema and
tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from appliance.policy.hcl import literal
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, every_field, fields
from appliance.policy.schema.kinds import Kind, Pick, SetOf, shown


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
    def reshaped(self) -> bool:
        """Whether the name is another field in each version."""
        return self.older is not None and self.newer is not None and self.older.attribute != self.newer.attribute

    @property
    def shape(self) -> FieldShape:
        """The field, in the newer version if this has it."""
        found = self.newer or self.older
        if found is None:
            raise ValueError(f"{self.place} is in neither version")
        return found


def between(version: int, cls: type[Block] = Policy, path: str = "") -> Iterator[Difference]:
    """Yield each field in which a version differs from the one before; of a whole block, the block
    alone."""
    olds, news = ({shape.name: shape for shape in fields(cls, v)} for v in (version - 1, version))
    for name in dict.fromkeys(shape.name for shape in every_field(cls)):
        older, newer = olds.get(name), news.get(name)
        if older is None and newer is None:
            continue
        found = Difference(f"{path}.{name}" if path else name, older, newer, version)
        if older is None or newer is None or found.reshaped or older.kind != newer.kind or (
                older.description != newer.description or repr(found.defaults[0]) != repr(found.defaults[1])):
            yield found
        elif newer.block is not None:
            yield from between(version, newer.block, found.place)


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
    if found.reshaped:
        return (f"Another form. {found.newer.description} In schema {old}: {found.older.description} "
                f"{_sentence(found.older.until.instead if found.older.until else 'Write it anew')}")
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


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _allowed(older: Kind, newer: Kind, old: int) -> str:
    """Say how the allowed values of two versions differ."""
    before, now = (kind.item if isinstance(kind, SetOf) else kind for kind in (older, newer))
    if not isinstance(before, Pick) or not isinstance(now, Pick):
        return f"Allowed: {newer.allowed()}; in schema {old}: {older.allowed()}."
    new, ended = ([shown(option) for option in one.options if option not in other.options]
                  for one, other in ((now, before), (before, now)))
    return " ".join(f"{word}: {', '.join(options)}." for word, options in (("New", new), ("Ended", ended)) if options)
