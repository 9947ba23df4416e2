"""`token_healing`: the last tokens of a prompt are taken back, and the answer begins with their
text.

A text that ends within a word, or before what its last token mostly goes on with, is seldom cut
into tokens as the model has learned it. So its end is written anew: while any of it is missing,
tokens are allowed that begin with all of what is missing, or that are a part of it. The caller
gets what comes after it. guidance, transformers and llama.cpp's examples have it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from appliance.text.pieces import Sized, words


class Lexicon(Sized, Protocol):
    """The methods of a tokenizer that are called here."""

    @property
    def eot_ids(self) -> Collection[int]:
        """Tokens that end a generation."""

    @property
    def suppressed(self) -> Collection[int]:
        """Tokens that no answer may have."""


class Healing:
    """The end of one prompt, until it is written again."""

    def __init__(self, prompt: Sequence[int], most: int, tokenizer: Lexicon) -> None:
        """Take back up to `most` tokens: of text, whole characters, and never the first token."""
        self._tokenizer = tokenizer
        count = _count(prompt, most, tokenizer) if most else 0
        self.prompt = prompt[:len(prompt) - count]
        self._text = b"".join(map(tokenizer.piece, prompt[len(prompt) - count:]))
        self._written = 0  # bytes of it
        self._hidden = len(self._text.decode())  # characters that the caller has
        self._cache: dict[int, NDArray[np.int64]] = {}

    def mask(self) -> bytes | None:
        """A bit for each token that is allowed, the first in the lowest bit of the first byte; None
        once all are."""
        if self._written >= len(self._text):
            return None
        bits = np.zeros(self._tokenizer.vocab_size, np.uint8)
        bits[self._candidates(self._written)] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def accept(self, token: int) -> None:
        """Record the next token of the answer."""
        if self._written < len(self._text):
            self._written += len(self._tokenizer.piece(token))

    def new_characters(self, text: str) -> str:
        """The answer's next characters without the beginning that the caller has."""
        hidden = min(self._hidden, len(text))
        self._hidden -= hidden
        return text[hidden:]

    def _candidates(self, start: int) -> NDArray[np.int64]:
        """Tokens that may come where the text is written up to `start`: none after which it could
        not be completed."""
        if start not in self._cache:
            whole, parts = self._fitting(self._text[start:])
            self._cache[start] = np.concatenate([whole, *(
                ids for length, ids in parts.items() if self._candidates(start + length).size)])
        return self._cache[start]

    def _fitting(self, text: bytes) -> tuple[NDArray[np.int64], dict[int, NDArray[np.int64]]]:
        """Tokens that begin with a text; and by their length those with which it begins, and that
        are shorter."""
        table, parts = words(self._tokenizer), dict[int, NDArray[np.int64]]()
        is_text = table.is_text.copy()
        is_text[list(self._tokenizer.eot_ids)] = False
        ids = np.flatnonzero(is_text)
        starts = np.concatenate([[0], table.end[:-1]])
        for place, byte in enumerate(text):
            ended = table.end[ids] - starts[ids] == place
            if ended.any():
                parts[place] = ids[ended]
            ids = ids[~ended]
            ids = ids[table.data[starts[ids] + place] == byte]
        return ids, parts


def _count(prompt: Sequence[int], most: int, tokenizer: Lexicon) -> int:
    """How many tokens at the end of a prompt are text of whole characters, of up to `most`."""
    whole, text = 0, b""
    for count, token in enumerate(reversed(prompt[1:][-most:]), 1):
        piece = tokenizer.piece(token)
        if not piece or tokenizer.is_special(token) or token in tokenizer.eot_ids:
            break
        text = piece + text
        try:
            text.decode()
        except UnicodeDecodeError:
            continue
        whole = count
    return whole
