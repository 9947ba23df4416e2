"""Command-R: both halves of a layer read one row, normalised without a bias; logits are scaled."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Family

FAMILY = Family(
    "command-r", "llama.cpp: src/models/command-r.cpp; transformers: modeling_cohere.py",
    models="Command-R 35B, Aya 23",
    norm="layer", topology="parallel", logit_scale="logit_scale",
    biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
)
