"""GPT-2: learned embeddings of positions."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family

FAMILY = Family(
    "gpt2", "llama.cpp: src/models/gpt2.cpp; transformers: modeling_gpt2.py",
    models="GPT-2",
    norm="layer", norm_bias=True, layers=(Attend(None),), places=True, fused=frozenset({"qkv"}),
    activation="gelu", gated=False, biases=frozenset(names.MATRICES),
)
