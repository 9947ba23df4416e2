"""`typical_p`: locally typical sampling (arXiv 2202.00666), as llama.cpp has it.

Tokens come in the order of how far their surprise is from its mean, the entropy. The shortest run
of them stays whose mass is above p.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing


def typical(candidates: Candidates, mass: float) -> Ids:
    """Places of the run; of equally typical tokens the lowest ids come first."""
    scratch, weights = candidates.scratch, candidates.weights()
    whole = exact.total(weights, scratch)
    mean = candidates.entropy(weights, whole)
    x = candidates.below()
    np.subtract(exact.ln(whole), x, out=x)  # the surprise of each
    np.subtract(x, mean, out=x)
    order = np.argsort(np.abs(x, out=x), kind="stable")
    ordered = np.take(weights, order, out=scratch.wide[:order.size], mode="clip")
    cumulative = np.cumsum(ordered, out=scratch.sums[:order.size])
    return np.sort(order[: int(np.searchsorted(cumulative, mass * whole, side="right")) + 1])


STAGE = Narrowing(("typical_p",), typical, loses_best=True)
