"""The constraint's mask: tokens that may not come next get the logit -inf, after all adjustments.
"""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Logits
from appliance.errors import EngineError


def restrict(logits: Logits, mask: bytes, scratch: Scratch) -> None:
    """Change `logits` (vocabulary,) in place. `mask` has a bit for each token, the first in the
    lowest bit of the first byte. EngineError where no token is left that has a chance."""
    bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=logits.size)
    barred = np.equal(bits, 0, out=scratch.mask[:logits.size])
    np.copyto(logits, -np.inf, where=barred)
    if not np.isfinite(logits.max()):
        raise EngineError("no token that the constraint allows has a chance", code="constraint-stuck")
