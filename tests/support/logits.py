"""The logits of every row of a text, by an engine that nobody else uses meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.engine.engine import Engine
from appliance.engine.forward.forward import WANTED


def logits_of(engine: Engine, ids: Sequence[int], *, last: int | None = None,
              chunk: int = WANTED) -> NDArray[np.float32]:
    """Logits (last, vocabulary) after each of the last `last` tokens of `ids` (None: all of them), in slot 0, which is
    wiped then. At most `chunk` rows a pass have logits; no bit depends on it."""
    last = len(ids) if last is None else last
    out = np.empty((last, engine.architecture.vocabulary), np.float32)
    silent = len(ids) - last  # tokens whose logits nobody asks for
    forward, most = engine._forward, engine._forward.boundary.limits.rows
    chunk = min(chunk, WANTED, most)
    engine.acquire()
    try:
        first = 0
        while first < len(ids):
            end = min(first + most, silent) if first < silent else min(first + chunk, len(ids))
            wanted = range(end - first) if first >= silent else range(0)
            found = forward.run(ids[first:end], range(first, end), [0] * (end - first), wanted)
            if len(wanted):
                out[first - silent:end - silent] = found
            first = end
    finally:
        engine._cache.give_back(0)
        forward.boundary.forget(0)
        engine.release()
    return out
