"""Falcon 7B, and 40B, in which attention has a norm of its own.

GELU is by the hyperbolic tangent, as in llama.cpp; the publisher's is by the error function.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

FAMILY = Family(
    "falcon", "llama.cpp: src/models/falcon.cpp",
    models="Falcon 7B and 40B",
    norm="layer", norm_bias=True, topology="parallel", layers=(Attend(Rotary("halves")),), second_norm=True,
    fused=frozenset({"qkv"}), activation="gelu", gated=False,
    neutral={**but("tensor_data_layout"), "tensor_data_layout": ("jploski",)},
)
