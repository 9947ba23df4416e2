"""Speculative decoding: guess the next tokens cheaply, check all guesses in one pass, keep those that are right.

A guess is checked by choosing the token as always, from logits whose bits do not depend on the batch, with the draw
of that position; what is kept is what would have been chosen without the guess. So answers are the same, token for
token, greedy or sampled. This module only makes guesses and says how many pay off.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST = 8  # guesses in a pass
_GRAMS = (4, 3)  # tokens at the end of a text that must have occurred before, longest first
_REACH = 8192  # tokens back that are searched
_WORTH = 0.6  # share of right guesses from which on a pass with one more guess pays
_MEMORY = 0.85  # weight of the past in that share
_PATIENCE = 24  # passes without guesses after they stopped to pay, before one is tried again


class PromptLookup:
    """Guesses that a text goes on as it did when its last few tokens occurred before."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._tokens: list[int] = []
        self._places: dict[tuple[int, ...], int] = {}  # gram -> position after its last occurrence but the newest
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """More text."""
        for token in tokens:
            # A gram is entered when the token after it is known, so that it never finds itself.
            for size in _GRAMS:
                if len(self._tokens) >= size:
                    self._places[tuple(self._tokens[-size:])] = len(self._tokens)
            self._tokens.append(token)

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        for size in _GRAMS:
            place = self._places.get(tuple(self._tokens[-size:])) if len(self._tokens) >= size else None
            if place is not None and len(self._tokens) - place <= _REACH:
                return self._tokens[place:place + count]
        return []


class Pace:
    """How many guesses to make: more while they are right, none for a while when they are wrong."""

    def __init__(self) -> None:
        self._share = _WORTH
        self._rest = 0

    def count(self) -> int:
        """Guesses for the next pass."""
        if self._rest:
            self._rest -= 1
            return 0
        return max(1, min(LONGEST, round(LONGEST * (self._share - _WORTH / 2) / (1 - _WORTH / 2))))

    def record(self, guessed: int, right: int) -> None:
        """Learn from a pass."""
        if not guessed:
            return
        self._share = _MEMORY * self._share + (1 - _MEMORY) * right / guessed
        if self._share < _WORTH / 2:
            self._share, self._rest = _WORTH, _PATIENCE


class Speculation:
    """The guesses of one answer."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._lookup, self._pace = PromptLookup(prompt), Pace()
        self._guessed: list[int] = []

    def guess(self, room: int) -> list[int]:
        """Guesses for the next pass, at most `room`."""
        self._guessed = self._lookup.guess(min(self._pace.count(), room)) if room > 0 else []
        return self._guessed

    def settle(self, chosen: Sequence[int]) -> None:
        """Tell what was chosen in the pass: right guesses, and one token more."""
        self._pace.record(len(self._guessed), len(chosen) - 1)
        self._lookup.extend(chosen)
        self._guessed = []
