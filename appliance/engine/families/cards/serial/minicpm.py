"""MiniCPM 1, 2 and 4: factors of embeddings, residual rows and logits.

Files of before these factors were written are refused: they would be guessed.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import Family

FAMILY = Family(
    "minicpm", "llama.cpp: src/models/minicpm.cpp",
    models="MiniCPM 1B and 2B, MiniCPM4 0.5B and 8B",
    long_factors=True, embedding_scale="embedding_scale", residual_scale="residual_scale", logit_scale="/logit_scale",
    must=frozenset({"embedding_scale", "residual_scale", "logit_scale"}),
)
