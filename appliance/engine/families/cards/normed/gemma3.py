"""Gemma 3: five layers with a window and a base of their own, then one that sees all.

In a file without a window, as Rnj-1's, all layers turn heads as the last ones do.
Weights of norms have their 1 in the file.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

LOCAL = Attend(Rotary("halves", ("rope.freq_base_swa",), scaled=False), window="attention.sliding_window")
FAMILY = Family(
    "gemma3", "llama.cpp: src/models/gemma3.cpp; transformers: modeling_gemma3.py",
    models="Gemma 3 from 270M to 27B, Rnj-1",
    topology="sandwich", layers=(*[LOCAL] * 5, Attend(Rotary("halves"))), windowless=(Attend(Rotary("halves")),),
    pattern="attention.sliding_window_pattern", head_norm="head", activation="gelu", embedding_scale="sqrt(embedding)",
    query_scale="1/sqrt(share) at 62 layers", logit_cap="final_logit_softcapping",
    neutral=but("attention.sliding_window"),
)
