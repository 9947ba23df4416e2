"""Changes to a policy's text that leave everything else as it is written."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterable
from typing import NamedTuple

from appliance.policy.hcl.parser import BYTE_ORDER_MARK
from appliance.policy.hcl.tree import Body


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
    for place in places:
        before = text[text.rfind("\n", 0, place) + 1:place]
        if not before.strip(" \t"):
            return before
    return None


def _aligned(line: str, text: str, body: Body) -> str:
    """Return an attribute's line with its equals sign below the one of the block's last attribute,
    if that is wider."""
    name, equals, value = line.partition(" = ")
    last = max((each.name_span for each in body.attributes.values()), default=None)
    mark = None if last is None else re.compile(r"[ \t]*=").match(text, last.end)
    if last is None or mark is None or not equals or line.startswith(" "):
        return line
    return name.ljust(mark.end() - last.start - 2) + equals + value
