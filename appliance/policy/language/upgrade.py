"""An old policy file in the newest schema version: same meaning, same comments, same layout.

A file is changed at as few places as can be: the number of its version, and a line for each field
that it leaves to a default and whose default is another one now. A block that has become one of a
map keeps its place and gets the map's name before its own, which is the label. Fields of platforms
that the policy does not accept are not written. Where HashiCorp's parser would refuse the layout,
lines are broken. A field that ended with its version is left to a person: it becomes a decision,
and no text is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from appliance.platforms import PLATFORMS
from appliance.policy.bind import Path, path_text, schema_attribute
from appliance.policy.explaining.checking import CheckResult, check_bytes
from appliance.policy.explaining.parser import parse_text
from appliance.policy.hcl import literal
from appliance.policy.hcl.diagnostics import Diagnostic, InvalidPolicyError, Span
from appliance.policy.hcl.layout import Edit, appended, edited, spread
from appliance.policy.hcl.parser import decode
from appliance.policy.hcl.tree import Body
from appliance.policy.schema import Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, every_field, fields


class Meaning(NamedTuple):
    """A field of the file that means something else in the new version."""

    path: str
    now: str


class KeptDefault(NamedTuple):
    """A line that an upgrade writes, so that a field keeps the value that its old version gave it.
    """

    path: str
    value: str  # as it stands in the file
    default: str | None  # of the new version; None: absent


@dataclass(frozen=True)
class UpgradeResult:
    """The outcome of an upgrade."""

    before: CheckResult
    data: bytes | None  # the new file; None where something must be decided first
    after: CheckResult
    kept: tuple[KeptDefault, ...] = ()
    meanings: tuple[Meaning, ...] = ()
    decisions: tuple[Diagnostic, ...] = ()  # findings that the file would have in the new version, at their old places

    @property
    def version(self) -> int:
        """The schema version of the file before."""
        return self.before.version or frozen.LATEST


def upgrade(data: bytes, filename: str = "policy.hcl") -> UpgradeResult:
    """Return a policy file in the latest schema version; raise `InvalidPolicyError` for one that is
    not valid.

    A file may use fields of a later version than it declares, if that is all that is wrong with it.
    So may it have blocks of what is a map now, as open versions once had them.
    """
    given = check_bytes(data, filename)
    data = _with_maps(data, given)
    before = check_bytes(data, filename)
    bound = before if before.valid else check_bytes(_without_newer(data, before), filename)
    if bound.policy is None or bound.version is None:
        raise InvalidPolicyError(before.diagnostics)  # with what is wrong within a block that a map has now
    done = UpgradeResult(given, data, bound)
    for version in range(bound.version, frozen.LATEST):
        if done.data is None or done.after.policy is None:
            break
        done = _one_version(done, done.data, done.after.policy, version, filename)
    return done


def _without_newer(data: bytes, checked: CheckResult) -> bytes:
    """Return a file with blanks in place of the fields that only later versions have; each place
    stays the same."""
    if checked.version is None:
        return data
    text = checked.positions.text.text
    return edited(data, [Edit(*span, re.sub(r"[^\n]", " ", text[span.start:span.end]))
                         for span in _newer(parse_text(text), Policy, checked.version)])


def _with_maps(data: bytes, checked: CheckResult) -> bytes:
    """Return a file with each block that its version does not know, and whose name is a label of a
    map, as the map's."""
    if checked.valid or checked.version is None:
        return data
    body = parse_text(checked.positions.text.text)
    return edited(data, _mapped(body, Policy, checked.version))


def _mapped(body: Body, cls: type[Block], version: int) -> Iterator[Edit]:
    """Yield the edits that put blocks into maps, where a version does not have them as they are."""
    known = {shape.name: shape.block for shape in fields(cls, version)}
    maps = {label: shape.name for shape in every_field(cls) for label in shape.labels}
    for block in body.blocks:
        inner = known.get(block.type)
        if inner is not None:
            yield from _mapped(block.body, inner, version)
        elif block.type in maps and not block.labels:
            yield Edit(*block.type_span, f'{maps[block.type]} "{block.type}"')


def _newer(body: Body, cls: type[Block], version: int) -> Iterator[Span]:
    """Yield where the fields of later versions stand in a block and in those in it."""
    known = {shape.name: shape.block for shape in fields(cls, version)}
    later = {shape.name for shape in every_field(cls) if shape.since and shape.since.version > version} - set(known)
    yield from (Span(each.name_span.start, each.value.span.end) for each in body.attributes.values()
                if each.name in later)
    for block in body.blocks:
        inner = known.get(block.type)
        if block.type in later:
            yield block.span
        elif inner is not None:
            yield from _newer(block.body, inner, version)


