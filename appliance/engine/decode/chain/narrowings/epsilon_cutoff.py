"""`epsilon_cutoff`: tokens with at least a probability, in units of 1e-4 as text-generation-webui
has it (arXiv 2210.15191)."""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Narrowing
from appliance.engine.decode.chain.sweeping import Mask

UNIT = 1e-4


def probable(candidates: Candidates, least: float) -> Mask:
    """The candidates whose probability is `least` or more, and of the best."""
    weights = candidates.weights()
    floor = min(least * exact.total(weights, candidates.scratch), 1.0)  # the best weighs 1
    mask: Mask = np.greater_equal(weights, floor, out=candidates.scratch.mask[:weights.size])
    return mask


STAGE = Narrowing(("epsilon_cutoff",), lambda candidates, cutoff: probable(candidates, cutoff * UNIT))
