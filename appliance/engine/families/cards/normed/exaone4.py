"""EXAONE 4: results are normalised.

In the models with windows three of four layers have one, and the fourth leaves heads as they are.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

LOCAL = Attend(Rotary("halves"), window="attention.sliding_window")
FAMILY = Family(
    "exaone4", "llama.cpp: src/models/exaone4.cpp; transformers: modeling_exaone4.py",
    models="EXAONE 4 1.2B and 32B",
    topology="post", layers=(*[LOCAL] * 3, Attend(None)), windowless=(Attend(Rotary("halves")),),
    pattern="attention.sliding_window_pattern", head_norm="head", neutral=but("attention.sliding_window"),
)
