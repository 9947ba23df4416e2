"""SmolLM3: every fourth layer leaves heads as they are."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family

FAMILY = Family(
    "smollm3", "llama.cpp: src/models/smollm3.cpp; transformers: modeling_smollm3.py",
    models="SmolLM3 3B",
    layers=(*[Attend()] * 3, Attend(None)), biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
)
