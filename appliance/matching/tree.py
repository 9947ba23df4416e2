"""A parsed pattern as nodes: what the parser of `re` read, without what makes no difference to
where matches end."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

from appliance.matching.characters import Ranges, members
from appliance.policy.schema.patterns import ways

_TYPES = re.ASCII | re.UNICODE | re.LOCALE


@dataclass(frozen=True, eq=False)
class Characters:
    """One character of a class."""

    ranges: Ranges
    width = 1


@dataclass(frozen=True, eq=False)
class Assertion:
    """A place between characters."""

    kind: Any  # a constant AT_*
    ascii_only: bool
    lines: bool  # whether ^ and $ count lines

    @property
    def width(self) -> int | None:
        """0; None for `$`, whose answer may change when more text comes."""
        return None if self.kind is _constants.AT_END and not self.lines else 0


@dataclass(frozen=True, eq=False)
class Row:
    """Nodes one after the other."""

    items: tuple[Node, ...]
    width: int | None


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Alternatives, the earlier the better."""

    items: tuple[Node, ...]
    width: int | None


@dataclass(frozen=True, eq=False)
class Repeat:
    """A node several times: as often as possible, or (`lazy`) as rarely."""

    body: Node
    low: int
    high: int
    lazy: bool
    single: bool  # whether the body matches in one way at most, wherever it begins

    @property
    def width(self) -> int | None:
        """Characters, where their number is fixed."""
        return self.low * self.body.width if self.low == self.high and self.body.width is not None else None


Node = Characters | Assertion | Row | Alternatives | Repeat
"""`width`: characters of every match, None where they differ."""


def row(items: Sequence[Node]) -> Node:
    """Return nodes in a row as one; those of fixed width that follow each other are a node of fixed
    width."""
    parts: list[Node] = []
    for item in items:
        if isinstance(item, Row):
            parts += item.items
        else:
            parts.append(item)
    joined: list[Node] = []
    fixed: list[Node] = []
    for part in [*parts, None]:
        if part is not None and part.width is not None:
            fixed.append(part)
            continue
        if fixed:
            joined.append(fixed[0] if len(fixed) == 1 else Row(tuple(fixed), sum(item.width or 0 for item in fixed)))
            fixed = []
        if part is not None:
            joined.append(part)
    return joined[0] if len(joined) == 1 else Row(tuple(joined), None if joined else 0)


def choice(items: Sequence[Node]) -> Node:
    """Return alternatives as one node; neighbours of one width are one of fixed width."""
    joined: list[list[Node]] = []
    for item in (part for whole in items for part in (whole.items if isinstance(whole, Alternatives) else (whole,))):
        if joined and item.width is not None and joined[-1][0].width == item.width:
            joined[-1].append(item)
        else:
            joined.append([item])
    parts = [group[0] if len(group) == 1 else Alternatives(tuple(group), group[0].width) for group in joined]
    return parts[0] if len(parts) == 1 else Alternatives(tuple(parts), None)


@functools.lru_cache(64)
def parsed(pattern: str) -> Node:
    """Return an accepted pattern as a node."""
    found = _parser.parse(pattern)
    return build(found, found.state.flags)


def placeless(node: Node) -> Node:
    """Return a node that matches wherever this one does, and wherever it would if the text began or
    ended there: without `^`, `$` and their kin."""
    match node:
        case Row():
            return row(list(map(placeless, node.items)))
        case Alternatives():
            return choice(list(map(placeless, node.items)))
        case Repeat():
            return Repeat(placeless(node.body), node.low, node.high, node.lazy, node.single)
        case Assertion() if node.kind not in (_constants.AT_BOUNDARY, _constants.AT_NON_BOUNDARY):
            return row([])
        case _:
            return node


def build(nodes: Any, flags: int) -> Node:
    """Return a (part of a) parse tree of an accepted pattern as a node."""
    return row([item for code, value in nodes if (item := _node(code, value, flags)) is not None])


def _node(code: Any, value: Any, flags: int) -> Node | None:
    if code is _constants.AT:
        return Assertion(value, bool(flags & re.ASCII), bool(flags & re.MULTILINE))
    if code is _constants.SUBPATTERN:
        _group, add, remove, body = value
        return build(body, ((flags & ~_TYPES if add & _TYPES else flags) | add) & ~remove)
    if code is _constants.BRANCH:
        return choice([build(branch, flags) for branch in value[1]])
    if code in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
        low, high, body = value
        return _repeat(low, high, body, flags, code is _constants.MIN_REPEAT)
    return Characters(members(code, value, flags))


def _repeat(low: int, high: int, nodes: Any, flags: int, lazy: bool) -> Node | None:
    """Return a repeat; None where what it repeats makes no difference."""
    body = build(nodes, flags)
    if high == 0 or (low == 0 and _most(body) == 0):
        return None
    return body if low == high == 1 else Repeat(body, low, high, lazy, ways(nodes) == 1)


def _most(node: Node) -> int:
    """Return the characters of the longest match."""
    if isinstance(node, Row):
        return sum(map(_most, node.items))
    if isinstance(node, Alternatives):
        return max(map(_most, node.items))
    return node.high * _most(node.body) if isinstance(node, Repeat) else node.width or 0
