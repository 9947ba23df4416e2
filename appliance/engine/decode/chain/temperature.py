"""`temperature`, and a temperature that follows the entropy (`dynatemp_range`), as llama.cpp has
it."""

from __future__ import annotations

import numpy as np

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.candidates import Candidates


def cool(candidates: Candidates, temperature: float, spread: float, exponent: float) -> None:
    """Have the candidates at a temperature; at 0 the best alone stays.

    With a `spread` it lies between `temperature` less and plus it, by the entropy's share of the
    most that so many candidates can have, to the power of `exponent`. Temperature 0 is 0 all the
    same.
    """
    if temperature > 0.0 and spread > 0.0:
        sweeps = candidates.scratch.sweep is not None
        if candidates.count == 1 and not sweeps:
            return
        weights = candidates.weights()
        entropy = candidates.entropy(weights, exact.total(weights, candidates.scratch))
        share = entropy / exact.ln(float(max(candidates.count, 2)))
        power = exact.exp(exponent * exact.ln(share)) if share > 0.0 else float(exponent == 0.0)
        low = max(0.0, temperature - spread)
        temperature = low + (temperature + spread - low) * power
        if sweeps:
            candidates.keep_or_best(np.ones(candidates.logits.size, np.bool_), enough=temperature > 0.0)
            temperature = temperature or 1.0
    if temperature > 0.0:
        candidates.temperature *= temperature
    else:
        candidates.keep_best()
