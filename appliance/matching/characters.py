"""Which characters the one-character parts of a pattern match, as Python's `re` decides, and the
classes of a text.

Case is the only question with an answer that is not in the pattern itself. There `re` is asked, for
each character that has a case.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

import numpy as np
from numpy.typing import NDArray

POINTS = 0x110000
PAGE = 256  # code points of a page
GROUP = 64  # classes of a word

Ranges = tuple[tuple[int, int], ...]
"""Code points from the first of each pair to before the second, in order and apart."""

_BASES = {getattr(_constants, f"CATEGORY_{negation}{name}"): (text, bool(negation))
          for name, text in (("DIGIT", r"\d"), ("SPACE", r"\s"), ("WORD", r"\w")) for negation in ("", "NOT_")}


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges in order, joined where they touch."""
    found: list[tuple[int, int]] = []
    for first, end in sorted(ranges):
        if found and first <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((first, end))
    return tuple(found)


def complement(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    edges = [0, *itertools.chain.from_iterable(ranges), POINTS]
    return tuple((first, end) for first, end in zip(edges[::2], edges[1::2], strict=True) if first < end)


@functools.cache
def category(entry: Any, ascii_only: bool) -> Ranges:
    """Return the characters of a category such as `\\d`."""
    text, negated = _BASES[entry]
    pattern = re.compile(f"{text}+", re.ASCII if ascii_only else 0)
    every = "".join(map(chr, range(128))) if ascii_only else _every_character()
    found = tuple(match.span() for match in pattern.finditer(every))
    return complement(found) if negated else found


def _every_character() -> str:
    """Return all characters in order, made without an object for each: the boot's memory is
    reckoned."""
    return np.arange(POINTS, dtype="<u4").tobytes().decode("utf-32-le", "surrogatepass")


@functools.cache
def _cased() -> str:
    """Return the characters that any other is a case of, by `str` or by the extra rules of `re`."""
    found, every = set(), _every_character()
    pages = (every[first:first + PAGE] for first in range(0, POINTS, PAGE))
    cased = (page for page in pages if not page.lower() == page == page.upper())  # few of them
    for character in itertools.chain.from_iterable(cased):
        for other in (character.lower(), character.upper()):
            if other != character:
                found |= {character, *other}
    return "".join(sorted(found | {chr(c) for pair in _compiler._EXTRA_CASES.items() for c in (pair[0], *pair[1])}))


def members(code: Any, value: Any, flags: int) -> Ranges:
    """Return the characters that a one-character node of a parse tree matches, under these flags of
    `re`."""
    found = _members(code, value, bool(flags & re.ASCII), bool(flags & re.DOTALL))
    if not flags & re.IGNORECASE or code is _constants.ANY:
        return found
    state = _parser.State()
    state.flags, state.str = flags, ""
    alone = _compiler.compile(_parser.SubPattern(state, [(code, value)]), flags)
    cased = union((ord(character), ord(character) + 1) for character in _cased())
    matched = [(ord(character), ord(character) + 1) for character in alone.findall(_cased())]
    return union([*_without(found, cased), *matched])


def _without(ranges: Ranges, others: Ranges) -> Ranges:
    return complement(union([*complement(ranges), *others]))


def _members(code: Any, value: Any, ascii_only: bool, dot_all: bool) -> Ranges:
    """Return the characters of a node, letters in their own case."""
    if code is _constants.ANY:
        return ((0, POINTS),) if dot_all else complement(((10, 11),))
    if code is _constants.LITERAL:
        return ((value, value + 1),)
    if code is _constants.NOT_LITERAL:
        return complement(((value, value + 1),))
    found: list[tuple[int, int]] = []
    negated = False
    for kind, entry in value:
        if kind is _constants.NEGATE:
            negated = True
        elif kind is _constants.CATEGORY:
            found += category(entry, ascii_only)
        else:
            found.append((entry, entry + 1) if kind is _constants.LITERAL else (entry[0], entry[1] + 1))
    return complement(union(found)) if negated else union(found)


@dataclass(frozen=True)
class Alphabet:
    """The classes of each character: `rows[pages[page_of[point // PAGE]][point % PAGE]]`, a bit a
    class."""

    rows: NDArray[np.uint64]  # (row, group of 64 classes)
    pages: NDArray[np.int32]  # (page, PAGE)
    page_of: NDArray[np.int64]  # (POINTS / PAGE)


def alphabet(classes: Sequence[Ranges]) -> Alphabet:
    """Return the table of all characters for these classes."""
    groups = max(1, -(-len(classes) // GROUP))
    edges = np.unique(np.array([0, *(edge for ranges in classes for pair in ranges for edge in pair)], np.int64))
    edges = edges[edges < POINTS]
    bits = np.zeros((len(edges), groups), np.uint64)
    for number, ranges in enumerate(classes):
        flat = np.array(list(itertools.chain.from_iterable(ranges)), np.int64)
        inside = np.searchsorted(flat, edges, "right") & 1
        bits[:, number // GROUP] |= inside.astype(np.uint64) << np.uint64(number % GROUP)
    rows, row_of = np.unique(bits, axis=0, return_inverse=True)
    row_of = row_of.reshape(-1).astype(np.int32)
    whole = np.repeat(row_of, np.diff([*edges.tolist(), POINTS])).reshape(-1, PAGE)
    numbers: dict[bytes, int] = {}
    starts = np.flatnonzero([True, *(whole[1:] != whole[:-1]).any(axis=1)])  # most pages are as the one before
    found = [numbers.setdefault(whole[page].tobytes(), len(numbers)) for page in starts]
    page_of = np.repeat(np.array(found, np.int64), np.diff([*starts.tolist(), len(whole)]))
    pages = np.frombuffer(b"".join(numbers), np.int32).reshape(-1, PAGE)
    return Alphabet(np.ascontiguousarray(rows), pages, page_of)
