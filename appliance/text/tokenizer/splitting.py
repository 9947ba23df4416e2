"""Cut text into the words that are merged on their own, as a pre-tokenizer's stages say.

Patterns with Unicode classes run on a *view* of the text, one character per code point. ASCII
stands for itself; any other code point is replaced by a letter for its class (white space by a
vertical tab). So they need no Unicode tables of the regular expression engine, and mean the same on
every Python version. A stage sees each piece as if it were the whole text: `(?!\\S)` holds at the
end of a piece.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from appliance import packaged
from appliance.text.tokenizer.pretokenizers import PreTokenizer, Stage

MAX_CODE = 0x110000
Pieces: TypeAlias = "array[int]"  # the ends of the pieces, ascending; the first begins at 0
_SHORT = 1 << 16  # characters; of a longer text there is no list of words

# Character classes of one version of Unicode, the same on every Python version: first code points,
# and the class from there on, beyond ASCII.
_LINE = re.compile(r"[0-9A-Fa-f]{2,6}[LNPSMwo]( [0-9A-Fa-f]{2,6}[LNPSMwo])*")


def _is_table(found: Any) -> bool:
    lines = found.get("ranges") if isinstance(found, dict) else None
    return isinstance(lines, list) and bool(lines) and all(
        isinstance(line, str) and _LINE.fullmatch(line) for line in lines)


_RANGES = " ".join(packaged.document(
    "text/tokenizer/unicode_classes.json", "Unicode's character classes", _is_table)["ranges"]).split()
# The view's letter for each class letter of the table.
_VIEW = {"L": 0xD2, "N": 0xD1, "P": 0xD3, "M": 0xD4, "S": 0xD5, "w": 0x0B, "o": 0xD0}
_HAN_LETTER, _HAN_OTHER = 0xD6, 0xD7
# The inside of a bracket on the view, for each class name that patterns use.
_CLASSES = {
    r"\p{L}": "A-Za-z\xd2", r"\p{l}": "\xd2", r"\p{N}": "0-9\xd1", r"\p{M}": "\xd4",
    r"\p{P}": r"!-#%-*,-/:;?@\[-\]_{}" + "\xd3", r"\p{S}": "$+<->^`|~\xd5",
    r"\p{Han}": "\xd6\xd7", r"\p{h}": "\xd6",
}
# The Chinese characters that the kimi-k2 pre-tokenizer keeps apart, as llama.cpp lists them.
_HAN = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2EBEF), (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F))


@cache
def class_table(han: bool = False) -> NDArray[np.uint8]:
    """uint8[0x110000]: the view's character of each code point; with `han`, Chinese characters
    apart."""
    table = np.empty(MAX_CODE, np.uint8)
    table[:128] = np.arange(128)
    entries = [(int(entry[:-1], 16), _VIEW[entry[-1]]) for entry in _RANGES]
    for (start, value), (end, _) in zip(entries, [*entries[1:], (MAX_CODE, 0)], strict=True):
        table[start:end] = value
    for start, last in _HAN if han else ():
        part = table[start:last + 1]
        part[:] = np.where(part == _VIEW["L"], _HAN_LETTER, _HAN_OTHER)
    table.flags.writeable = False
    return table


_WIDE_SPACES = {int(code): 0x0B for code in np.flatnonzero(class_table() == 0x0B) if code > 127}


def _view(text: str, han: bool = False) -> str:
    """One class character per code point."""
    if text.isascii():
        return text
    codes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return class_table(han)[codes].tobytes().decode("latin-1")


def _pieces(*ends: int) -> Pieces:
    return array("i", ends)


Cut = Callable[[str, Pieces], Pieces]


def _within(places: Callable[[str, int, int], Iterable[int]]) -> Cut:
    """A cut of each piece from `start` to `end` at the places, ascending, that are within it."""

    def cut(view: str, pieces: Pieces) -> Pieces:
        ends = _pieces()
        start = 0
        for end in pieces:
            ends.extend(place for place in places(view, start, end) if start < place < end)
            ends.append(end)
            start = end
        return ends

    return cut


@_within
def _digits_from_right(view: str, start: int, end: int) -> Iterator[int]:
    """Cut each run of digits in groups of three from its right; the text before a run stays with
    the run's first group (llama.cpp does so; later stages cut it off)."""
    for run in _DIGITS.finditer(view, start, end):
        first, last = run.span()
        yield from range(first + ((last - first) % 3 or 3), last + 1, 3)


