"""Gemma 4, dense: heads of two sizes, values that are normalised and may be the keys, a factor for
each layer.

Models with experts, shared keys or embeddings for each layer are refused by their keys.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary, but

LOCAL = Attend(Rotary("halves", ("rope.freq_base_swa",), scaled=False), window="attention.sliding_window",
               sizes="_swa")
FAMILY = Family(
    "gemma4", "llama.cpp: src/models/gemma4.cpp",
    models="Gemma 4 31B",
    topology="sandwich", layers=(*[LOCAL] * 5, Attend(Rotary("halves"))), pattern="attention.sliding_window_pattern",
    head_norm="head", value_norm=True, value_is_key=True, partial=True, activation="gelu", layer_scale=True,
    arrays=frozenset({"attention.head_count", "attention.head_count_kv", "feed_forward_length"}),
    embedding_scale="sqrt(embedding)", query_scale="1", logit_cap="final_logit_softcapping",
    must=frozenset({"attention.sliding_window"}),
    neutral={**but("attention.sliding_window"), "attention.shared_kv_layers": (0,),
             "embedding_length_per_layer_input": (0,)},
)
