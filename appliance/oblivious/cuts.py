"""The pre-tokenizers whose words are found by two passes over a text, and the classes of characters
that they need."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.errors import UnsupportedError
from appliance.kernels.layouts.blind import END, LETTER, LINE, NUMBER, OTHER, SPACE
from appliance.text.tokenizer.pretokenizers import PRE_TOKENIZERS, PreTokenizer
from appliance.text.tokenizer.splitting import class_table

_NO_LIMIT = 1 << 30


class Cut(NamedTuple):
    """How words are cut, see `TextPass`."""

    lines: bool = False  # runs of newlines are words of their own
    digits: int = _NO_LIMIT
    each_digit: bool = False
    marks: bool = False  # combining marks are letters


_CUTS = {PRE_TOKENIZERS[name].stages: cut for name, cut in (
    ("gpt-2", Cut()), ("smollm", Cut(each_digit=True)), ("qwen2", Cut(lines=True, digits=1)),
    ("dbrx", Cut(lines=True, digits=3)), ("qwen35", Cut(lines=True, digits=1, marks=True)))}
_OF_VIEW = {0xD2: LETTER, 0xD1: NUMBER, 0x0B: SPACE}  # see `splitting`
_MARK = 0xD4


def cut_of(pre: PreTokenizer) -> Cut:
    """How a model cuts texts. UnsupportedError, which lists the known ones, for a way that is not
    covered."""
    cut = _CUTS.get(pre.stages)
    if cut is None or not pre.byte_level:
        known = sorted(name for name, each in PRE_TOKENIZERS.items() if each.stages in _CUTS)
        raise UnsupportedError("the model's pre-tokenizer has no oblivious form yet; covered: " + ", ".join(known),
                               hint='use another model, or privacy.memory_access = "open"')
    return cut


@functools.cache
def ranges(cut: Cut) -> NDArray[np.int32]:
    """First code points and the class from there on (n, 2)."""
    kinds = np.full(0x110000, OTHER, np.int32)
    view = class_table()
    for letter, kind in (_OF_VIEW | ({_MARK: LETTER} if cut.marks else {})).items():
        kinds[view == letter] = kind
    kinds[:128] = [_of_ascii(chr(code)) for code in range(128)]
    starts = np.flatnonzero(np.diff(kinds, prepend=END))
    return np.stack([starts, kinds[starts]], 1).astype(np.int32)


def _of_ascii(letter: str) -> int:
    if letter.isalpha():
        return LETTER
    if letter.isdigit():
        return NUMBER
    return LINE if letter in "\r\n" else SPACE if letter in " \t\v\f" else OTHER