def _one_version(done: UpgradeResult, data: bytes, policy: Policy, version: int, filename: str) -> UpgradeResult:
    """Go from one version to the next."""
    text = decode(data)[0]
    body = parse_text(text)
    declared = schema_attribute(body)
    if declared is None:
        raise ValueError("a valid policy declares its version")
    renumbered = Edit(*declared.value.span, str(version + 1))
    walk = _Walk(text, version + 1, _idle_rooms(policy))
    walk.top(policy, body)
    walk.edits += _mapped(body, Policy, version + 1)
    probe = check_bytes(edited(data, [renumbered]), filename)
    after = check_bytes(new := edited(data, [renumbered, *walk.edits]), filename)
    decisions = _decisions(probe, after)
    if after.policy is not None and not decisions:
        written = after.positions.text.text
        after = check_bytes(new := edited(new, spread(written, parse_text(written))), filename)
    if after.policy is not None and not decisions:
        decisions = tuple(_differing(policy, after.policy, version + 1, done.after, after, walk.idle))
    if decisions:
        return UpgradeResult(done.before, None, done.before, decisions=decisions)
    return UpgradeResult(done.before, new, after, (*done.kept, *walk.kept), (*done.meanings, *walk.meanings))


def _decisions(probe: CheckResult, after: CheckResult) -> tuple[Diagnostic, ...]:
    """Return the errors of the new file, where they stand in the old one if they are there too."""
    errors = [found for found in after.diagnostics if found.severity == "error"]
    known = {(found.code, found.path, found.summary) for found in errors}
    there = tuple(found for found in probe.diagnostics if (found.code, found.path, found.summary) in known)
    return there or tuple(errors)


@dataclass
class _Walk:
    """Finds the fields that a file leaves to a default which is another one in the new version."""

    text: str
    version: int  # the new one
    idle: frozenset[str] = frozenset()  # see `_idle_rooms`
    edits: list[Edit] = field(default_factory=list)
    kept: list[KeptDefault] = field(default_factory=list)
    meanings: list[Meaning] = field(default_factory=list)

    def top(self, policy: Policy, body: Body) -> None:
        """Walk the whole file."""
        if lines := self._block(policy, body, (), ""):
            self.edits.append(appended(self.text, body, lines))

    def _block(self, block: Block, body: Body | None, path: Path, place: str) -> list[str]:
        """Return the lines to add to a block; those of blocks in it that stand in the file become
        edits."""
        lines: list[str] = []
        label = getattr(block, block.LABEL or "", None)
        for shape in fields(type(block), self.version):
            where = f"{place}.{shape.name}" if place else shape.name
            here = (*path, shape.name)
            value = getattr(block, shape.attribute)
            idle = _is_idle(shape, self.idle)
            if shape.block is None:
                lines += [] if idle else self._field(shape.of(label), value, body, here, where)
            elif shape.labels:
                for item in value:
                    lines += self._of_map(shape.name, item, body, here, where)
            elif shape.labelled and not shape.stands_in(self.version - 1):
                labels = [getattr(item, item.LABEL) for item in value]
                self._labelled_now(shape.name, labels[:1] if idle else labels, body)
            elif shape.labelled:
                for item in value:
                    label = getattr(item, item.LABEL)
                    self._nested(item, _named(body, shape.name, label), (*here, label), where)
            elif value is not None and shape.stands_in(self.version - 1):
                lines += _wrapped(shape.name, self._nested(value, _named(body, shape.name), here, where))
        return lines

    def _of_map(self, name: str, block: Block, body: Body | None, path: Path, place: str) -> list[str]:
        """Add to a block of a map, which may have stood alone; return its lines if it does not
        stand in the file."""
        label = getattr(block, block.LABEL or "")
        there = _named(body, name, label) or _named(body, label)
        return _wrapped(f'{name} "{label}"', self._nested(block, there, (*path, label), place))

    def _labelled_now(self, name: str, labels: list[str], body: Body | None) -> None:
        """Write a block that stood alone once for each label, the comments in it included."""
        block = next((each for each in (body.blocks if body else ()) if each.type == name), None)
        if block is None or not labels:
            return
        start = self.text.rfind("\n", 0, block.type_span.start) + 1
        before, rest = self.text[start:block.type_span.start], self.text[block.type_span.end:block.span.end]
        outer = before[:len(before) - len(before.lstrip(" \t"))]
        self.edits.append(Edit(block.type_span.end, block.type_span.end, f' "{labels[0]}"'))
        more = "".join(f'\n{outer}{name} "{label}"{rest}' for label in labels[1:])
        self.edits.append(Edit(block.span.end, block.span.end, more))

    def _nested(self, block: Block, body: Body | None, path: Path, place: str) -> list[str]:
        """Add to a nested block; return the lines that it would have if it does not stand in the
        file."""
        lines = self._block(block, body, path, place)
        if body is None or not lines:
            return lines
        self.edits.append(appended(self.text, body, lines))
        return []

    def _field(self, shape: FieldShape, value: Any, body: Body | None, path: Path, place: str) -> Iterator[str]:
        """Yield the line that keeps the value of a field which the file leaves to its default."""
        entry = frozen.table(self.version)[place]
        if body is not None and shape.name in body.attributes:
            before = shape.at(self.version - 1)
            if before.kind == shape.kind and before.description != shape.description:
                self.meanings.append(Meaning(path_text(path, self.version), shape.description))
            return
        if "default" not in entry or shape.kind is None:
            return
        default = frozen.value_of(entry, shape.label)
        value = _meant(shape, value, self.version)
        text = literal.text(shape.kind, value)
        if value != default and text is not None:
            self.kept.append(KeptDefault(path_text(path, self.version), text, literal.text(shape.kind, default)))
            yield f"{shape.name} = {text}"


