"""Gemma 1: llama's order with GELU; weights of norms have their 1 in the file."""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "gemma", "llama.cpp: src/models/gemma.cpp; transformers: modeling_gemma.py",
    models="Gemma 2B and 7B, CodeGemma",
    layers=(Attend(Rotary("halves")),), activation="gelu", embedding_scale="sqrt(embedding)",
)
