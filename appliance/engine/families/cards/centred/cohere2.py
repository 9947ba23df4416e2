"""Command-R7B and Command A: as Command-R, with windows.

Every fourth layer sees all and leaves heads as they are.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, but

LOCAL = Attend(window="attention.sliding_window")
FAMILY = Family(
    "cohere2", "llama.cpp: src/models/cohere2.cpp; transformers: modeling_cohere2.py",
    models="Command-R7B, Command A",
    norm="layer", topology="parallel", layers=(*[LOCAL] * 3, Attend(None)), pattern="attention.sliding_window_pattern",
    logit_scale="logit_scale", must=frozenset({"attention.sliding_window"}), neutral=but("attention.sliding_window"),
)
