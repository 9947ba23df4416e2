"""`guidance_scale`: classifier-free guidance (arXiv 2306.17806), as transformers and llama.cpp have
it.

A second text, the negative prompt and the same answer, has logits of its own. The logits go away
from those, as far as the scale says. It comes before everything else of the chain.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates, Logits, below
from appliance.engine.decode.chain.scratch import Scratch
from appliance.errors import EngineError


def guide(candidates: Candidates, negative: Logits, scale: float) -> None:
    """Make each logit n + `scale` · (l - n), of the logarithms of its probabilities: l of the
    text's own, n of the `negative` logits (vocabulary,). The logarithms are no less than `LOWEST`
    below the highest."""
    logits, scratch = candidates.adjustable(), candidates.scratch
    if negative.shape != logits.shape or not np.isfinite(negative.max()):
        raise EngineError("the model produced logits of the negative prompt that are not numbers")
    whole, other = _whole(logits, scratch), _whole(negative, scratch)
    own = scratch.powers[:logits.size]
    np.subtract(below(logits, scratch), whole, out=own)
    against = below(negative, scratch)
    np.subtract(against, other, out=against)
    np.subtract(own, against, out=own)
    np.multiply(own, scale, out=own)
    np.add(own, against, out=own)
    with np.errstate(over="ignore"):
        np.copyto(logits, own, casting="same_kind")
    candidates.bound()


def _whole(logits: Logits, scratch: Scratch) -> float:
    """The logarithm of the sum of weights."""
    return exact.ln(exact.total(exact.weights(logits, 1.0, scratch), scratch))
