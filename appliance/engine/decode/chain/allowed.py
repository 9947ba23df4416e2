"""The tokens that may come next are the only candidates: a constraint's mask allows them, and the
model's file does not suppress them."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from appliance.engine.decode.chain.candidates import Logits
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import Mask, chosen
from appliance.errors import EngineError


def tokens(logits: Logits, mask: bytes | None, suppressed: Collection[int], scratch: Scratch) -> Mask:
    """The tokens that a mask allows (None: all), without the suppressed ones. `mask` has a bit for
    each of the `logits` (vocabulary,), the first in the lowest bit of the first byte. EngineError
    where none has a chance."""
    bits = np.ones(logits.size, np.uint8) if mask is None else np.unpackbits(
        np.frombuffer(mask, np.uint8), bitorder="little", count=logits.size)
    bits[list(suppressed)] = 0
    found = bits.view(np.bool_)
    if not np.isfinite(chosen(found, logits, np.float32(-np.inf), scratch.some[:logits.size]).max()):
        raise EngineError("no token that the constraint allows has a chance", code="constraint-stuck")
    return found
