"""`min_p`: tokens with at least p times the probability of the best."""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Narrowing
from appliance.engine.decode.chain.sweeping import Mask


def likely(candidates: Candidates, share: float) -> Mask:
    """The candidates whose logit is at least the highest plus ln(`share`)."""
    x = candidates.below()
    mask: Mask = np.greater_equal(x, exact.ln(share), out=candidates.scratch.mask[:x.size])
    return mask


STAGE = Narrowing(("min_p",), likely)
