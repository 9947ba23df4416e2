"""`top_k`: the k highest logits. Ties are kept by lowest id."""

from __future__ import annotations

from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.stage import Ids, Logits, Narrowing


def first(logits: Logits, count: float, scratch: Scratch) -> Ids | None:
    """Places of the `count` highest; None where there are no more."""
    return highest(logits, int(count), scratch) if count < logits.size else None


STAGE = Narrowing("top_k", first)
