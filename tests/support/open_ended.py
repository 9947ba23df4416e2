"""An independent judge of what must be held back of a streamed answer: an expression for `re`.

In it the end of the text stands in for anything that is still to come: it matches exactly where some path through the
pattern runs into the end. Flags of a group (`(?a:...)`) are read for i, m and s only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from re import _constants as op  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import Any

_CATEGORIES = {
    op.CATEGORY_DIGIT: r"\d", op.CATEGORY_NOT_DIGIT: r"\D", op.CATEGORY_SPACE: r"\s", op.CATEGORY_NOT_SPACE: r"\S",
    op.CATEGORY_WORD: r"\w", op.CATEGORY_NOT_WORD: r"\W",
}
_PLACES = {
    op.AT_BEGINNING: "^", op.AT_BEGINNING_STRING: r"\A", op.AT_BOUNDARY: r"\b", op.AT_NON_BOUNDARY: r"\B",
    op.AT_END: "$", op.AT_END_STRING: r"\Z",
}
_FLAGS = ((re.IGNORECASE, "i"), (re.MULTILINE, "m"), (re.DOTALL, "s"))


def undecided(expression: str) -> re.Pattern[str]:
    """An expression that matches where text to come may matter."""
    tree = parser.parse(expression)
    return re.compile(_open_ended(tree) + r"\Z", tree.state.flags & ~re.UNICODE)


def _open_ended(nodes: Iterable[Any]) -> str:
    """An expression for the same paths, in which every step may also be the end of the text."""
    return "".join(_node(code, value) for code, value in nodes)


def _node(code: Any, value: Any) -> str:
    if code in (op.MAX_REPEAT, op.MIN_REPEAT):
        low, high, body = value
        return f"(?:{_open_ended(body)}){{{low},{high}}}"
    if code is op.SUBPATTERN:
        _group, add, remove, body = value
        on = "".join(letter for flag, letter in _FLAGS if add & flag)
        off = "".join(letter for flag, letter in _FLAGS if remove & flag)
        return f"(?{on}{'-' if off else ''}{off}:{_open_ended(body)})"
    if code is op.BRANCH:
        return "(?:" + "|".join(_open_ended(branch) for branch in value[1]) + ")"
    if code is op.AT and value is op.AT_END:  # also true before a last line feed, unless more comes
        return r"(?:$|(?=\n?\Z)\n?)"
    return rf"(?:{_step(code, value)}|\Z)"


def _step(code: Any, value: Any) -> str:
    """The text of a node that takes one character or none."""
    if code is op.AT:
        return _PLACES[value]
    if code is op.ANY:
        return "."
    if code is op.LITERAL:
        return re.escape(chr(value))
    if code is op.NOT_LITERAL:
        return f"[^{re.escape(chr(value))}]"
    return "[" + "".join(_member(kind, entry) for kind, entry in value) + "]"


def _member(kind: Any, entry: Any) -> str:
    """The text of one member of a set of characters."""
    if kind is op.NEGATE:
        return "^"
    if kind is op.RANGE:
        return f"{re.escape(chr(entry[0]))}-{re.escape(chr(entry[1]))}"
    return _CATEGORIES[entry] if kind is op.CATEGORY else re.escape(chr(entry))
