"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: fused matrices, factors of frequencies for long slots.

The window is the publisher's (`sliding_window` of its configuration); llama.cpp leaves it out.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

FAMILY = Family(
    "phi3", "transformers: modeling_phi3.py; llama.cpp: src/models/phi3.cpp, which has no window",
    models="Phi-3.5, Phi-4, Phi-4-mini",
    layers=(Attend(Rotary("halves"), window="attention.sliding_window"),),
    fused=frozenset({"qkv", "gate_up"}), partial=True, long_factors=True,
    neutral=but("attention.sliding_window"),
)
