"""Llama 2 and 3, TinyLlama, SmolLM2, Mistral without window."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Family

FAMILY = Family(
    "llama", "llama.cpp: src/models/llama.cpp",
    models="Llama 2 and 3, TinyLlama, SmolLM2, Mistral 7B without window",
    biases=frozenset(names.MATRICES),
)
