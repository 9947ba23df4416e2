"""`min_p`: tokens with at least p times the probability of the best."""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing


def likely(candidates: Candidates, share: float) -> Ids | None:
    """Places of candidates whose logit is at least the highest plus ln(`share`)."""
    x = candidates.below()
    return np.flatnonzero(np.greater_equal(x, exact.ln(share), out=candidates.scratch.mask[:x.size]))


STAGE = Narrowing(("min_p",), likely)
