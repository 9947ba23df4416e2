"""OLMo 2 and 3: no norm before attention and feed-forward network, one after each.

In OLMo 3 three of four layers have a window, and their heads are turned without scaling.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

LOCAL = Attend(Rotary("halves", ("rope.freq_base_swa", "rope.freq_base"), scaled=False),
               window="attention.sliding_window")
FAMILY = Family(
    "olmo2", "llama.cpp: src/models/olmo2.cpp; transformers: modeling_olmo2.py, modeling_olmo3.py",
    models="OLMo 2, OLMo 3",
    topology="post", layers=(*[LOCAL] * 3, Attend(Rotary("halves"))), windowless=(Attend(Rotary("halves")),),
    pattern="attention.sliding_window_pattern", head_norm="row", neutral=but("attention.sliding_window"),
)
