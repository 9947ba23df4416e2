"""The constraint's mask: the tokens that may come next are the only candidates."""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain.candidates import Ids, Logits
from appliance.engine.decode.chain.scratch import Scratch
from appliance.errors import EngineError


def places(logits: Logits, mask: bytes, scratch: Scratch) -> Ids:
    """Places of the tokens that a mask allows. It has a bit for each of the `logits` (vocabulary,),
    the first in the lowest bit of the first byte. EngineError where none has a chance."""
    found = np.flatnonzero(np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=logits.size))
    if not found.size or not np.isfinite(scratch.pick(logits, found).max()):
        raise EngineError("no token that the constraint allows has a chance", code="constraint-stuck")
    return found
