"""Strings that remember which of their characters came from outside the template.

A `Marked` string is a `str` with spans: the stretches that a user (or a tool) wrote. Templates cut
and join such strings; the spans follow, so that at the end only the template's own text can name
control tokens. An operation that does not say where its characters come from gives a string marked
as a whole: never the other way round.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from operator import itemgetter

Span = tuple[int, int]  # start and end, in characters


class Marked(str):
    """A string some of whose characters came from outside; `spans` are ascending and do not touch.
    """

    __slots__ = ("spans",)

    spans: tuple[Span, ...]


def with_spans(text: str, spans: Iterable[Span]) -> str:
    """`text` with the given spans, which must be ascending and not overlap; plain if there are
    none."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif end > start:
            joined.append((start, end))
    if not joined:
        return str(text)
    marked = Marked(text)
    marked.spans = tuple(joined)
    return marked


def mark(text: str) -> str:
    """`text`, all of it from outside."""
    return with_spans(text, [(0, len(text))])


def spans_of(text: str) -> tuple[Span, ...]:
    """The stretches of `text` that came from outside."""
    return text.spans if isinstance(text, Marked) else ()


def own_of(text: str) -> str:
    """The characters of `text` that are the template's own; a NUL stands for each stretch of
    others."""
    ends = [0, *(end for span in spans_of(text) for end in span), len(text)]
    return "\0".join(str(text[start:end]) for start, end in zip(ends[::2], ends[1::2], strict=True))


def concatenate(parts: Iterable[str]) -> str:
    """All parts in a row, spans and all."""
    parts = list(parts)
    text = "".join(parts)
    if not any(map(is_marked, parts)):
        return text
    spans: list[Span] = []
    at = 0
    for part in parts:
        spans.extend((at + start, at + end) for start, end in spans_of(part))
        at += len(part)
    return with_spans(text, spans)


def part(text: str, start: int, end: int) -> str:
    """`text[start:end]` for 0 <= start, with its spans."""
    piece = text[start:end]
    if not isinstance(text, Marked):
        return piece
    end = start + len(piece)
    spans = text.spans  # not all of them are gone through: a loop may take one character after the other
    here = spans[bisect_right(spans, start, key=itemgetter(1)):bisect_left(spans, end, key=itemgetter(0))]
    return with_spans(piece, [(max(first, start) - start, min(last, end) - start) for first, last in here])


def parts_in_order(text: str, pieces: Sequence[str], gap: int | None = None) -> list[str]:
    """`pieces`, which lie in `text` in this order, with their spans. `gap` is the number of
    characters between two pieces; None if it varies (then no piece may occur within the gap before
    it)."""
    if not isinstance(text, Marked):
        return list(pieces)
    found = []
    at = 0
    for piece in pieces:
        start = at if gap is not None else text.find(piece, at)
        found.append(part(text, start, start + len(piece)))
        at = start + len(piece) + (gap or 0)
    return found


def lines(text: str, keepends: bool = False) -> list[str]:
    """The lines of `text`, by whatever ends a line in Unicode."""
    with_ends = parts_in_order(text, text.splitlines(keepends=True), 0)
    return with_ends if keepends else [part(line, 0, len(line.splitlines()[0])) for line in with_ends]


def strip(text: str, characters: str | None, left: bool = True, right: bool = True) -> str:
    """`text` without white space (or `characters`) at its ends."""
    rest = text.lstrip(characters) if left else text
    start = len(text) - len(rest)
    end = start + len(rest.rstrip(characters)) if right else len(text)
    return part(text, start, end)


def replace(text: str, old: str, new: str, count: int = -1) -> str:
    """`text` with `old` replaced by `new`, at most `count` times."""
    if not old:
        return marked_like(text.replace(old, new, count), text, new)
    return join(new, parts_in_order(text, text.split(old, count), len(old)))


def join(separator: str, parts: Sequence[str]) -> str:
    """The parts with the separator between them."""
    return concatenate([each for piece in parts for each in (separator, piece)][1:])


def recase(text: str, changed: str) -> str:
    """`changed`, which is `text` in another case: marked alike where characters still correspond.
    """
    return with_spans(changed, spans_of(text)) if len(changed) == len(text) else marked_like(changed, text)


def marked_like(text: str, *sources: object) -> str:
    """`text` marked as a whole if anything in `sources` is from outside."""
    return mark(text) if any(is_marked(source) for source in sources) else text


def is_marked(value: object) -> bool:
    """Whether a string is from outside, in part at least."""
    return isinstance(value, Marked)
