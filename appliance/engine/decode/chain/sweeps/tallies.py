"""Adjustments of single tokens by rows with an entry for each token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Logits
from appliance.engine.decode.chain.dry import MOST, MOST_LN, Dry
from appliance.engine.decode.chain.penalties import Bias, CountPenalty, Repeats
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import Mask, Sweep, Whole, Wide, chosen
from appliance.errors import EngineError

_MINUS_ZERO = np.int32(-1 << 31)


def _sweep(scratch: Scratch) -> Sweep:
    if scratch.sweep is None:
        raise EngineError("rows of tokens without memory for them")
    return scratch.sweep


def _put(mask: Mask, changed: Logits, logits: Logits) -> None:
    """Write what has changed where the mask says so."""
    np.copyto(logits, chosen(mask, changed, logits, changed))


class TallyBias(Bias):
    """`Bias` by a row of biases."""

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        row = _sweep(scratch).sums(self._ids.tolist(), self._bias.view(np.int32) ^ _MINUS_ZERO)
        bias = np.bitwise_xor(row, _MINUS_ZERO, out=row).view(np.float32)  # -0.0, which changes nothing, by default
        np.add(logits, bias, out=logits)


class TallyRepeats(Repeats):
    """`Repeats` by a row of marks."""

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        penalty, positive = np.float32(self._penalty), np.greater(logits, 0, out=scratch.mask[:logits.size])
        with np.errstate(over="ignore"):
            less = np.divide(logits, penalty, out=scratch.some[:logits.size])
            more = np.multiply(logits, penalty, out=scratch.wide.view(np.float32)[:logits.size])
        chosen(positive, less, more, less)
        _put(_sweep(scratch).sums(self._tail, highest=True) > 0, less, logits)


class TallyCounts(CountPenalty):
    """`CountPenalty` by a row of counts, which is kept from token to token."""

    def __init__(self, frequency: float, presence: float) -> None:
        super().__init__(frequency, presence)
        self._tokens: list[int] = []  # that are not in the row yet
        self._row: Whole | None = None

    def asks(self) -> bool:
        """Tell whether the request asks for it."""
        return (self._frequency != 0.0 or self._presence != 0.0) and (bool(self._tokens) or self._row is not None)

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        times = _sweep(scratch).sums(self._tokens, before=self._row)
        self._row = np.zeros(logits.size, np.int32) if self._row is None else self._row
        np.copyto(self._row, times)
        self._tokens.clear()
        wide, less = scratch.wide[:logits.size], scratch.some[:logits.size]
        np.multiply(times, self._frequency, out=wide)
        np.copyto(less, np.add(wide, self._presence, out=wide), casting="same_kind")
        _put(times > 0, np.subtract(logits, less, out=less), logits)

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""
        self._tokens.append(token)


class TallyDry(Dry):
    """`Dry` by a row of penalties. Each place of the text is worked on for each token of it."""

    def __init__(self, multiplier: float, base: float, allowed: int, last: int, prompt: Sequence[int],
                 breakers: Sequence[Sequence[int]]) -> None:
        super().__init__(multiplier, base, allowed, last, (), breakers)
        self._breakers = [np.array(each, np.int64) for each in breakers]
        for token in prompt[-last:] if last > 0 else prompt:
            self.accept(token)

    def apply(self, logits: Logits, scratch: Scratch) -> None:
        """Adjust the logits in place."""
        window = self._window()
        start = self._count - window
        runs = np.minimum(self._runs[start:self._count - 1], np.arange(1, window))
        runs = np.minimum(runs, self._after_breaker(self._tokens[start:self._count]))
        following, free = self._tokens[start + 1:self._count], runs >= self._allowed
        for each in self._breakers:
            free &= (following != each[0]) | (each.size > 1)
        row = _sweep(scratch).sums(following.tolist(), self._penalties(runs) * free, highest=True)
        np.subtract(logits, row.view(np.float32), out=logits)

    def _penalties(self, runs: Wide) -> Whole:
        """The penalty of each length, as the bits of a float32: they have the order of the numbers.
        """
        powers = exact.exps(np.minimum(np.maximum(runs - self._allowed, 0) * exact.ln(self._base), MOST_LN))
        return np.minimum(self._multiplier * powers, MOST).astype(np.float32).view(np.int32)

    def accept(self, token: int) -> None:
        """Take note of a chosen token."""
        if self._last and self._multiplier:
            self._make_room()
            tokens, runs = self._tokens[:self._count], self._runs[:self._count]
            runs[1:] = runs[:-1] + 1
            runs[:1] = 1
            runs *= tokens == token
            self._tokens[self._count] = token
            self._count += 1

    def _after_breaker(self, tokens: Wide) -> int:
        """How many tokens there are after the last breaker; all of them where there is none."""
        place, unit = 0, self._reach + 1
        for each in self._breakers:
            if each.size <= tokens.size:
                heads = np.arange(tokens.size - each.size + 1)
                match = np.ones(heads.size, np.bool_)
                for number, token in enumerate(each):
                    match &= tokens[number:number + heads.size] == token
                place = max(place, int(((heads * unit + each.size) * match).max()))
        return tokens.size - place // unit - place % unit if place else tokens.size
