"""Bounds from a classifier's answers on trials that it did not learn from: the share of right
ones, and bits.

Bits are the mutual information between the secret and the classifier's score, in eight bins, less
the bias by Miller and Madow. The observation tells at least as much as the score. No observation
tells more than 2p - 1 bits where the best share of right answers is p, which bounds
the bits (Hellman and Raviv, IEEE Transactions on Information Theory 16, 1970).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.tenants.judging import bound

BINS, DRAWS = 8, 400
Floats = NDArray[np.float64]
Bits = NDArray[np.bool_]


@dataclass(frozen=True)
class Verdict:
    """The result of a classifier: trials held out, right answers, and bits, each with its one-sided
    bound of 95%."""

    trials: int
    right: int
    bits: float
    bits_at_least: float
    bits_at_most: float

    @property
    def share(self) -> float:
        """The share of right answers."""
        return self.right / self.trials

    @property
    def at_least(self) -> float:
        """Its lower bound, by Clopper and Pearson."""
        return bound(self.trials, self.right, upper=False)

    @property
    def at_most(self) -> float:
        """Its upper bound."""
        return bound(self.trials, self.right, upper=True)


def plain_bits(counts: Floats) -> Floats:
    """Return the mutual information of tables of counts, (…, secrets, bins), in bits."""
    total = counts.sum(axis=(-2, -1), keepdims=True)
    expected = counts.sum(axis=-1, keepdims=True) * counts.sum(axis=-2, keepdims=True) / total
    ratio = np.divide(counts, expected, out=np.ones_like(counts), where=counts > 0)
    return np.asarray((counts * np.log2(ratio)).sum(axis=(-2, -1)) / total[..., 0, 0])


def bias(counts: Floats) -> float:
    """Return by how much `plain_bits` is too large on average without a leak (Miller, Madow)."""
    bins, secrets = int((counts.sum(axis=0) > 0).sum()), int((counts.sum(axis=1) > 0).sum())
    return (bins - 1) * (secrets - 1) / (2 * counts.sum() * math.log(2))


def table(scores: Floats, secrets: Bits) -> Floats:
    """Return how often each bin of a score came with each secret."""
    edges = np.unique(np.quantile(scores, np.linspace(0, 1, BINS + 1)[1:-1]))
    places = np.digitize(scores, edges)
    return np.array([np.bincount(places[secrets == secret], minlength=len(edges) + 1) for secret in (False, True)],
                    float)


def judged(scores: Floats, secrets: Bits) -> Verdict:
    """Judge scores, which are probabilities that the secret bit is set."""
    counts = table(scores, secrets)
    draw, drift = np.random.default_rng(1), bias(counts)
    drawn = draw.multinomial(int(counts.sum()), (counts / counts.sum()).ravel(), DRAWS).reshape(DRAWS, *counts.shape)
    again = plain_bits(drawn.astype(float)) - 2 * drift
    found = max(0.0, float(plain_bits(counts)) - drift)
    low, high = np.quantile(again, [0.05, 0.95])
    return Verdict(len(secrets), int(((scores > 0.5) == secrets).sum()), found, max(0.0, float(min(low, found))),
                   max(float(high), found))
