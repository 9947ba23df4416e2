"""`top_p`: the shortest run of the most probable tokens whose mass reaches p. Ties are kept by
lowest id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.ordering import descending
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import Mask
from appliance.engine.decode.chain.sweeps.left import SweptCandidates

_SLACK = 1e-9  # share of the sum, far above what rounding moves


def _heavy(weights: NDArray[np.float64], least: float, scratch: Scratch) -> Ids:
    """Places, ascending, of weights that may be in the shortest run of the heaviest whose sum is
    `least` or more.

    Outside of the run is `rest`. Of n weights, those lighter than rest / n weigh less than that,
    all together.
    """
    rest = float(weights.sum()) - least  # however it is rounded: `least` is above the target by more
    return np.flatnonzero(np.greater_equal(weights, rest / weights.size, out=scratch.mask[:weights.size]))


def nucleus(candidates: Candidates, mass: float) -> Ids:
    """Places of the shortest run of the most probable whose share of the mass is `mass`."""
    scratch, weights = candidates.scratch, candidates.weights()
    whole = exact.total(weights, scratch)
    target = mass * whole
    places = _heavy(weights, target + _SLACK * whole, scratch)
    some = np.take(weights, places, out=scratch.sums[:places.size], mode="clip")
    places = places[_heavy(some, target + _SLACK * whole, scratch)]
    order = descending(candidates.logits, places, scratch)
    ordered = np.take(weights, order, out=scratch.wide[:order.size], mode="clip")
    cumulative = np.cumsum(ordered, out=scratch.sums[:order.size])
    return np.sort(order[: int(np.searchsorted(cumulative, target, side="left")) + 1])


def swept(candidates: SweptCandidates, mass: float) -> Ids | Mask:
    """The same of a whole row."""
    scratch = candidates.scratch
    target = mass * exact.total(candidates.weights(), scratch)
    ordered = exact.weights(candidates.ordered(), candidates.temperature, scratch)
    cumulative = np.cumsum(ordered, out=scratch.sums[:ordered.size])
    return candidates.highest(int(np.count_nonzero(cumulative < target)) + 1)


STAGE = Narrowing(("top_p",), nucleus, sweep=swept)
