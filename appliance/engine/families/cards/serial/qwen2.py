"""Qwen2, Qwen2.5 and its Coder, QwQ, and models distilled from R1 into these."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "qwen2", "llama.cpp: src/models/qwen2.cpp; transformers: modeling_qwen2.py",
    models="Qwen2.5, Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen",
    layers=(Attend(Rotary("halves")),),
    biases=frozenset({names.QUERY, names.KEY, names.VALUE}), output_bias=True,
)
