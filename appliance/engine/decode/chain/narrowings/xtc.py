"""`xtc_probability`, `xtc_threshold`: exclude top choices, as llama.cpp has it.

With a probability, all tokens above a threshold go but the least likely of them. p-e-w proposed it
for text-generation-webui.
"""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing

_DOMAIN = b"appliance sampler xtc v1\0"


def without_top(candidates: Candidates, probability: float, threshold: float) -> Ids | None:
    """Places of all candidates but the excluded. Of equally likely ones the highest id is the least
    likely."""
    if candidates.uniform(_DOMAIN) > probability:
        return None
    scratch, weights = candidates.scratch, candidates.weights()
    floor = max(threshold * exact.total(weights, scratch), math.ulp(0.0))  # without what a mask barred
    top = np.flatnonzero(np.greater_equal(weights, floor, out=scratch.mask[:weights.size]))
    if top.size < 2:
        return None
    logits = np.take(candidates.logits, top[::-1], out=scratch.wide.view(np.float32)[:top.size], mode="clip")
    last = top[::-1][logits.argmin()]
    return np.setdiff1d(np.arange(weights.size), top[top != last], assume_unique=True)


STAGE = Narrowing(("xtc_probability", "xtc_threshold"), without_top, loses_best=True)
