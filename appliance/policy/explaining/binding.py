"""The tree of literals to a `Policy`, with what to do about each mistake: the nearest name, and the
version of the language that has it."""

from __future__ import annotations

import contextlib
from typing import Any

from appliance.policy.bind import Binder
from appliance.policy.explaining.fixes import better, closest
from appliance.policy.schema import frozen
from appliance.policy.schema.base import Block, FieldShape, every_field, fields
from appliance.policy.schema.kinds import Kind, Mismatch, SetOf, shown

_UPGRADE = "`appliance check --upgrade FILE` does"


class ExplainingBinder(Binder):
    """Says of each mistake what to do."""

    def refusal(self, refused: Mismatch, kind: Kind, shape: FieldShape, value: Any) -> Mismatch:
        """Return the refusal of a value, with the version that allows it, or with a fix for it."""
        other = None if refused.secret else self._of_version(shape, value)
        return other or better(refused, kind, value)

    def _of_version(self, shape: FieldShape, value: Any) -> Mismatch | None:
        """Return the refusal of a value that another version allows, or None where none does."""
        for was in reversed(shape.former):
            if self.version > was.until and was.kind is not None and _allows(was.kind, value):
                return Mismatch(f"is {shown(value)}, which ended with schema {was.until}", was.instead)
        if shape.former and self.version <= shape.former[-1].until and shape.newest is not None and _allows(
                shape.newest, value):
            newer = shape.former[-1].until + 1
            return Mismatch(f"is {shown(value)}, which schema {newer} allows",
                           f"write schema = {newer}, or another value")
        return None

    def labelled_later(self, shape: FieldShape) -> tuple[str, str]:
        """Return what to add to finding and fix where a later version has labelled blocks of a
        name."""
        for each in every_field(shape.owner):
            if each.name == shape.name and each.labelled and each.since and self.version < each.since.version:
                return f" in schema {self.version}", f", or write schema = {each.since.version}"
        return "", ""

    def stray(self, cls: type[Block], name: str, place: str) -> tuple[str, str]:
        """Return what is said of a key that a block does not have: which version has it, or which
        key or block was meant."""
        known = [shape.name for shape in fields(cls, self.version)]
        return self._of_other_version(cls, name) or (super().stray(cls, name, place)[0],
                                                     self._advice(cls, name, known))

    def _of_other_version(self, cls: type[Block], name: str) -> tuple[str, str] | None:
        """Return what to say of a key that the block has in another version, and what to do."""
        for shape in every_field(cls):
            if shape.name == name and shape.until is not None and shape.until.version < self.version:
                return f"ended with schema {shape.until.version}", shape.until.instead
            if shape.name == name and shape.since is not None and self.version < shape.since.version:
                return f"is a field of schema {shape.since.version}", _newer(shape.since.version)
            if name in shape.labels:
                return f"is a label of {shape.name}", f'write {shape.name} "{name}" {{ ... }} ({_UPGRADE})'
        return None

    def _advice(self, cls: type[Block], name: str, known: list[str]) -> str:
        """Return what to do about a key that no version has here: the nearest key, or the block
        that has it."""
        newer = {s.name: s.since.version for s in every_field(cls) if s.since and self.version < s.since.version}
        if guess := closest(name, [*known, *newer]):
            return f"did you mean {guess}?" + (f" It is a field of schema {newer[guess]}" if guess in newer else "")
        for version in (self.version, frozen.LATEST):
            elsewhere = {path.rpartition(".")[0] or "the top level" for path in frozen.table(version)
                         if path.rpartition(".")[2] == name}
            if elsewhere:
                of = "" if version == self.version else f" of schema {version}"
                return f"move it to {' or '.join(sorted(elsewhere)[:3])}{of}"
        return "delete it"


def _allows(kind: Kind, value: Any) -> bool:
    """Whether a kind, or the items of its list, takes a literal."""
    for each in (kind, kind.item if isinstance(kind, SetOf) else kind):
        with contextlib.suppress(Mismatch):
            each.parse(value)
            return True
    return False


def _newer(version: int) -> str:
    """Return what to do in a file that uses something of a newer version."""
    return f"write schema = {version} ({_UPGRADE}), or leave this out"
