"""StarCoder2: biases everywhere."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary, but

FAMILY = Family(
    "starcoder2", "llama.cpp: src/models/starcoder2.cpp; transformers: modeling_starcoder2.py",
    models="StarCoder2 from 3B to 15B",
    norm="layer", norm_bias=True, layers=(Attend(Rotary("halves"), window="attention.sliding_window"),),
    activation="gelu", gated=False, biases=frozenset(names.MATRICES), neutral=but("attention.sliding_window"),
)
