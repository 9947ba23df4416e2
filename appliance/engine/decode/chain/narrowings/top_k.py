"""`top_k`: the k highest logits. Ties are kept by lowest id."""

from __future__ import annotations

from appliance.engine.decode.chain.candidates import Candidates, Ids, Narrowing
from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.sweeps.left import SweptCandidates
from appliance.engine.decode.chain.sweeps.rows import Mask


def first(candidates: Candidates, count: float) -> Ids | None:
    """Places of the `count` highest; None where there are no more."""
    return highest(candidates.logits, int(count), candidates.scratch) if count < candidates.count else None


def swept(candidates: SweptCandidates, count: float) -> Mask | None:
    """The same of a whole row."""
    return candidates.highest(int(count)) if count < candidates.count else None


STAGE = Narrowing(("top_k",), first, sweep=swept)
