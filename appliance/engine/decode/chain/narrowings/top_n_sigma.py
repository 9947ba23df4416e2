"""`top_n_sigma`: tokens whose logit lies no more than n standard deviations below the highest
(arXiv 2411.07641), as llama.cpp has it."""

from __future__ import annotations

import math

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import LOWEST, Candidates, Narrowing
from appliance.engine.decode.chain.sweeping import Mask
from appliance.engine.decode.chain.sweeps.left import SweptCandidates


def near(candidates: Candidates, deviations: float) -> Mask:
    """The logits that are near enough. Logits that a mask bars do not count."""
    scratch, x = candidates.scratch, candidates.below()
    allowed = np.flatnonzero(np.greater(x, LOWEST, out=scratch.mask[:x.size]))
    some = np.take(x, allowed, out=scratch.powers[:allowed.size], mode="clip")
    mean = exact.total(some, scratch) / some.size
    np.subtract(some, mean, out=some)
    np.multiply(some, some, out=some)
    deviation = math.sqrt(exact.total(some, scratch) / some.size)
    x = candidates.below()
    mask: Mask = np.greater_equal(x, -deviations * deviation, out=scratch.mask[:x.size])
    return mask


def swept(candidates: SweptCandidates, deviations: float) -> Mask:
    """The same of a whole row."""
    scratch, x = candidates.scratch, candidates.below()
    some = scratch.powers[:x.size]
    count = candidates.packed(x, np.greater(x, LOWEST, out=scratch.mask[:x.size]), some)
    mean = exact.total(some, scratch) / count
    np.subtract(some, mean, out=some)
    np.multiply(some, candidates.places[:some.size] < count, out=some)
    np.multiply(some, some, out=some)
    deviation = math.sqrt(exact.total(some, scratch) / count)
    mask: Mask = np.greater_equal(x, -deviations * deviation, out=scratch.mask[:x.size])
    return mask


STAGE = Narrowing(("top_n_sigma",), near, sweep=swept)
