"""ERNIE 4.5, dense: as llama."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Family

FAMILY = Family(
    "ernie4_5", "llama.cpp: src/models/ernie4-5.cpp; transformers: modeling_ernie4_5.py",
    models="ERNIE 4.5 0.3B",
    biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
)
