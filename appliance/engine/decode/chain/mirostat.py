"""`mirostat` 1 and 2 (arXiv 2007.14966), as llama.cpp has them: keep so many candidates that the
surprise of tokens stays near a target. It stands last in a chain, and replaces what narrows."""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, below

_LN2 = 0.6931471805599453
_ESTIMATED = 100  # candidates that version 1 estimates the exponent of Zipf's law from
_STEPS = np.array([exact.ln((rank + 2) / (rank + 1)) for rank in range(_ESTIMATED - 1)])


class Mirostat:
    """The state of one answer: the most surprise that a token may have, in bits."""

    def __init__(self, version: int, target: float, rate: float, vocabulary: int) -> None:
        """`version` 1 or 2; `target` and `rate` are llama.cpp's `mirostat_tau` and `mirostat_eta`.
        """
        self._version, self._target, self._rate, self._vocabulary = version, target, rate, vocabulary
        self._most = 2.0 * target
        self._surprise = target  # of the token that was drawn last

    def narrow(self, candidates: Candidates) -> None:
        """Keep the candidates that are to be drawn from."""
        if self._version == 1:
            self._first(candidates)
        else:
            self._second(candidates)

    def drew(self, candidates: Candidates, place: int, whole: float) -> None:
        """Take note of the token at a place, of weights that are `whole` together."""
        self._surprise = (exact.ln(whole) - candidates.at(candidates.below(), place)) / _LN2

    def accept(self) -> None:
        """Record that the token drawn last became part of the answer."""
        self._most -= self._rate * (self._surprise - self._target)

    def _second(self, candidates: Candidates) -> None:
        """Keep candidates of no more surprise than the most; at least the best."""
        weights = candidates.weights()
        floor = min(exact.ln(exact.total(weights, candidates.scratch)) - self._most * _LN2, 0.0)
        x = candidates.below()
        candidates.keep_or_best(np.greater_equal(x, floor, out=candidates.scratch.mask[:x.size]), enough=floor < 0.0)

    def _first(self, candidates: Candidates) -> None:
        """Keep the k highest, with k from an estimate of how steep the distribution is."""
        count = candidates.count
        k = self._k(candidates) if count > 1 or candidates.whole else 1
        candidates.keep(candidates.highest(k) if k < count or candidates.whole else None)

    def _k(self, candidates: Candidates) -> int:
        """How many to keep; all where there is no estimate."""
        count, scratch = max(min(candidates.count, _ESTIMATED), 2), candidates.scratch  # behind one is a hole
        rows = min(self._vocabulary, _ESTIMATED) if candidates.whole else count
        ordered = below(candidates.best(rows), scratch, candidates.temperature)
        steps = np.where(np.arange(rows - 1) < count - 1, _STEPS[:rows - 1], 0.0)  # holes add nothing
        falls = np.subtract(ordered[:-1], ordered[1:], out=scratch.sums[:rows - 1])
        np.multiply(falls, steps, out=falls)
        slope = float(np.cumsum(falls, out=scratch.powers[:rows - 1])[-1]) / float(np.cumsum(steps * steps)[-1])
        if slope <= 0.0:
            return candidates.count
        excess = slope - 1.0
        names = exact.ln(float(self._vocabulary))
        spread = names if excess == 0.0 else (1.0 - exact.exp(-excess * names)) / excess
        if spread <= 0.0:
            return candidates.count
        size = (self._most * _LN2 - exact.ln(spread)) / slope
        return candidates.count if size >= exact.ln(float(candidates.count)) else max(math.floor(exact.exp(size)), 1)
