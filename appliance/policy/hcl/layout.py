"""Changes to a policy's text that leave everything else as it is written."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import NamedTuple

from appliance.policy.hcl.parser import BYTE_ORDER_MARK
from appliance.policy.hcl.tree import Body, ListNode, Node


class Edit(NamedTuple):
    """Put `new` in place of the characters from `start` up to, not including, `end`."""

    start: int
    end: int
    new: str


def edited(data: bytes, edits: Iterable[Edit]) -> bytes:
    """Return a valid policy file with edits made; places count in its text, where each line ends
    with one newline."""
    mark = BYTE_ORDER_MARK if data.startswith(BYTE_ORDER_MARK) else b""
    raw = data[len(mark):].decode("utf-8")
    returns = [match.start() - number for number, match in enumerate(re.finditer("\r\n", raw))]
    newline = "\r\n" if returns and returns[0] == raw.replace("\r\n", "\n").index("\n") else "\n"
    for edit in sorted(edits, reverse=True):
        start, end = (at + bisect.bisect_left(returns, at) for at in (edit.start, edit.end))
        raw = raw[:start] + edit.new.replace("\n", newline) + raw[end:]
    return mark + raw.encode("utf-8")


def spread(text: str, body: Body, outer: str = "") -> list[Edit]:
    """Return the edits that put attributes, blocks and the end of their block on own lines, since
    HashiCorp's parser takes them in no other way. One attribute may stand in a block of one line.
    `outer` is the indentation of the block."""
    items = sorted([_Item(each.name_span.start, each.value.span.end) for each in body.attributes.values()]
                   + [_Item(each.type_span.start, each.span.end, each.body) for each in body.blocks])
    is_block = body.span.end > 0
    inner = _indent(text, body) or (outer + "  " if is_block else "")
    place, close = (body.span.start + 1 if is_block else 0), (body.span.end - 1 if is_block else len(text))
    if not items or (is_block and _is_short(text, items, place, close)):
        return []
    edits = []
    for start, end, nested in items:
        if (is_block or place > 0) and not _breaks(text[place:start]):
            edits.append(Edit(_behind(text, start), start, f"\n{inner}"))
        edits += [] if nested is None else spread(text, nested, _margin(text, start) or inner)
        place = end
    for attribute in body.attributes.values():
        edits += _bare_heredocs(text, attribute.value)
    if is_block and not _breaks(text[place:close]):
        edits.append(Edit(_behind(text, close), close, f"\n{outer}"))
    return edits


class _Item(NamedTuple):
    """An attribute or a block by its place."""

    start: int
    end: int
    body: Body | None = None  # of a block


def _behind(text: str, place: int) -> int:
    """Return where the blanks before a place begin."""
    while place > 0 and text[place - 1] in " \t":
        place -= 1
    return place


def _is_short(text: str, items: list[_Item], place: int, close: int) -> bool:
    """Whether a block holds one attribute, on the line of its braces."""
    start, end, nested = items[0]
    return len(items) == 1 and nested is None and not _breaks(text[place:start]) and not _breaks(text[end:close])


def _bare_heredocs(text: str, value: Node) -> list[Edit]:
    """Return the edits on texts of several lines in a value: no blanks behind their first line, and
    a line end behind their last."""
    if isinstance(value, ListNode):
        return [edit for item in value.items for edit in _bare_heredocs(text, item)]
    if not text.startswith("<<", value.span.start):
        return []
    line_end = text.index("\n", value.span.start)
    bare = value.span.start + len(text[value.span.start:line_end].rstrip())
    return [*([Edit(bare, line_end, "")] if bare < line_end else []),
            *([Edit(len(text), len(text), "\n")] if value.span.end >= len(text) else [])]


def _breaks(gap: str) -> bool:
    """Whether a line ends between two things, in blanks, line ends and comments."""
    at = 0
    while at < len(gap):
        if gap.startswith("/*", at):
            at = gap.index("*/", at + 2) + 2
        elif gap[at] in "\n#" or gap.startswith("//", at):
            return True
        else:
            at += 1
    return False


def _margin(text: str, place: int) -> str | None:
    """Return the blanks between the beginning of a line and a place; None where more stands there.
    """
    before = text[text.rfind("\n", 0, place) + 1:place]
    return None if before.strip(" \t") else before


def appended(text: str, body: Body, lines: list[str]) -> Edit:
    """Return the edit that adds lines at the end of a block, or of the file for its outermost body.
    """
    if body.span.end == 0:
        gap = "\n" if text.endswith("\n") or not text else "\n\n"
        return Edit(len(text), len(text), gap + "".join(f"{line}\n" for line in lines))
    close = body.span.end - 1
    start = text.rfind("\n", 0, close) + 1
    before = text[start:close]
    outer = before[:len(before) - len(before.lstrip(" \t"))]
    inner = _indent(text, body) or outer + "  "
    new = "".join(f"{inner}{_aligned(line, text, body)}\n" for line in lines)
    if not before.strip(" \t"):
        return Edit(start, start, new)
    return Edit(len(text[:close].rstrip(" \t")), close, f"\n{new}{outer}")


def _indent(text: str, body: Body) -> str | None:
    """Return the indentation of the first thing in a block that begins its line; None where nothing
    does."""
    places = sorted([each.name_span.start for each in body.attributes.values()]
                    + [each.type_span.start for each in body.blocks])
    return next((margin for place in places if (margin := _margin(text, place)) is not None), None)


def _aligned(line: str, text: str, body: Body) -> str:
    """Return an attribute's line with its equals sign below the one of the block's last attribute,
    if that is wider."""
    name, equals, value = line.partition(" = ")
    last = max((each.name_span for each in body.attributes.values()), default=None)
    mark = None if last is None else re.compile(r"[ \t]*=").match(text, last.end)
    if last is None or mark is None or not equals or line.startswith(" "):
        return line
    return name.ljust(mark.end() - last.start - 2) + equals + value
