"""Guesses of the next tokens of answers: tokens that a constraint forces, else from the answer's
own text or from a helper, by what has paid. A helper is a draft model, or the model's own layer
that guesses.

A guess changes no answer (`speculate`), so whatever fails here is done without.
"""

from __future__ import annotations

import collections.abc
from typing import Protocol

from appliance.engine.batch.draft import GuessRequest
from appliance.engine.batch.sequence import Sequence
from appliance.engine.batch.speculate import PassCost, Speculation
from appliance.errors import EngineError, ModelError
from appliance.kernels.layouts.attention import PAGE
from appliance.kernels.layouts.step import LOG_ROWS
from appliance.kernels.runtime.boundary import BatchLimits


class Helper(Protocol):
    """A maker of guesses beside the text itself."""

    @property
    def cost(self) -> float:
        """The cost of a guess, in passes of the model."""

    @property
    def trials(self) -> int:
        """Guesses of a text that are only compared before any is tried."""

    def note(self, slot: int, first: int, tokens: collections.abc.Sequence[int]) -> None:
        """Tell which rows of the last pass a text has, from row `first` on, and the token after
        each."""

    def begin_pass(self) -> None:
        """Tell that the model's rows are overwritten now."""

    def guess(self, asks: collections.abc.Sequence[GuessRequest]) -> list[list[int]]:
        """Guesses for each of some texts."""

    def forget(self, slot: int) -> None:
        """Wipe what was read for a slot of the model."""

    def forget_all(self) -> None:
        """Wipe what was read for any slot."""

    def release(self) -> None:
        """Overwrite every buffer and the cache with zeros."""


class Guesses:
    """The guesses for all running answers, by their slots."""

    def __init__(self, limits: BatchLimits, helper: Helper | None, pass_cost: PassCost) -> None:
        self._limits, self._helper, self._pass_cost = limits, helper, pass_cost
        self._texts: dict[int, Speculation] = {}

    def fix(self, limits: BatchLimits) -> None:
        """Make no more guesses than fit into passes of these limits."""
        self._limits = limits

    def begin(self, sequence: Sequence) -> None:
        """Make guesses for an answer from now on, in the place of another one of its slot."""
        self.forget(sequence.slot)
        cost, trials = (None, 0) if self._helper is None else (self._helper.cost, self._helper.trials)
        prompt = list(sequence.generation.prompt_ids)
        try:
            self._texts[sequence.slot] = Speculation(prompt, cost, self._pass_cost, trials)
        except MemoryError:
            self._texts.clear()

    def forget(self, slot: int) -> None:
        """Make no more guesses for a slot, and wipe what was read for it."""
        self._texts.pop(slot, None)
        if self._helper is not None:
            self._helper.forget(slot)

    def make(self, decoding: list[Sequence]) -> list[list[int]]:
        """Guesses for answers that decode, no more than tokens each may still have after the next,
        or rows that fit."""
        limits, places = self._limits, sum(each.places for each in decoding)
        most = min(limits.rows, limits.wanted) // places - 1
        guesses, asks = list[list[int]](), list[tuple[int, GuessRequest]]()
        for index, each in enumerate(decoding):
            speculation = self._texts.get(each.slot)
            room = max(0, min(each.generation.left - 1, most, limits.context - each.position - len(each.todo)))
            if each.stateful:
                room = min(room, LOG_ROWS)
            if each.noted:  # at the end of a page, without guesses
                room = min(room, (-(each.position + len(each.todo)) % PAGE or PAGE) - 1)
            guesses.append([] if speculation is None else self._own(each, speculation, room, places))
            if speculation is not None and not guesses[index]:
                count = speculation.draft_count(room, places)
                if count:
                    asks.append((index, GuessRequest(each.slot, speculation.tokens, count)))
        for (index, ask), tokens in zip(asks, self._from_helper([ask for _, ask in asks]), strict=False):
            speculation = self._texts[ask.slot]
            guesses[index] = self._within(decoding[index], speculation, speculation.offer(tokens))
        return guesses

    def begin_pass(self) -> None:
        """Tell the helper that the model's rows are overwritten now."""
        if self._helper is not None:
            self._helper.begin_pass()

    def note(self, sequence: Sequence, first: int, tokens: list[int]) -> None:
        """Tell the helper which rows an answer had in a pass, and the token after each."""
        if self._helper is not None and sequence.slot in self._texts:
            self._helper.note(sequence.slot, first, tokens)

    def settle(self, sequence: Sequence, tokens: list[int]) -> None:
        """Learn the tokens that were chosen in a pass."""
        speculation = self._texts.get(sequence.slot)
        if speculation is not None:
            try:
                speculation.settle(tokens)
            except MemoryError:  # give back what guesses take, which no answer needs
                self._texts.clear()

    def _own(self, sequence: Sequence, speculation: Speculation, room: int, places: int) -> list[int]:
        """Guesses for an answer: the tokens that its constraint forces, else from its text."""
        constraint = sequence.generation.constraint
        if constraint is not None and (forced := constraint.forced_tokens(room)):
            speculation.correct(0)
            return forced
        return self._within(sequence, speculation, speculation.guess(room, places))

    @staticmethod
    def _within(sequence: Sequence, speculation: Speculation, guesses: list[int]) -> list[int]:
        """Guesses that a constraint allows."""
        constraint = sequence.generation.constraint
        if constraint is None or not guesses:
            return guesses
        guesses = constraint.allowed_prefix(guesses)
        speculation.correct(len(guesses))
        return guesses

    def _from_helper(self, asks: list[GuessRequest]) -> list[list[int]]:
        """Guesses of the helper; none without one. If it fails, because its disk lies, say, it
        is asked no more, and what it read is wiped: no answer needs it."""
        if self._helper is None or not asks:
            return []
        try:
            return self._helper.guess(asks)
        except (EngineError, ModelError):
            self._helper.forget_all()
            self._helper = None
            return []
