"""The common parts of every block of the policy schema.

A block of the language is a frozen pydantic model. The docstring of the class and the descriptions
of its fields are the reference manual (`appliance schema` prints them). Conventions that the rest
of the package reads:

- the HCL name of a field is its alias where it has one (`schema_version` is written `schema`), else
  its name;
- sizes end in `_bytes` and durations in `_ms` in Python, never in HCL;
- a field whose type is a block, or a tuple of blocks, is a nested block in HCL. A tuple means
  labelled blocks; they are kept sorted by label, so that their order in the file means nothing;
- where a block class has `LABELS`, its tuple is a map: one block for each of these labels, whether
  or not it stands in the file. Its fields are `PerLabel`. Where a field's type is such a class
  without a tuple, the field's own name is the label;
- a list is a set: sorted, nothing twice;
- `Annotated` says what a value may be, `Field` all else: who enforces it, and, by a marker of
  `versions`, how it is not alike in every version of the language.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final

import pydantic
from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

from appliance.policy.schema.kinds import Kind, Number
from appliance.policy.schema.versions import LATEST, Since, Until, Was

Enforcers = str | tuple[str, ...]  # modules or rooms of this package, as paths: "service/admission/limits"
LATER: Final = ()  # nothing carries the field out yet: the boot refuses a policy that asks for it
ANY: Final[Any] = object()  # whatever the value


@dataclass(frozen=True)
class Enforcement:
    """The part of the program that carries out a field."""

    by: Enforcers | None = None  # None: as the block has it
    only: Mapping[str, Any] | None = None  # where the block stands in several places: of each, values, or `ANY`
    since: int = 1  # the first version of the language under which it is carried out

    def values(self, place: str, version: int = LATEST) -> Any:
        """Return the values that are carried out at one of the field's places: `ANY`, or a tuple,
        perhaps empty."""
        if not self.by or version < self.since:
            return ()
        return ANY if self.only is None else self.only.get(place, ())


@dataclass(frozen=True)
class PerLabel(Number):
    """A number whose bounds depend on the label of its block; `low` and `high` are of any label.
    The field's default is an object, with one for each label."""

    kinds: Mapping[str, Kind]


def Field(*, description: str, enforced_by: Enforcers | None = None,  # noqa: N802 - stands where pydantic's would
          only: Mapping[str, Any] | None = None, enforced_since: int = 1, since: Since | None = None,
          until: Until | None = None, was: Was | None = None, **pydantics: Any) -> Any:
    """Define a field of a block, as `pydantic.Field` does, and keep beside it what only this
    language asks.

    `enforced_by` and `enforced_since`: see `Enforcement`; a field without the former has the
    block's own `ENFORCED_BY`. `since`, `until`, `was`: see `versions`.
    """
    info = pydantic.Field(description=description, **pydantics)
    info.metadata += [each for each in (Enforcement(enforced_by, only, enforced_since), since, until, was)
                      if each is not None]
    return info


class Block(BaseModel):
    """Base of all blocks: frozen, no unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    ENFORCED_BY: ClassVar[Enforcers | None] = None  # who carries out those fields that do not name anyone themselves
    LABEL: ClassVar[str | None] = None  # the field that the block's label fills, where it has a label
    LABELS: ClassVar[tuple[str, ...]] = ()  # of a map: each has a block


@dataclass(frozen=True)
class FieldShape:
    """How one field is written in HCL, in one version of the language."""

    attribute: str  # the name in Python
    name: str  # the name in HCL
    kind: Kind | None  # for a plain value
    block: type[Block] | None  # for a nested block
    labelled: bool  # blocks with labels, any number of them
    required: bool
    optional: bool  # may be absent, and is None then
    info: FieldInfo
    description: str
    since: Since | None
    until: Until | None
    former: tuple[Was, ...]  # what older versions had, the oldest first
    newest: Kind | None  # the kind in the latest version
    owner: type[Block]  # the class that has the field
    enforced: Enforcement
    label: str | None = None  # of the block, where the field depends on it

    def stands_in(self, version: int) -> bool:
        """Whether a version has this field."""
        return ((self.since is None or self.since.version <= version)
                and (self.until is None or version <= self.until.version))

    def of(self, label: str | None) -> FieldShape:
        """Return the field as the block of a label has it."""
        if label is None or not isinstance(self.kind, PerLabel):
            return self
        return replace(self, kind=self.kind.kinds[label], label=label)

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of a map; none where the field is not a map."""
        return self.block.LABELS if self.block is not None and self.labelled else ()

    def at(self, version: int) -> FieldShape:
        """Return the field as a version has it."""
        shape = self
        for was in (each for each in reversed(self.former) if version <= each.until):
            shape = replace(shape, kind=was.kind or shape.kind, description=was.description or shape.description)
        return shape

    def reads(self, others: Mapping[str, Any]) -> Any:
        """Return the attribute's value in a block of a version that lacks the field."""
        if self.since is not None:
            return self.since.value(others)
        return None if self.until is None else self.until.reads


def _block_of(annotation: Any) -> tuple[type[Block] | None, bool]:
    """Return the block class in an annotation, and whether it stands in a tuple."""
    if isinstance(annotation, type) and issubclass(annotation, Block):
        return annotation, False
    origin = typing.get_origin(annotation)
    arguments = [a for a in typing.get_args(annotation) if a not in (type(None), ...)]
    if origin in (types.UnionType, typing.Union) and len(arguments) == 1:
        return _block_of(arguments[0])
    if origin is tuple and arguments:
        block, _ = _block_of(arguments[0])
        return block, block is not None
    return None, False


@functools.cache
def every_field(cls: type[Block]) -> tuple[FieldShape, ...]:
    """Return the fields that any version of the language has, as the latest describes them.

    They are in the order of the class, without the field that the label fills.
    """
    return tuple(_fields(cls))


@functools.cache
def fields(cls: type[Block], version: int = LATEST) -> tuple[FieldShape, ...]:
    """Return the fields of a block class in one version, in their order, without the one that the
    label fills."""
    return tuple(shape.at(version) for shape in every_field(cls) if shape.stands_in(version))


def _fields(cls: type[Block]) -> Iterator[FieldShape]:
    for attribute, info in cls.model_fields.items():
        if attribute == cls.LABEL:
            continue
        block, labelled = _block_of(info.annotation)
        kind = next((entry for entry in info.metadata if isinstance(entry, Kind)), None)
        if (kind is None) == (block is None):
            raise TypeError(f"{cls.__name__}.{attribute} must have either a kind or a block type")
        optional = type(None) in typing.get_args(info.annotation)
        former = sorted((entry for entry in info.metadata if isinstance(entry, Was)), key=lambda was: was.until)
        yield FieldShape(
            attribute, info.alias or attribute, kind, block, labelled, info.is_required(), optional, info,
            info.description or "",
            next((entry for entry in info.metadata if isinstance(entry, Since)), None),
            next((entry for entry in info.metadata if isinstance(entry, Until)), None), tuple(former), kind, cls,
            _enforced(cls, info))


def _enforced(cls: type[Block], info: FieldInfo) -> Enforcement:
    own = next((entry for entry in info.metadata if isinstance(entry, Enforcement)), Enforcement())
    return own if own.by is not None else replace(own, by=cls.ENFORCED_BY)