def _idle_rooms(policy: Policy) -> frozenset[str]:
    """Return the rooms of `attestation` that judge platforms which a policy does not accept."""
    return frozenset(each.folder for each in PLATFORMS if each.name not in policy.tee.platforms)


def _is_idle(shape: FieldShape, rooms: frozenset[str]) -> bool:
    """Whether a field, or all of a block, is carried out by these rooms alone."""
    if shape.block is not None:
        return all(_is_idle(each, rooms) for each in every_field(shape.block))
    by = (shape.enforced.by,) if isinstance(shape.enforced.by, str) else shape.enforced.by or ()
    return bool(by) and all(f"{each}//".split("/")[1] in rooms and each.startswith("attestation/") for each in by)


def _meant(shape: FieldShape, value: Any, version: int) -> Any:
    """Return the value that means in a version what the program read in the one before."""
    return shape.since.kept(value) if shape.since is not None and shape.since.version == version else value


def _named(body: Body | None, name: str, label: str | None = None) -> Body | None:
    """Return the block of a name, and of a label where it has one, in a body; None where none
    stands."""
    return next((block.body for block in (body.blocks if body else ())
                 if block.type == name and (label is None or block.labels[0][0] == label)), None)


def _wrapped(name: str, lines: list[str]) -> list[str]:
    """Return the lines of a block that does not stand in the file yet."""
    return [f"{name} {{", *(f"  {line}" for line in lines), "}"] if lines else []


def _differing(old: Block, new: Block, version: int, before: CheckResult, after: CheckResult, idle: frozenset[str],
               path: Path = ()) -> Iterator[Diagnostic]:
    """Yield a finding for each field whose meaning the new file does not keep: a default that
    cannot be written."""
    for shape in every_field(type(old)):
        here = (*path, shape.name)
        if not shape.stands_in(version) or here == ("appliance", "schema") or _is_idle(shape, idle):
            continue
        is_new = shape.since is not None and shape.since.version == version
        if is_new and here in after.positions.spans:
            continue  # the file uses it already
        meant, now = _meant(shape, getattr(old, shape.attribute), version), getattr(new, shape.attribute)
        if isinstance(meant, Block) and isinstance(now, Block):
            yield from _differing(meant, now, version, before, after, idle, here)
        elif shape.labelled and len(meant) == len(now):
            for one, other in zip(meant, now, strict=True):
                label = getattr(one, one.LABEL)
                if is_new and shape.labels and (*here, label) in after.positions.spans and (
                        (*path, label) not in before.positions.spans):
                    continue  # the same
                yield from _differing(one, other, version, before, after, idle, (*here, label))
        elif meant != now:
            yield _cannot_keep(path_text(here, version), version, after, here)


def _cannot_keep(name: str, version: int, after: CheckResult, path: Path) -> Diagnostic:
    position = after.positions.of(path)
    return Diagnostic("error", "upgrade", f"{name} means something else in schema {version}",
                      after.positions.text.filename, *position, path=name,
                      fix=f"write it as schema {version} has it (`appliance schema`)")
