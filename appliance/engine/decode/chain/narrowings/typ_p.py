"""`typical_p`: locally typical sampling (arXiv 2202.00666), as llama.cpp has it.

Tokens come in the order of how far their surprise is from its mean, the entropy. The shortest run
of them stays whose mass is above p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.sweeping import Mask
from appliance.engine.decode.chain.sweeps.left import SweptCandidates


def _distances(candidates: Candidates, whole: float) -> NDArray[np.float64]:
    """How far the surprise of each is from its mean, in `wide`; `whole` is the sum of `weights`."""
    mean = candidates.entropy(candidates.scratch.powers[:candidates.logits.size], whole)
    x = candidates.below()
    np.subtract(exact.ln(whole), x, out=x)  # the surprise of each
    np.subtract(x, mean, out=x)
    return np.abs(x, out=x)


def typical(candidates: Candidates, mass: float) -> Ids:
    """Places of the run; of equally typical tokens the lowest ids come first."""
    scratch, weights = candidates.scratch, candidates.weights()
    whole = exact.total(weights, scratch)
    order = np.argsort(_distances(candidates, whole), kind="stable")
    ordered = np.take(weights, order, out=scratch.wide[:order.size], mode="clip")
    cumulative = np.cumsum(ordered, out=scratch.sums[:order.size])
    return np.sort(order[: int(np.searchsorted(cumulative, mass * whole, side="right")) + 1])


def swept(candidates: SweptCandidates, mass: float) -> Mask:
    """The same of a whole row."""
    scratch = candidates.scratch
    whole = exact.total(candidates.weights(), scratch)
    keys = _distances(candidates, whole).view(np.int64)  # none is below 0: they have the order of the numbers
    ordered = exact.weights(candidates.by(keys), candidates.temperature, scratch)
    cumulative = np.cumsum(ordered, out=scratch.sums[:ordered.size])
    return candidates.first(keys, int(np.count_nonzero(cumulative <= mass * whole)) + 1)


STAGE = Narrowing(("typical_p",), typical, loses_best=True, sweep=swept)
