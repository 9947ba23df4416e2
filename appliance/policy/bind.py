"""The tree of literals to a `Policy`: unknown keys, missing fields, wrong values, each found in one
walk.

A report may end the walk at the first of them, or go on. Then a field that is wrong is left out of
its block, and `explaining/binding` adds what to do about each.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import Any

from appliance.policy.hcl.diagnostics import Report, Span
from appliance.policy.hcl.tree import Attribute, BlockNode, Body, Broken, ListNode, Literal, Node
from appliance.policy.schema import Appliance, Policy, frozen
from appliance.policy.schema.base import Block, FieldShape, every_field, fields
from appliance.policy.schema.kinds import Kind, Mismatch, Pick, SetOf

MAX_BLOCKS = 256  # labelled blocks of one type in one place

Path = tuple[str | int, ...]  # HCL names, labels, and positions in lists: ("model", "demo", "sampling")


def path_text(path: Path, version: int = frozen.LATEST, cls: type[Block] = Policy) -> str:
    """Return a path as a person reads it: `model "demo".sampling.bound "top_p".max`."""
    words: list[str] = []
    current: type[Block] | None = cls
    rest = list(path)
    while rest:
        name = rest.pop(0)
        shape = None if current is None else next((f for f in fields(current, version) if f.name == name), None)
        current = shape.block if shape else None
        text = str(name) if not isinstance(name, int) else f"[{name}]"
        if shape is not None and shape.labelled and rest:
            text += f' "{rest.pop(0)}"'
        words.append(text)
    return ".".join(words).replace(".[", "[")


@dataclass
class Binder:
    """Walks the tree along the schema."""

    report: Report
    version: int
    positions: dict[Path, Span] = field(default_factory=dict)

    @property
    def table(self) -> dict[str, frozen.Entry]:
        """The fields and defaults of the version."""
        return frozen.table(self.version)

    def block(self, cls: type[Block], body: Body, path: Path, place: str, label: str | None = None) -> Any:
        """Return an instance of `cls`; a field that is wrong is missing in it."""
        values: dict[str, Any] = {} if cls.LABEL is None or label is None else {cls.LABEL: label}
        for shape in fields(cls, self.version):
            self._field(shape.of(label), body, path, f"{place}.{shape.name}" if place else shape.name, values)
        self._other_versions(cls, values)
        self._unknown(cls, body, place)
        return _constructed(cls, values)

    def of_later_version(self, declared: Attribute) -> Policy:
        """Return a policy without any field: of a version that is unknown, nothing but that can be
        said."""
        shape = next(each for each in fields(Appliance) if each.name == "schema")
        if shape.kind is not None:
            self._value(shape.kind, declared, ("appliance", "schema"), shape, {})
        policy: Policy = _constructed(Policy, {})
        return policy

    def _other_versions(self, cls: type[Block], values: dict[str, Any]) -> None:
        """Fill in what the program reads in fields that this version lacks."""
        for shape in every_field(cls):
            if not shape.stands_in(self.version):
                with contextlib.suppress(KeyError):  # derived from a field that is wrong: missing as well
                    values[shape.attribute] = shape.reads(values)

    def _field(self, shape: FieldShape, body: Body, path: Path, where: str, values: dict[str, Any]) -> None:
        """Put one field's value into `values`, or report why there is none."""
        if shape.block is not None:
            self._nested(shape, shape.block, body, path, where, values)
            return
        attribute = body.attributes.get(shape.name)
        blocks = [block for block in body.blocks if block.type == shape.name]
        if blocks and attribute is None:
            self._error("wrong-shape", f"{shape.name} is an attribute, not a block", blocks[0].type_span,
                        (*path, shape.name), fix=f"write {shape.name} = ...")
        elif attribute is not None:
            self.positions[(*path, shape.name)] = attribute.value.span
            if shape.kind is not None:
                self._value(shape.kind, attribute, (*path, shape.name), shape, values)
        elif body.torn:
            pass  # it may have been lost: the rules that need it are skipped
        elif "required" in self.table[where]:
            self._missing(shape, path)
        else:
            values[shape.attribute] = frozen.value_of(self.table[where], shape.label)

    def _missing(self, shape: FieldShape, path: Path) -> None:
        allowed = shape.kind.allowed() if shape.kind else "a block"
        example = f"{shape.name} = ..." if shape.kind else f"{shape.name} {{ ... }}"
        inside = f" in {path_text(path, self.version)}" if path else ""
        self._error("missing", f"{shape.name} is missing{inside}", self.positions.get(path, Span(0, 1)),
                    (*path, shape.name), detail=allowed,
                    fix=f"add {example}{shape.kind.source() if shape.kind else ''}")

    def _value(self, kind: Kind, attribute: Attribute, path: Path, shape: FieldShape,
               values: dict[str, Any]) -> None:
        node = attribute.value
        if isinstance(kind, SetOf) and isinstance(node, ListNode):
            items = [self._parse(kind.item, item, (*path, index), f"an item of {shape.name}", shape)
                     for index, item in enumerate(node.items)]
            if not any(item is _NOTHING for item in items):
                try:
                    values[shape.attribute] = kind.finish(items)
                except Mismatch as refused:
                    self._refuse(refused, kind, node.span, path, shape.name)
            return
        value = self._parse(kind, node, path, shape.name, shape)
        if value is not _NOTHING:
            values[shape.attribute] = value

    def _parse(self, kind: Kind, node: Node, path: Path, name: str, shape: FieldShape) -> Any:
        """Return what a kind makes of a literal, or `_NOTHING` after a report."""
        self.positions[path] = node.span
        if isinstance(node, Broken) or self.report.full:
            return _NOTHING
        value: Any = node.value if isinstance(node, Literal) else [] if isinstance(node, ListNode) else {}
        try:
            return kind.parse(value)
        except Mismatch as refused:
            self._refuse(self.refusal(refused, kind, shape, value), kind, node.span, path, name)
            return _NOTHING

    def refusal(self, refused: Mismatch, _kind: Kind, _shape: FieldShape, _value: Any) -> Mismatch:
        """Return what is said of a value that its kind refused."""
        return refused

    def _refuse(self, refused: Mismatch, kind: Kind, span: Span, path: Path, name: str) -> None:
        self._error("secret" if refused.secret else "value", f"{name} {refused.found}", span, path,
                    detail=kind.allowed(), fix=refused.fix or "", secret=refused.secret)

    def _nested(self, shape: FieldShape, cls: type[Block], body: Body, path: Path, where: str,
                values: dict[str, Any]) -> None:
        """Bind a nested block, or several with labels."""
        nodes = [block for block in body.blocks if block.type == shape.name]
        attribute = body.attributes.get(shape.name)
        if attribute is not None and isinstance(attribute.value, Body) and not shape.labelled:
            nodes.insert(0, BlockNode(shape.name, attribute.name_span, (), attribute.value, attribute.value.span))
        if attribute is not None and not isinstance(attribute.value, Broken):
            label = ' "name"' if shape.labelled else ""
            self._error("wrong-shape", f"{shape.name} is a block, not an attribute", attribute.name_span,
                        (*path, shape.name), fix=f"write {shape.name}{label} {{ ... }}, without =")
        if attribute is not None and not nodes:
            return
        if shape.labelled:
            bound = self._labelled(shape, cls, nodes, path, where)
            values.update({} if body.torn else {shape.attribute: bound})
            return
        for extra in nodes[1:]:
            line, _ = self.report.text.line_column(nodes[0].span.start)
            self._error("duplicate", f"{shape.name} stands twice", extra.type_span, (*path, shape.name),
                        detail=f"one block; the first stands on line {line}", fix="make one of both")
        kind, own = self.table[where]["block"], None if cls.LABEL is None else shape.name
        if nodes:
            for text, span in nodes[0].labels:
                under, instead = self.labelled_later(shape)
                self._error("label", f"{shape.name} takes no label{under}", span, (*path, shape.name),
                            fix=f'delete "{text[:40]}"{instead}')
            self.positions[(*path, shape.name)] = nodes[0].type_span
            values[shape.attribute] = self.block(cls, nodes[0].body, (*path, shape.name), where, own)
        elif body.torn:
            pass  # as for an attribute
        elif kind == "required":
            self._missing(shape, path)
        else:
            values[shape.attribute] = (None if kind == "optional"
                                       else self.block(cls, Body(Span(0, 0)), (*path, shape.name), where, own))

    def labelled_later(self, _shape: FieldShape) -> tuple[str, str]:
        """Return what to add to finding and fix of a label where none may stand."""
        return "", ""

    def _labelled(self, shape: FieldShape, cls: type[Block], nodes: list[BlockNode], path: Path,
                  where: str) -> tuple[Any, ...]:
        """Bind the labelled blocks of one type, sorted by label; of a map one for each label."""
        bound: dict[str, Any] = {}
        labels = tuple(self.table[where].get("labels", ()))
        kind = Pick(labels) if labels else next(
            entry for entry in cls.model_fields[cls.LABEL or ""].metadata if isinstance(entry, Kind))
        if len(nodes) > MAX_BLOCKS:
            self._error("too-large", f"there are {len(nodes)} {shape.name} blocks", nodes[MAX_BLOCKS].type_span,
                        (*path, shape.name), detail=f"at most {MAX_BLOCKS}", fix="delete some")
        for number, node in enumerate(nodes[:MAX_BLOCKS]):
            label = self._label(kind, node, (*path, shape.name), shape)
            key = f"\uffff{number}" if label is None else label  # no label: kept apart, behind the others
            if key in bound:
                line, _ = self.report.text.line_column(self.positions[(*path, shape.name, key)].start)
                self._error("duplicate", f'{shape.name} "{key}" stands twice', node.type_span,
                            (*path, shape.name, key), detail=f"each label once; the first stands on line {line}",
                            fix="give one of them another label")
                continue
            end = node.labels[0][1].end if node.labels else node.type_span.end
            self.positions[(*path, shape.name, key)] = Span(node.type_span.start, end)
            block = self.block(cls, node.body, (*path, shape.name, key), where, label)
            if key in labels or not labels:
                bound[key] = block
        for label in set(labels) - set(bound):
            bound[label] = self.block(cls, Body(Span(0, 0)), (*path, shape.name, label), where, label)
        return tuple(bound[key] for key in sorted(bound))

    def _label(self, kind: Kind, node: BlockNode, path: Path, shape: FieldShape) -> str | None:
        """Return the one label of a block, or None after a report."""
        if len(node.labels) != 1:
            span = node.labels[1][1] if node.labels else node.type_span
            self._error("label", f"{node.type} has {len(node.labels) or 'no'} labels", span, path,
                        detail="one label", fix=f'write {node.type} "name" {{ ... }}')
            return None
        text, span = node.labels[0]
        try:
            return str(kind.parse(text))
        except Mismatch as refused:
            self._refuse(self.refusal(refused, kind, shape, text), kind, span, path, "the label")
            return None

    def _unknown(self, cls: type[Block], body: Body, place: str) -> None:
        """Report keys that the block does not have."""
        known = [shape.name for shape in fields(cls, self.version)]
        strays = [(a.name, a.name_span) for a in body.attributes.values() if a.name not in known]
        strays += [(b.type, b.type_span) for b in body.blocks if b.type not in known]
        for name, span in strays:
            if self.report.full:
                return
            words, fix = self.stray(cls, name, place)
            self._error("unknown-key", f"{name[:60]} {words}", span, (), detail=", ".join(known), fix=fix)

    def stray(self, _cls: type[Block], _name: str, place: str) -> tuple[str, str]:
        """Return what is said of a key that a block does not have, and what to do."""
        return f"is not known {f'in {place}' if place else 'at the top level'}", ""

    def _error(self, code: str, summary: str, span: Span, path: Path, **more: Any) -> None:
        self.report.error(code, summary, span, path=path_text(path, self.version), **more)


