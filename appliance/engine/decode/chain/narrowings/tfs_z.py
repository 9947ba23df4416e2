"""`tfs_z`: tail-free sampling, as llama.cpp had it until October 2024.

Probabilities, the highest first, are a curve. The share of its curvature up to a token says whether
the token lies in the tail.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.ordering import descending

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


STAGE = Narrowing(("tfs_z",), head)
