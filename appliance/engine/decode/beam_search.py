"""Beam search over log-probabilities, by vLLM's meaning of its parameters.

    live    up to `width` texts; each goes on with each of its best 2 * `width` tokens
    ended   a text whose next token would end it is complete, without that token
    next    the likeliest `width` texts of those that go on are live

A text's score is its log-probability over (tokens of prompt and text) ^ `length_penalty`. At the
end the best `width` of complete and live texts are the result. Of texts with the same score the
first found comes first. The search ends early where no live text can come among them
any more, which changes nothing.

Nothing here knows of models, logits or memory. A *place* is where a live text's keys and values
are.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

Best = Sequence[tuple[int, float]]  # tokens and their log-probabilities, best first


@dataclass(frozen=True, slots=True)
class Beam:
    """How to search."""

    width: int
    length_penalty: float = 1.0

    @property
    def candidates(self) -> int:
        """The tokens that a text goes on with."""
        return 2 * self.width


@dataclass(frozen=True, slots=True)
class Branch:
    """A text: tokens of the answer, and the sum of their log-probabilities. `ended`: by a token
    that ends a generation, whose log-probability counts."""

    tokens: tuple[int, ...] = ()
    total: float = 0.0
    place: int = 0
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Moves:
    """The change of places at a step: `left` ones hold nothing any more; then each pair of `copies`
    lets the second place begin as the first one is."""

    left: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]


class BeamSearch:
    """The state of one search."""

    def __init__(self, beam: Beam, prompt: int, most: int, ends: Collection[int]) -> None:
        """`prompt`: its tokens; `most`: tokens of a text, 1 or more; `ends`: tokens that end one.
        """
        self._beam, self._prompt, self._most, self._ends = beam, prompt, most, ends
        self._steps = 0
        self.live = [Branch()]  # the best first
        self._complete: list[Branch] = []

    @property
    def over(self) -> bool:
        """Whether the result is known."""
        if self._steps >= self._most or not self.live:
            return True
        scores = sorted((self._score(each.total, len(each.tokens)) for each in self._complete), reverse=True)
        if len(scores) < self._beam.width:
            return False
        lengths = (self._steps, self._most)  # a score rises or falls with the length, so the ends tell the most
        hope = max(self._score(each.total, length) for each in self.live for length in lengths)
        return scores[self._beam.width - 1] >= hope

    def step(self, best: Sequence[Best]) -> Moves:
        """Go on with the best tokens of each live text, in the order of `live`."""
        going: list[tuple[Branch, int, float]] = []
        for branch, tokens in zip(self.live, best, strict=True):
            for token, logprob in tokens:
                if token in self._ends:
                    self._complete.append(Branch(branch.tokens, branch.total + logprob, ended=True))
                else:
                    going.append((branch, token, branch.total + logprob))
        going.sort(key=lambda each: -each[2])
        before = {each.place for each in self.live}
        going, self._steps = going[:self._beam.width], self._steps + 1
        places, copies = self._places([branch.place for branch, _, _ in going])
        self.live = [Branch((*branch.tokens, token), total, place)
                     for (branch, token, total), place in zip(going, places, strict=True)]
        return Moves(tuple(sorted(before - {branch.place for branch, _, _ in going})), copies)

    def _places(self, parents: Sequence[int]) -> tuple[list[int], tuple[tuple[int, int], ...]]:
        """A place for each text: the first of a parent's stays in the parent's, others are copies
        in free ones."""
        free = iter(sorted(set(range(self._beam.width)) - set(parents)))
        homes, copies = list[int](), list[tuple[int, int]]()
        for parent in parents:
            homes.append(parent if parent not in homes else next(free))
            if homes[-1] != parent:
                copies.append((parent, homes[-1]))
        return homes, tuple(copies)

    def results(self) -> list[Branch]:
        """The best texts, the best first; fewer than `width` where there are no more."""
        best = sorted([*self._complete, *self.live], key=lambda each: -self._score(each.total, len(each.tokens)))
        return best[:self._beam.width]

    def _score(self, total: float, tokens: int) -> float:
        return total / math.pow(self._prompt + tokens, self._beam.length_penalty)
