"""`tfs_z`: tail-free sampling, as llama.cpp had it until October 2024.

Probabilities, the highest first, are a curve. The share of its curvature up to a token says whether
the token lies in the tail.
"""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.ordering import descending
from appliance.engine.decode.chain.sweeping import Mask
from appliance.engine.decode.chain.sweeps.left import SweptCandidates

_FLAT = 1e-6  # a curvature that is no more than this is taken as the same everywhere


def head(candidates: Candidates, share: float) -> Ids | None:
    """Places of the most probable up to where the curvature's share is above `share`; None where
    there are no more than two."""
    count, scratch = candidates.count, candidates.scratch
    if count <= 2:
        return None
    weights = candidates.weights()
    whole = exact.total(weights, scratch)
    order = descending(candidates.logits, np.arange(count), scratch)
    curve = np.take(weights, order, out=scratch.wide[:count], mode="clip")
    np.divide(curve, whole, out=curve)
    slope = np.subtract(curve[:-1], curve[1:], out=scratch.powers[:count - 1])
    bend = np.subtract(slope[:-1], slope[1:], out=scratch.sums[:count - 2])
    np.abs(bend, out=bend)
    cumulative = np.cumsum(bend, out=scratch.powers[:count - 2])
    bent = float(cumulative[-1])
    if bent > _FLAT:
        np.divide(bend, bent, out=bend)
    else:
        bend.fill(1.0 / bend.size)
    cumulative = np.cumsum(bend, out=scratch.powers[:count - 2])
    place = int(np.searchsorted(cumulative, share, side="right"))
    return None if place == count - 2 else np.sort(order[:max(place, 1)])


def swept(candidates: SweptCandidates, share: float) -> Ids | Mask:
    """The same of a whole row: what lies behind the candidates has no curvature."""
    scratch, bends = candidates.scratch, max(candidates.count - 2, 0)
    whole = exact.total(candidates.weights(), scratch)
    ordered = exact.weights(candidates.ordered(), candidates.temperature, scratch)
    size = ordered.size
    curve = np.divide(ordered, whole, out=scratch.wide[:size])
    slope = np.subtract(curve[:-1], curve[1:], out=scratch.powers[:size - 1])
    bend = np.subtract(slope[:-1], slope[1:], out=scratch.sums[:size - 2])
    inside = candidates.places[:size - 2] < bends
    np.multiply(np.abs(bend, out=bend), inside, out=bend)
    cumulative = scratch.powers[:size - 2]
    bent = float(np.cumsum(bend, out=cumulative)[-1])
    flat = bent <= _FLAT
    np.divide(bend, math.inf if flat else bent, out=bend)
    np.add(bend, np.multiply(inside, flat / max(bends, 1), out=cumulative), out=bend)
    place = int(np.count_nonzero((np.cumsum(bend, out=cumulative) <= share) & inside))
    return candidates.highest(candidates.count if place == bends else max(place, 1))


STAGE = Narrowing(("tfs_z",), head, sweep=swept)
