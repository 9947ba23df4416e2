"""Patterns that find the first of some marks in a text that comes piece by piece."""

from __future__ import annotations

import re
from functools import lru_cache


@lru_cache(maxsize=256)
def patterns(marks: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Patterns that find the first mark: in a text that is complete, and in one that may go on. The
    second one also finds the beginning of a mark at the text's end. It has no group there."""
    if not marks:
        return re.compile(r"(?!)"), re.compile(r"(?!)")
    ordered = sorted(marks, key=len, reverse=True)
    whole = [f"(?P<whole>{'|'.join(map(re.escape, ordered))})"]
    parts = []
    for mark in ordered:
        longer = [_beginning(other) for other in ordered if other != mark and other.startswith(mark)]
        parts.append((longer, re.escape(mark)))
    waits = "|".join(_beginning(mark) for mark in ordered)
    first = [f"(?!{'|'.join(longer)}){mark}" if longer else mark for longer, mark in parts]
    return re.compile(whole[0]), re.compile(f"(?P<whole>{'|'.join(first)})|{waits}")


def _beginning(mark: str) -> str:
    """A pattern of the proper beginnings of a mark at a text's end."""
    pattern = r"\Z"
    for char in reversed(mark[1:-1]):
        pattern = rf"(?:{re.escape(char)}{pattern}|\Z)"
    return f"{re.escape(mark[0])}{pattern}" if len(mark) > 1 else r"(?!)"
