"""Qwen3, dense, from 0.6B to 32B."""

from __future__ import annotations

from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "qwen3", "llama.cpp: src/models/qwen3.cpp; transformers: modeling_qwen3.py",
    models="Qwen3 from 0.6B to 32B",
    layers=(Attend(Rotary("halves")),), head_norm="head",
)
