"""Granite 3 and 4, dense: factors of embeddings, residual rows, queries and logits."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Family, but

FAMILY = Family(
    "granite", "llama.cpp: src/models/granite.cpp; transformers: modeling_granite.py",
    models="Granite 3.3, Granite 4 dense",
    biases=frozenset(names.MATRICES), switch="rope.scaling.finetuned",
    embedding_scale="embedding_scale", query_scale="attention.scale", residual_scale="residual_scale",
    logit_scale="/logit_scale", neutral=but("attention.scale"), silent=frozenset(),
)
