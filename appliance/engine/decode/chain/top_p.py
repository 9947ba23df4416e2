"""`top_p`: the shortest run of the most probable tokens whose mass reaches p. Ties are kept by
lowest id."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain.ordering import descending
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Ids, Logits, Narrowing


def _heavy(weights: NDArray[np.float64], target: float, scratch: Scratch) -> Ids:
    """Places, ascending, of weights that may be in the shortest run of the heaviest whose sum is
    `target`.

    Outside of the run is `rest`. Of n weights, those lighter than rest / n weigh less than that,
    all together.
    """
    rest = float(weights.sum()) - target
    return np.flatnonzero(np.greater_equal(weights, rest / weights.size, out=scratch.mask[:weights.size]))


def nucleus(logits: Logits, mass: float, scratch: Scratch) -> Ids:
    """Ids, ascending, of the shortest run of the most probable whose share of the mass is `mass`.
    """
    weights = scratch.exponentials(logits)
    target = mass * float(weights.sum())
    ids = _heavy(weights, target, scratch)
    ids = ids[_heavy(np.take(weights, ids, out=scratch.sums[:ids.size], mode="clip"), target, scratch)]
    order = descending(logits, ids, scratch)
    ordered = np.take(weights, order, out=scratch.wide[:order.size], mode="clip")
    cumulative = np.cumsum(ordered, out=scratch.sums[:order.size])
    return np.sort(order[: int(np.searchsorted(cumulative, target, side="left")) + 1])


STAGE = Narrowing("top_p", nucleus)
