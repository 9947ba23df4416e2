"""How well one bit can be guessed from what was observed: a classifier that learns on one half of
the trials and is judged on the other, in turns.

Each feature is cut into bins by the learning half. Two judges learn: naive Bayes over all features,
and the best single feature by the majority in each bin. The better one on its own half judges the
other half. The bound of its share of right answers is that of Clopper and Pearson.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

BINS = 16
CONFIDENCE = 0.95

Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Verdict:
    """The result of a judge."""

    trials: int
    right: int

    @property
    def share(self) -> float:
        """The share of right answers."""
        return self.right / self.trials

    @property
    def at_most(self) -> float:
        """The upper bound of the true share, one-sided."""
        return bound(self.trials, self.right, upper=True)

    @property
    def at_least(self) -> float:
        """The lower bound of it."""
        return bound(self.trials, self.right, upper=False)


def tail(trials: int, right: int, chance: float) -> float:
    """The probability of at most `right` in so many trials."""
    if not 0 < chance < 1:
        return 1.0 if chance <= 0 or right >= trials else 0.0
    counts = np.arange(right + 1, dtype=np.float64)
    logs = np.array([math.lgamma(count + 1) + math.lgamma(trials - count + 1) for count in counts])
    terms = math.lgamma(trials + 1) - logs + counts * math.log(chance) + (trials - counts) * math.log1p(-chance)
    return float(min(1.0, np.exp(terms).sum()))


def bound(trials: int, right: int, *, upper: bool) -> float:
    """Clopper and Pearson's one-sided bound of a share, at `CONFIDENCE`."""
    if not upper:
        return 1 - bound(trials, trials - right, upper=True)
    low, high = right / trials, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(trials, right, middle) > 1 - CONFIDENCE else (low, middle)
    return high


def _bins(learned: Floats, values: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The bin of each value of both halves: one for each value where there are few, else quantiles.
    """
    found = np.unique(learned)
    edges = (found[1:] + found[:-1]) / 2 if found.size <= BINS else np.unique(
        np.quantile(learned, np.linspace(0, 1, BINS + 1)[1:-1]))
    return np.digitize(learned, edges), np.digitize(values, edges)


def _judge(learned: Floats, bits: Bits, values: Floats) -> Bits:
    """The answers for `values`, by what was learned."""
    prior = math.log((bits.sum() + 1) / ((~bits).sum() + 1))
    odds, odds_there = np.full(len(bits), prior), np.full(len(values), prior)
    best: tuple[float, Bits] = (-1.0, np.zeros(len(values), bool))
    for column in range(learned.shape[1]):
        here, there = _bins(learned[:, column], values[:, column])
        bins = int(max(here.max(), there.max())) + 1
        ones, zeros = np.bincount(here[bits], minlength=bins), np.bincount(here[~bits], minlength=bins)
        weight = np.log((ones + 1) / (bits.sum() + bins)) - np.log((zeros + 1) / ((~bits).sum() + bins))
        odds, odds_there = odds + weight[here], odds_there + weight[there]
        majority = ones > zeros
        best = max(best, (float((majority[here] == bits).mean()), majority[there]), key=lambda pair: pair[0])
    return odds_there > 0 if float(((odds > 0) == bits).mean()) >= best[0] else best[1]


def judge(features: Sequence[Sequence[float]], secrets: Sequence[bool]) -> Verdict:
    """Tell the secret bits of trials from their features; each trial is judged once, by what the
    other half taught."""
    table, bits = np.array(features, np.float64), np.array(secrets, bool)
    half = np.random.default_rng(1).permutation(len(bits)) % 2 == 0
    right = sum(int((_judge(table[learning], bits[learning], table[~learning]) == bits[~learning]).sum())
                for learning in (half, ~half))
    return Verdict(len(bits), right)
