"""`min_p`: tokens with at least p times the probability of the best."""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Ids, Logits, Narrowing


def likely(logits: Logits, share: float, scratch: Scratch) -> Ids | None:
    """Places of logits that are no lower than the highest plus ln(`share`)."""
    floor = float(logits.max()) + math.log(share)
    wide = scratch.widened(logits)
    return np.flatnonzero(np.greater_equal(wide, floor, out=scratch.mask[:wide.size]))


STAGE = Narrowing("min_p", likely)