_NOTHING = object()


def _constructed(cls: type[Block], values: dict[str, Any]) -> Any:
    """Return a block of these values, by attribute; a field that has none is missing in it."""
    block = cls.model_construct(set(values))
    block.__dict__.clear()
    block.__dict__.update({name: values[name] for name in cls.model_fields if name in values})
    return block


def schema_attribute(body: Body) -> Attribute | None:
    """Return the attribute in which a file declares its schema version, in a block or in an object.
    """
    bodies = [block.body for block in body.blocks if block.type == "appliance"]
    given = body.attributes.get("appliance")
    if given is not None and isinstance(given.value, Body):
        bodies.insert(0, given.value)
    return next((inner.attributes["schema"] for inner in bodies if "schema" in inner.attributes), None)


def declared_version(body: Body) -> int | None:
    """Return the schema version that a file declares, or None where it declares none that is known.
    """
    attribute = schema_attribute(body)
    text = str(attribute.value.value) if attribute is not None and isinstance(attribute.value, Literal) else ""
    return next((version for version in frozen.VERSIONS if str(version) == text), None)


def bind(body: Body, report: Report, binder_of: type[Binder] = Binder) -> tuple[Policy, dict[Path, Span]]:
    """Return the policy, complete if nothing was reported, and where each field stands.

    A file that declares no known version is judged by the latest.
    """
    binder = binder_of(report, declared_version(body) or frozen.LATEST)
    declared = schema_attribute(body)
    if declared is not None and isinstance(declared.value, Literal) and _is_to_come(declared.value.value):
        policy = binder.of_later_version(declared)
    else:
        policy = binder.block(Policy, body, (), "")
    return policy, binder.positions


def _is_to_come(value: Any) -> bool:
    """Whether a literal is a schema version that only a newer appliance knows."""
    return type(value) is int and value > frozen.LATEST
