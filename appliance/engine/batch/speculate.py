"""Speculative decoding: guess the next tokens cheaply, check all guesses in one pass, keep the
right ones.

A guess is checked by choosing the token as always, from logits whose bits do not depend on the
batch, with the draw of that position. So exactly the tokens are kept that would have been chosen
without the guess. So answers are the same, token for token, greedy or sampled. This module makes
guesses from the text itself (`draft.py` asks a small model where that has none) and says how many
pay off, by counts alone: no clock decides.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

LONGEST = 5  # guesses in a pass: with the token before them one tile of the kernels
_GRAMS = (4, 3)  # tokens at the end of a text that must have occurred before, longest first
_REACH = 8192  # tokens back that are searched
_WINDOW = _REACH + max(_GRAMS)  # tokens that a search may need: what is older would only take memory
_FIRST, _HOPED = 0.6, 0.85  # shares of right guesses that are expected before the first; of a mixture, to try one
_MEMORY = 0.85  # weight of the past in that share, for each guess that was decided
_WORTH = 1.03  # tokens per cost, from which guesses are tried after some were compared: costs are known roughly
_PROMISE = 1.25  # tokens per cost of right guesses, from which any are compared
_LONG_MEMORY, _LEAST = 0.95, 0.45  # the weight of the past then, and the share that is expected after a pause
_KNOWN = 16  # numbers of guesses that are remembered
_DOUBT = 2  # guesses that an expected share counts for when some were compared
_PATIENCE, _MOST_PATIENCE = 24, 384  # passes without guesses after they stopped to pay, doubled each time

# Cost of a pass by its rows, in passes of one row. Measured with weights that stay in no cache: a
# tile of the kernels has six rows and waits for memory; from there on each row costs computing.
_TILE, _ROW_OF_TILE, _ROW = 6, 0.07, 0.28


def pass_cost(rows: float) -> float:
    """The cost of a pass of so many rows, in passes of one row."""
    return 1 + _ROW_OF_TILE * (rows - 1) if rows <= _TILE else max(_ROW * rows, 1 + _ROW_OF_TILE * rows)


@dataclass(frozen=True, slots=True)
class PassCost:
    """The cost of a pass by its rows, of a model whose rows choose experts or whose layers keep
    states.

    Each row may read experts that no other row reads. Their number is reckoned as if rows chose at
    random. By what was chosen, one tenant would feel another's text.
    """

    share: float = 0.0  # of the bytes of weights that a row reads: those of its experts
    experts: int = 1
    used: int = 1  # by each row
    state: float = 0.0  # of a further row in layers that keep a state, in passes of one row

    def __call__(self, rows: float) -> float:
        """The cost of a pass of so many rows, in passes of one row."""
        state = self.state * (rows - 1)
        if not self.share:  # from some rows on computing products costs more than waiting for states
            return max(pass_cost(rows), 1 + _ROW_OF_TILE * (rows - 1) + state)
        read: float = self.experts / self.used * (1 - (1 - self.used / self.experts)**rows)  # in those of one row
        return (1 - self.share) * pass_cost(rows) + self.share * read * pass_cost(rows / read) + state


DENSE = PassCost()
"""Of a model without experts."""


class PromptLookup:
    """Guesses that a text goes on as it did when its last few tokens occurred before."""

    def __init__(self, tokens: Sequence[int] = ()) -> None:
        self._text = ""  # a character stands for each token: four bytes at most, and searched by compiled code
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        """More text."""
        self._text = (self._text + "".join(chr(min(token, sys.maxunicode)) for token in tokens[-_WINDOW:]))[-_WINDOW:]

    def guess(self, count: int) -> list[int]:
        """Up to `count` tokens that may come next."""
        size = len(self._text)
        for gram in _GRAMS:
            place = self._text.rfind(self._text[-gram:], max(0, size - _REACH - gram), size - 1) + gram
            if gram <= place:
                return [ord(each) for each in self._text[place:place + count]]
        return []


class Pace:
    """How many guesses to make: as many as pay by the share of right ones, none for a while when
    none do.

    Guesses that are cheap to make and dear to try are only compared at first, and after each pause:
    such a trial costs no row.
    """

    def __init__(self, cost: float = 0.0, pass_cost: PassCost = DENSE, trials: int = 0) -> None:
        """`cost` of making one guess, in passes of one row; `trials`: guesses that are compared
        before any is tried."""
        self._trials, self.trials, self._right = trials, trials, 0  # of those compared, so many were right
        self._cost, self._pass_cost, self._first = cost, pass_cost, _HOPED if pass_cost.share else _FIRST
        self._share = self._first
        self._rest, self._patience = 0, _PATIENCE
        self._known: dict[tuple[int, float], tuple[int, float]] = {}  # what is best, by answers and share

    def gain(self, guesses: int, answers: int, share: float | None = None) -> float:
        """Tokens per cost with so many guesses for each of `answers` in a pass, if a `share` of
        guesses is right, by default the expected one; 1 without guesses."""
        share = self._share if share is None else share
        tokens, one = sum(share**i for i in range(guesses + 1)), self._pass_cost(answers)
        cost = self._cost * (answers / one if self._trials else 1.0)  # a layer guesses for one text after the other
        return tokens / (self._pass_cost(answers * (1 + guesses)) / one + guesses * cost)

    def best(self, answers: int = 1) -> float:
        """The most tokens per cost that guesses give an answer; 1 while none are made."""
        if self._rest or self.trials:
            return 1.0
        gain = self._best(answers, self._share)[1]
        return gain if not self._trials or gain >= _WORTH else 1.0

    def _best(self, answers: int, share: float) -> tuple[int, float]:
        """The number of guesses that gives most if a share is right, and what it gives. Each pass
        asks, and shares change seldom."""
        if (answers, share) not in self._known:
            if len(self._known) >= _KNOWN:
                self._known.clear()
            gains = [self.gain(guesses, answers, share) for guesses in range(LONGEST + 1)]
            self._known[answers, share] = gains.index(max(gains)), max(gains)
        return self._known[answers, share]

    def count(self, answers: int = 1) -> int:
        """Guesses for the next pass, in which `answers` decode."""
        if self._rest:
            self._rest -= 1
            return 0
        if self.trials:  # none is compared where even right ones would pay little
            return int(self._best(answers, 1.0)[1] >= _PROMISE)
        best, gain = self._best(answers, self._share)
        best = 0 if self._trials and gain < _WORTH else best
        if best == 0:
            self._share = max(self._share, _LEAST) if self._trials else self._first
            self._rest, self.trials = self._patience, self._trials
            self._patience = min(2 * self._patience, _MOST_PATIENCE)
        return best

    def record(self, guessed: int, right: int) -> None:
        """Learn from a pass: the first wrong guess decides no more about those after it."""
        if self.trials and guessed:
            self._compare(right)
            return
        memory = _LONG_MEMORY if self._trials else _MEMORY
        for decided in range(min(right + 1, guessed)):
            self._share = memory * self._share + (1 - memory) * (decided < right)
        if 0 < guessed == right:
            self._patience = _PATIENCE

    def _compare(self, right: int) -> None:
        """Learn from a guess that was only compared; after the last one, what share to expect."""
        self.trials, self._right = self.trials - 1, self._right + right
        if not self.trials:
            self._share = (_DOUBT * self._share + self._right) / (_DOUBT + self._trials)
            if not self._right:  # all were wrong: the next ones come later still
                self._patience = min(2 * self._patience, _MOST_PATIENCE)
            self._right = 0


class Speculation:
    """The guesses of one answer: from its own text, or from a helper of `draft_cost` for a guess,
    of which the first `trials` are only compared."""

    def __init__(self, prompt: Sequence[int], draft_cost: float | None = None,
                 pass_cost: PassCost = DENSE, trials: int = 0) -> None:
        self._lookup, self._lookup_pace = PromptLookup(prompt), Pace(0.0, pass_cost)
        self._draft_pace = None if draft_cost is None else Pace(draft_cost, pass_cost, trials)
        self.tokens = array("i", () if self._draft_pace is None else prompt)  # for the draft: of prompt and answer
        self._guess_count, self._by_draft = 0, False
        self._compared: int | None = None  # a guess that is not tried

    def guess(self, room: int, answers: int = 1) -> list[int]:
        """Guesses from the text for the next pass of `answers` answers, at most `room`. None where
        those of the helper have paid more."""
        self._guess_count, self._by_draft = 0, False
        if self._draft_pace is not None and self._draft_pace.best(answers) > self._lookup_pace.best(answers):
            return []
        guesses = self._lookup.guess(min(self._lookup_pace.count(answers), room)) if room > 0 else []
        self._guess_count, self._by_draft = len(guesses), False
        return guesses

    def draft_count(self, room: int, answers: int = 1) -> int:
        """How many guesses of a helper pay in the next pass, when the text has none."""
        return 0 if self._draft_pace is None or room < 1 else min(self._draft_pace.count(answers), room)

    def offer(self, guesses: list[int]) -> list[int]:
        """Tell what the helper guessed; those of it that are to be tried."""
        if self._draft_pace is not None and self._draft_pace.trials and guesses:
            self._compared = guesses[0]
            guesses = []
        self._guess_count, self._by_draft = len(guesses), True
        return guesses

    def correct(self, count: int) -> None:
        """Tell how many of the guesses are tried, and so say how good guesses are; 0 where others
        took their place."""
        self._guess_count = count

    def settle(self, chosen: list[int]) -> None:
        """Tell what was chosen in the pass: right guesses, and one token more."""
        pace = self._draft_pace if self._by_draft else self._lookup_pace
        if self._compared is not None and self._draft_pace is not None:
            self._draft_pace.record(1, int(chosen[:1] == [self._compared]))
            self._compared = None
        elif pace is not None:
            pace.record(self._guess_count, len(chosen) - 1)
        self._lookup.extend(chosen)
        if self._draft_pace is not None:
            self.tokens.extend(chosen)
        self._guess_count = 0
