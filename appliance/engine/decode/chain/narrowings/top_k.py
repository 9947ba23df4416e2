"""`top_k`: the k highest logits. Ties are kept by lowest id."""

from __future__ import annotations

from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.ordering import highest


def first(candidates: Candidates, count: float) -> Ids | None:
    """Places of the `count` highest; None where there are no more."""
    return highest(candidates.logits, int(count), candidates.scratch) if count < candidates.count else None


STAGE = Narrowing(("top_k",), first)
