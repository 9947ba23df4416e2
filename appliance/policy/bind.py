"""The tree of literals to a `Policy`: unknown keys, missing fields, wrong values, each found in one walk.

A field that is wrong is left out of its block, so that the rules that need it are skipped (`rules.py`) and all others
still run: one run of `check` shows everything there is to mend.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from appliance.policy import frozen
from appliance.policy.diagnostics import Report, Span
from appliance.policy.kinds import Kind, Refused, SetOf, closest
from appliance.policy.schema import Policy
from appliance.policy.schema.base import Block, FieldShape, fields
from appliance.policy.tree import Attribute, BlockNode, Body, Broken, ListNode, Literal, Node

MAX_BLOCKS = 256  # labelled blocks of one type in one place

Path = tuple[str | int, ...]  # HCL names, labels, and positions in lists: ("model", "demo", "sampling")


def path_text(path: Path, cls: type[Block] = Policy) -> str:
    """Return a path as a person reads it: `model "demo".sampling.top_p.max`."""
    words: list[str] = []
    current: type[Block] | None = cls
    rest = list(path)
    while rest:
        name = rest.pop(0)
        shape = None if current is None else next((f for f in fields(current) if f.name == name), None)
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
    table: dict[str, frozen.Entry]
    positions: dict[Path, Span] = field(default_factory=dict)

    def block(self, cls: type[Block], body: Body, path: Path, place: str, label: str | None = None) -> Any:
        """Return an instance of `cls`; a field that is wrong is missing in it."""
        values: dict[str, Any] = {} if cls.LABEL is None or label is None else {cls.LABEL: label}
        for shape in fields(cls):
            where = f"{place}.{shape.name}" if place else shape.name
            if where in self.table:
                self._field(shape, body, path, where, values)
        self._unknown(cls, body, place)
        block = cls.model_construct(**_by_alias(cls, values))
        for attribute in cls.model_fields:
            if attribute not in values:
                block.__dict__.pop(attribute, None)
        return block

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
        elif "required" in self.table[where]:
            self._missing(shape, body, path)
        else:
            values[shape.attribute] = frozen.value_of(self.table[where])

    def _missing(self, shape: FieldShape, body: Body, path: Path) -> None:
        allowed = shape.kind.allowed() if shape.kind else "a block"
        example = f"{shape.name} = ..." if shape.kind else f"{shape.name} {{ ... }}"
        inside = f" in {path_text(path)}" if path else ""
        self._error("missing", f"{shape.name} is missing{inside}", self.positions.get(path, Span(0, 1)),
                    (*path, shape.name), detail=allowed, fix=f"add {example}")

    def _value(self, kind: Kind, attribute: Attribute, path: Path, shape: FieldShape,
               values: dict[str, Any]) -> None:
        node = attribute.value
        if isinstance(kind, SetOf) and isinstance(node, ListNode):
            items = [self._parse(kind.item, item, (*path, index), f"an item of {shape.name}")
                     for index, item in enumerate(node.items)]
            if not any(item is _NOTHING for item in items):
                try:
                    values[shape.attribute] = kind.finish(items)
                except Refused as refused:
                    self._refuse(refused, kind, node.span, path, shape.name)
            return
        value = self._parse(kind, node, path, shape.name)
        if value is not _NOTHING:
            values[shape.attribute] = value

    def _parse(self, kind: Kind, node: Node, path: Path, name: str) -> Any:
        """Return what a kind makes of a literal, or `_NOTHING` after a report."""
        self.positions[path] = node.span
        if isinstance(node, Broken) or self.report.full:
            return _NOTHING
        value: Any = node.value if isinstance(node, Literal) else [] if isinstance(node, ListNode) else {}
        try:
            return kind.parse(value)
        except Refused as refused:
            self._refuse(refused, kind, node.span, path, name)
            return _NOTHING

    def _refuse(self, refused: Refused, kind: Kind, span: Span, path: Path, name: str) -> None:
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
            values[shape.attribute] = self._labelled(shape, cls, nodes, path, where)
            return
        for extra in nodes[1:]:
            line, _ = self.report.text.line_column(nodes[0].span.start)
            self._error("duplicate", f"{shape.name} stands twice", extra.type_span, (*path, shape.name),
                        detail=f"one block; the first stands on line {line}", fix="make one of both")
        kind = self.table[where]["block"]
        if nodes:
            for text, span in nodes[0].labels:
                self._error("label", f"{shape.name} takes no label", span, (*path, shape.name),
                            fix=f'delete "{text[:40]}"')
            self.positions[(*path, shape.name)] = nodes[0].type_span
            values[shape.attribute] = self.block(cls, nodes[0].body, (*path, shape.name), where)
        elif kind == "required":
            self._missing(shape, body, path)
        else:
            values[shape.attribute] = (None if kind == "optional"
                                       else self.block(cls, Body(Span(0, 0)), (*path, shape.name), where))

    def _labelled(self, shape: FieldShape, cls: type[Block], nodes: list[BlockNode], path: Path,
                  where: str) -> tuple[Any, ...]:
        """Bind the labelled blocks of one type, sorted by label."""
        bound: dict[str, Any] = {}
        if len(nodes) > MAX_BLOCKS:
            self._error("too-large", f"there are {len(nodes)} {shape.name} blocks", nodes[MAX_BLOCKS].type_span,
                        (*path, shape.name), detail=f"at most {MAX_BLOCKS}", fix="delete some")
        for number, node in enumerate(nodes[:MAX_BLOCKS]):
            label = self._label(cls, node, (*path, shape.name))
            key = f"\uffff{number}" if label is None else label  # no label: kept apart, behind the others
            if key in bound:
                line, _ = self.report.text.line_column(self.positions[(*path, shape.name, key)].start)
                self._error("duplicate", f'{shape.name} "{key}" stands twice', node.type_span,
                            (*path, shape.name, key), detail=f"each label once; the first stands on line {line}",
                            fix="give one of them another label")
                continue
            end = node.labels[0][1].end if node.labels else node.type_span.end
            self.positions[(*path, shape.name, key)] = Span(node.type_span.start, end)
            bound[key] = self.block(cls, node.body, (*path, shape.name, key), where, label)
        return tuple(bound[key] for key in sorted(bound))

    def _label(self, cls: type[Block], node: BlockNode, path: Path) -> str | None:
        """Return the one label of a block, or None after a report."""
        if len(node.labels) != 1:
            span = node.labels[1][1] if node.labels else node.type_span
            self._error("label", f"{node.type} has {len(node.labels) or 'no'} labels", span, path,
                        detail="one label", fix=f'write {node.type} "name" {{ ... }}')
            return None
        text, span = node.labels[0]
        kind = next(entry for entry in cls.model_fields[cls.LABEL or ""].metadata if isinstance(entry, Kind))
        try:
            return str(kind.parse(text))
        except Refused as refused:
            self._refuse(refused, kind, span, path, "the label")
            return None

    def _unknown(self, cls: type[Block], body: Body, place: str) -> None:
        """Report keys that the block does not have, with the nearest that it has, or the block that has them."""
        prefix = f"{place}." if place else ""
        known = [shape.name for shape in fields(cls) if prefix + shape.name in self.table]
        strays = [(a.name, a.name_span) for a in body.attributes.values() if a.name not in known]
        strays += [(b.type, b.type_span) for b in body.blocks if b.type not in known]
        for name, span in strays:
            if self.report.full:
                return
            guess = closest(name, known)
            elsewhere = [path.rpartition(".")[0] for path in self.table if path.rpartition(".")[2] == name]
            fix = f"did you mean {guess}?" if guess else "delete it"
            if elsewhere and not guess:
                fix = f"move it to {' or '.join(sorted({e or 'the top level' for e in elsewhere})[:3])}"
            self._error("unknown-key", f"{name[:60]} is not known {'in ' + place if place else 'at the top level'}",
                        span, (), detail=", ".join(known), fix=fix)

    def _error(self, code: str, summary: str, span: Span, path: Path, **more: Any) -> None:
        self.report.error(code, summary, span, path=path_text(path), **more)


_NOTHING = object()


def _by_alias(cls: type[Block], values: dict[str, Any]) -> dict[str, Any]:
    """Key values by alias, as `model_construct` wants them."""
    return {cls.model_fields[attribute].alias or attribute: value for attribute, value in values.items()}


def declared_version(body: Body) -> int:
    """Return the schema version that a file declares, or the latest where it declares none that is known."""
    for block in body.blocks:
        if block.type == "appliance" and "schema" in block.body.attributes:
            node = block.body.attributes["schema"].value
            if isinstance(node, Literal) and type(node.value) is int and node.value in frozen.VERSIONS:
                return node.value
    return frozen.LATEST


def bind(body: Body, report: Report) -> tuple[Policy, dict[Path, Span]]:
    """Return the policy, complete if nothing was reported, and where each field stands."""
    binder = Binder(report, frozen.table(declared_version(body)))
    policy = binder.block(Policy, body, (), "")
    return policy, binder.positions
