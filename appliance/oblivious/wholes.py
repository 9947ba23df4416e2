"""Words that are a token as a whole although no merges make it, of models whose pre-tokenizer looks
words up first."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from appliance.errors import UnsupportedError
from appliance.kernels.layouts.blind import HASH_MASK, HASH_STEP
from appliance.oblivious.pairs import last_merge
from appliance.text.tokenizer.pretokenizers import PreTokenizer
from appliance.text.tokenizer.tokenizer import MergeList

_MOST = 1 << 14


class WholeWords(NamedTuple):
    """They, as `TextPass` has them."""

    keys: NDArray[np.int32]  # (n, 2): hash, last place
    rows: NDArray[np.int32]  # (n, row): the bytes
    tokens: NDArray[np.int32]


def whole_words(merges: MergeList) -> WholeWords:
    """Those of a tokenizer. UnsupportedError where they are too many, or two have one hash."""
    texts = [text for text in merges.texts if merges.letters.keys() >= set(text) and len(text) > 1
             and _stays_whole(merges.pre, text) and last_merge(text, merges.ranks) is None]
    words = [bytes(merges.letters[letter] for letter in text) for text in texts]
    keys = [(_hash(word), len(word) - 1) for word in words]
    if len(words) > _MOST or len(set(keys)) < len(words):
        raise UnsupportedError(f"{len(words)} tokens of the model have no merges (allowed: {_MOST}), or two of them "
                               "have one hash", hint='use another model, or privacy.memory_access = "open"')
    rows = np.full((max(len(words), 1), 1 << (max(map(len, words), default=1) - 1).bit_length()), -1, np.int32)
    for row, word in zip(rows, words, strict=False):
        row[:len(word)] = np.frombuffer(word, np.uint8)
    return WholeWords(np.array(keys or [(-1, -1)], np.int32), rows,
                      np.array([merges.ids_of(text)[0] for text in texts], np.int32))


def _stays_whole(pre: PreTokenizer, text: str) -> bool:
    """Whether words that are a token are looked up before they are merged: all, or runs of
    newlines."""
    return pre.ignore_merges or (pre.whole_newlines and not text.strip("Ċ"))


def _hash(word: bytes) -> int:
    mixed = 0
    for byte in word:
        mixed = (mixed * HASH_STEP + byte + 1) & HASH_MASK
    return mixed
