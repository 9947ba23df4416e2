"""Phi-2: attention and feed-forward network read one normalised row."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "phi2", "llama.cpp: src/models/phi2.cpp; transformers: modeling_phi.py",
    models="Phi-1.5, Phi-2",
    norm="layer", norm_bias=True, topology="parallel", layers=(Attend(Rotary("halves")),), partial=True,
    activation="gelu", gated=False, biases=frozenset(names.MATRICES), output_bias=True,
)
