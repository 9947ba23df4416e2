"""DRY: a penalty for tokens that would make a repetition of the text longer, as llama.cpp has it
(after the proposal of p-e-w for text-generation-webui).

A token that followed the text's last n tokens where they stood before gets a penalty that grows
with n. Sequence breakers bound n: none of the repeated tokens stands before the last breaker.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Ids, Logits
from appliance.engine.decode.chain.scratch import Scratch

MOST_LN = 88.7228391  # of a power of the base, as llama.cpp bounds it
MOST = 1e30  # of a penalty: the logit stays a number


class Dry:
    """The state of one answer: how many tokens before each place are those at the end."""

    def __init__(self, multiplier: float, base: float, allowed: int, last: int, prompt: Sequence[int],
                 breakers: Sequence[Sequence[int]]) -> None:
        """`last`: tokens that are looked at, of prompt and answer; -1: all. `breakers`: sequences
        of tokens."""
        self._multiplier, self._base, self._allowed, self._last = multiplier, base, allowed, last
        self._tails: dict[int, list[tuple[int, ...]]] = {}
        for head, *tail in breakers:
            self._tails.setdefault(head, []).append(tuple(tail))
        self._reach = max(map(len, breakers), default=0)
        tokens = list(prompt[-last:] if last > 0 else prompt) if last and multiplier else []
        self._count, room = len(tokens), len(tokens) + 256
        self._tokens, self._runs = np.zeros(room, np.int64), np.zeros(room, np.int64)
        self._tokens[:len(tokens)], self._runs[:len(tokens)] = tokens, _runs(tokens)

    def asks(self) -> bool:
        """Tell whether there can be a penalty."""
        return bool(self._multiplier) and self._window() > self._allowed

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        ids, lengths = self._repetitions()
        if not ids.size:
            return
        steps = exact.ln(self._base)
        powers = [exact.exp(min((int(n) - self._allowed) * steps, MOST_LN)) for n in lengths]
        penalties = np.array([min(self._multiplier * power, MOST) for power in powers], np.float64)
        some = scratch.pick(logits, ids)
        logits[ids] = np.subtract(some, penalties.astype(np.float32), out=some)

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""
        if not self._last or not self._multiplier:
            return
        self._make_room()
        tokens, runs = self._tokens[:self._count], self._runs[:self._count]
        runs[1:] = runs[:-1] + 1
        runs[:1] = 1
        runs[tokens != token] = 0
        self._tokens[self._count] = token
        self._count += 1

    def _make_room(self) -> None:
        if self._count == self._tokens.size:
            self._tokens, self._runs = (np.concatenate([row, np.zeros_like(row)]) for row in (self._tokens, self._runs))

    def _window(self) -> int:
        return self._count if self._last < 0 else min(self._count, self._last)

    def _repetitions(self) -> tuple[Ids, Ids]:
        """Tokens that would go on with a repetition, and how many of its tokens there are already.
        """
        window = self._window()
        start = self._count - window
        runs = np.minimum(self._runs[start:self._count - 1], np.arange(1, window))
        longest = int(runs.max(initial=0))
        if longest < self._allowed:
            return runs[:0], runs[:0]
        bound = self._bound(min(window, longest + self._reach + 1), window)
        runs = np.minimum(runs, bound)
        places = np.flatnonzero(runs >= self._allowed)
        if bound < self._allowed or not places.size:
            return runs[:0], runs[:0]
        following, lengths = self._tokens[start + places + 1], runs[places]
        ids = np.unique(following)
        most = np.zeros(ids.size, np.int64)
        np.maximum.at(most, np.searchsorted(ids, following), lengths)
        free = np.array([() not in self._tails.get(token, ()) for token in ids.tolist()], np.bool_)
        return ids[free], most[free]

    def _bound(self, most: int, window: int) -> int:
        """How many tokens there are after the last breaker; the window where there is none among
        the last `most`."""
        recent = self._tokens[self._count - most:self._count].tolist()
        for back in range(most):
            tails = [tail for tail in self._tails.get(recent[-1 - back], ())
                     if len(tail) <= back and all(tail[i] == recent[i - back] for i in range(len(tail)))]
            if tails:
                return back - max(map(len, tails))
        return window


def _runs(tokens: Sequence[int]) -> list[int]:
    """How many tokens up to each place are those at the end, by the Z algorithm on the reverse.

    The last place's own number is not used.
    """
    back = list(reversed(tokens))
    count, lengths = len(back), [0] * len(back)
    left = right = 0
    for place in range(1, count):
        run = min(right - place, lengths[place - left]) if place < right else 0
        while place + run < count and back[run] == back[place + run]:
            run += 1
        lengths[place] = run
        if place + run > right:
            left, right = place, place + run
    return lengths[::-1]
