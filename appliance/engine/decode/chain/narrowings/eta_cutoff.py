"""`eta_cutoff`: tokens with at least a probability that falls with the entropy (arXiv 2210.15191),
in units of 1e-4 as text-generation-webui has it."""

from __future__ import annotations

import math

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Narrowing
from appliance.engine.decode.chain.narrowings.epsilon_cutoff import UNIT, probable
from appliance.engine.decode.chain.sweeping import Mask


def surprising(candidates: Candidates, cutoff: float) -> Mask:
    """The candidates whose probability is the lesser of ε and √ε · e^-entropy, or more."""
    weights = candidates.weights()
    entropy = candidates.entropy(weights, exact.total(weights, candidates.scratch))
    epsilon = cutoff * UNIT
    return probable(candidates, min(epsilon, math.sqrt(epsilon) * exact.exp(-entropy)))


STAGE = Narrowing(("eta_cutoff",), surprising)
