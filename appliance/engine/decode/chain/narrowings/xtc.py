"""`xtc_probability`, `xtc_threshold`: exclude top choices, as llama.cpp has it.

With a probability, all tokens above a threshold go but the least likely of them. p-e-w proposed it
for text-generation-webui.
"""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Narrowing
from appliance.engine.decode.chain.sweeping import Mask, chosen

_DOMAIN = b"appliance sampler xtc v1\0"


def without_top(candidates: Candidates, probability: float, threshold: float) -> Mask | None:
    """All candidates but the excluded. Of equally likely ones the highest id is the least
    likely."""
    if candidates.uniform(_DOMAIN) > probability:
        return None
    scratch, weights = candidates.scratch, candidates.weights()
    floor = max(threshold * exact.total(weights, scratch), math.ulp(0.0))  # without what a mask barred
    top = np.greater_equal(weights, floor, out=scratch.mask[:weights.size])
    logits, places = candidates.logits, np.arange(weights.size)
    some = chosen(top, logits, np.float32(np.inf), scratch.wide.view(np.float32)[:logits.size])
    last = int((places * (some == some.min())).max())
    rest: Mask = ~top | (places == last)
    return rest


STAGE = Narrowing(("xtc_probability", "xtc_threshold"), without_top, loses_best=True)
