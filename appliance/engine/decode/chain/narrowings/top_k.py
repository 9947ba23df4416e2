"""`top_k`: the k highest logits. Ties are kept by lowest id."""

from __future__ import annotations

from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.sweeping import Mask


def first(candidates: Candidates, count: float) -> Ids | Mask | None:
    """The `count` highest candidates; None where there are no more."""
    return candidates.highest(int(count)) if candidates.whole or count < candidates.count else None


STAGE = Narrowing(("top_k",), first)
