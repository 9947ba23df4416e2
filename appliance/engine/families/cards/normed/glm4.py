"""GLM-4-0414, dense: results are normalised, and part of a head is turned.

The text part of GLM-4.1V has sections of positions, and rows of heads in the order of halves.
"""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "glm4", "llama.cpp: src/models/glm4.cpp; transformers: modeling_glm4.py",
    models="GLM-4-9B-0414, GLM-4-32B-0414",
    topology="sandwich", sectioned=(Attend(Rotary("halves")),), partial=True, fused=frozenset({"gate_up"}),
    biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
)