@_within
def _ascii_digits_from_right(view: str, start: int, end: int) -> Iterator[int]:
    """Cut before every digit after which the run has a multiple of three digits left, itself
    included."""
    for run in _ASCII_DIGITS.finditer(view, start, end):
        first, last = run.span()
        yield from range(first + (last - first) % 3, last, 3)


@_within
def _trailing_space(view: str, start: int, end: int) -> Iterator[int]:
    r"""Cut the white space at the end of each piece off: `\s+$`, which would be quadratic as a
    search."""
    yield start + len(view[start:end].rstrip(_SPACE))


@_within
def _jais2(view: str, start: int, end: int) -> Iterator[int]:
    r"""As llama3, but white space without a newline is cut in pieces of 512, 256, ..., 2 and 1. The
    cascade `\s*[\r\n]+|\s{512}(?!\S)|...` would be quadratic as one pattern."""
    for found in _JAIS2.finditer(view, start, end):
        if found.lastgroup == "space":
            yield from _cascade(*found.span())
        else:
            yield found.end()


def _cascade(start: int, end: int) -> Iterator[int]:
    """The ends of the pieces of white space from `start` to `end`."""
    for size in (512, 256, 128, 64, 32, 16, 8, 4, 2, 1):
        while end - start >= size:
            start += size
            yield start


_FUNCTIONS: dict[str, Cut] = {
    "digits_from_right": _digits_from_right, "ascii_digits_from_right": _ascii_digits_from_right,
    "trailing_space": _trailing_space, "jais2": _jais2,
}
_SPACE = " \t\n\r\f\v"


def _compile(pattern: str) -> re.Pattern[str]:
    for name, inside in _CLASSES.items():
        pattern = pattern.replace(name, inside)
    return re.compile(pattern, re.ASCII)


_DIGITS = _compile(r"[\p{N}]+")
_ASCII_DIGITS = _compile("[0-9]+")
_JAIS2 = _compile(
    r"'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])|[^\r\n\p{L}\p{N}]?[\p{L}]+|[\p{N}]{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|(?P<space>\s+(?!\S))|\s")


def _matcher(pattern: re.Pattern[str]) -> Cut:
    """A cut at both ends of every match."""

    def cut(view: str, pieces: Pieces) -> Pieces:
        ends = _pieces()
        add = ends.append
        start = 0
        for end in pieces:
            at = start
            for found in pattern.finditer(view, start, end):
                first, last = found.span()
                if first > at:
                    add(first)
                add(last)
                at = last
            if at < end:
                add(end)
            start = end
        return ends

    return cut


class Splitter:
    """A pre-tokenizer made ready: `split` cuts text into words."""

    def __init__(self, pre: PreTokenizer) -> None:
        self._han = any(r"\p{Han}" in stage.rule for stage in pre.stages)
        self._stages = [(stage.kind == "exact", self._cut(stage)) for stage in pre.stages]
        only = pre.stages[0]
        # With one stage on ASCII text, the matches are the words, unless something stays unmatched.
        self._findall = None if len(pre.stages) > 1 or only.kind == "function" else _compile(only.rule).findall

    @staticmethod
    def _cut(stage: Stage) -> Cut:
        return _FUNCTIONS[stage.rule] if stage.kind == "function" else _matcher(_compile(stage.rule))

    def split(self, text: str) -> Iterable[str]:
        """The words of `text`, in order; together they are `text`."""
        if self._findall is not None and len(text) <= _SHORT and text.isascii():
            words: list[str] = self._findall(text)
            if sum(map(len, words)) == len(text):
                return words
        view = _view(text, self._han)
        exact = text if text.isascii() else text.translate(_WIDE_SPACES)
        pieces = _pieces(len(text)) if text else _pieces()
        for is_exact, cut in self._stages:
            pieces = cut(exact if is_exact else view, pieces)
        return (text[start:end] for start, end in zip(chain((0,), pieces), pieces, strict=False))
