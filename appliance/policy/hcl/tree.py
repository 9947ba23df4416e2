"""The tree of literals that a policy file is read into, each with the place where it stands."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.policy.hcl.diagnostics import Span


@dataclass(frozen=True, slots=True)
class Literal:
    """A string, number or boolean."""

    value: str | int | float | bool
    span: Span


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list of values."""

    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Broken:
    """A value that is reported already."""

    span: Span


@dataclass(frozen=True, slots=True)
class Attribute:
    """`name = value`."""

    name: str
    name_span: Span
    value: Node


@dataclass(slots=True)
class Body:
    """The content of braces (a block's, or an object's), or the whole file."""

    span: Span
    attributes: dict[str, Attribute] = field(default_factory=dict)
    blocks: list[BlockNode] = field(default_factory=list)
    torn: bool = False  # it ends with the file, unclosed: what is missing in it may have been lost


@dataclass(frozen=True, slots=True)
class BlockNode:
    """`type "label" { ... }`."""

    type: str
    type_span: Span
    labels: tuple[tuple[str, Span], ...]
    body: Body
    span: Span


Node = Literal | ListNode | Broken | Body
