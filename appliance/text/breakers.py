"""DRY's sequence breakers: texts, as the sequences of tokens that write them.

A token that has the whole text is a breaker alone. One that ends with the text's beginning is one
together with the tokens of the rest, as llama.cpp has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.errors import CapacityError
from appliance.text.pieces import TokenBytes, words
from appliance.text.tokenizer import Tokenizer

MOST_TEXTS, MOST_CHARACTERS = 16, 40  # of one request, and of one text
MOST_SEQUENCES = 1 << 16  # of tokens
_LONGEST_REST = 20  # tokens, as llama.cpp has it


def sequences(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return each sequence of tokens that breaks, once. CapacityError where they are too many."""
    found: dict[tuple[int, ...], None] = {}
    for text in texts:
        for heads, rest in _parts(words(tokenizer), text.encode("utf-8", "surrogateescape")):
            if len(found) + heads.size > MOST_SEQUENCES:
                raise CapacityError("too many tokens of the vocabulary have a sequence breaker in them")
            tail = tokenizer.encode(rest)[:_LONGEST_REST] if rest else []
            found.update(dict.fromkeys((head, *tail) for head in heads.tolist()))
    return tuple(found)


def _parts(known: TokenBytes, text: bytes) -> Iterator[tuple[NDArray[np.int64], str]]:
    """Tokens that have the text's beginning at their end, and the rest of the text; those that have
    it as a whole come last, with no rest, and do not come before."""
    places = np.flatnonzero(known.data == text[0])
    cut: list[tuple[NDArray[np.int64], str]] = []
    for length in range(1, len(text)):
        owners = known.owner[places]
        at_end = places + length == known.end[owners]
        if at_end.any() and text[length] & 0xC0 != 0x80:  # not within a character
            cut.append((np.unique(owners[at_end]), text[length:].decode("utf-8", "replace")))
        places = places[~at_end]
        places = places[known.data[places + length] == text[length]]
    whole = np.unique(known.owner[places])
    yield from ((np.setdiff1d(heads, whole), rest) for heads, rest in cut)
    yield whole, ""
