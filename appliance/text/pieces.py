"""The bytes of all tokens of a vocabulary, to be searched at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from appliance.text.tokenizer.stream import Pieces


class Sized(Pieces, Protocol):
    """The methods of a tokenizer that are called here."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        ...


@dataclass(frozen=True)
class TokenBytes:
    """The bytes of tokens, one token after the other."""

    data: NDArray[np.uint8]
    owner: NDArray[np.int64]  # of each byte, the token
    end: NDArray[np.int64]  # of each token, the place after its last byte
    is_text: NDArray[np.bool_]  # of each token: neither a control token nor empty


_KNOWN: WeakKeyDictionary[Sized, TokenBytes] = WeakKeyDictionary()


def words(tokenizer: Sized) -> TokenBytes:
    """The words of a tokenizer, which are kept as long as it is. The first call takes some 50
    milliseconds."""
    found = _KNOWN.get(tokenizer)
    if found is None:
        pieces = [tokenizer.piece(token) for token in range(tokenizer.vocab_size)]
        lengths = np.array([len(piece) for piece in pieces], np.int64)
        special = np.array([tokenizer.is_special(token) for token in range(len(pieces))], np.bool_)
        found = _KNOWN[tokenizer] = TokenBytes(np.frombuffer(b"".join(pieces), np.uint8),
                                               np.repeat(np.arange(len(pieces)), lengths), np.cumsum(lengths),
                                               ~special & (lengths > 0))
    return found
