"""The tokens that end an answer, and when they may come: a mask on them where a request says so.

`ignore_eos`, `min_tokens` and `stop_token_ids` are vLLM's. There an answer goes on after a token
that would end it. Here such a token is not chosen, so that a model does not begin another text.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Ending:
    """How an answer may end by a token. The default leaves it to the model."""

    never: bool = False  # none of the model's own is chosen
    least: int = 0  # tokens before one may come
    also: frozenset[int] = frozenset()  # more tokens that end it

    def ends(self, own: Collection[int]) -> frozenset[int]:
        """The tokens that end an answer, of a model with its `own`."""
        return self.also if self.never else self.also | frozenset(own)

    def mask(self, count: int, own: Collection[int], vocabulary: int) -> bytes | None:
        """A bit for each token that may come after `count` others, the first in the lowest bit of
        the first byte; None: all may."""
        barred = frozenset(own) - self.also if self.never else frozenset[int]()
        if count < self.least:
            barred = self.also | frozenset(own)
        return _without(barred, vocabulary) if barred else None

    def as_json(self) -> dict[str, Any]:
        """By the names of a request."""
        return {"ignore_eos": self.never, "min_tokens": self.least, "stop_token_ids": sorted(self.also)}

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Ending:
        """The reverse of `as_json`. LookupError, TypeError or ValueError for another form."""
        if fields.keys() != {"ignore_eos", "min_tokens", "stop_token_ids"} or type(fields["ignore_eos"]) is not bool:
            raise ValueError("another form")
        return cls(fields["ignore_eos"], int(fields["min_tokens"]), frozenset(map(int, fields["stop_token_ids"])))


FREE = Ending()


@functools.lru_cache(maxsize=8)
def _without(barred: frozenset[int], vocabulary: int) -> bytes:
    bits = np.ones(vocabulary, np.uint8)
    bits[[token for token in barred if token < vocabulary]] = 0
    return np.packbits(bits, bitorder="little").tobytes()


def both(mask: bytes | None, other: bytes | None) -> bytes | None:
    """The tokens that two masks allow."""
    if mask is None or other is None:
        return other if mask is None else mask
    return (np.frombuffer(mask, np.uint8) & np.frombuffer(other, np.uint8)).tobytes()
