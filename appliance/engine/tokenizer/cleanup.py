"""Remove the spaces that some tokenizers leave before punctuation and contractions, as llama.cpp does it."""

from __future__ import annotations

import re

_BEFORE_PUNCTUATION = re.compile(rb" (?=[?!.,])")
_AROUND_APOSTROPHE = re.compile(rb" ' ")
_BEFORE_CONTRACTION = re.compile(rb" (?='(?:[sm]|re|ve))")


def clean_spaces(text: bytes) -> bytes:
    """`text` with " ," as ",", " ' " as "'", " 's" as "'s"."""
    text = _BEFORE_PUNCTUATION.sub(b"", text)
    text = _AROUND_APOSTROPHE.sub(b"'", text)
    return _BEFORE_CONTRACTION.sub(b"", text)
