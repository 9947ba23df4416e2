"""Ministral 3 and Devstral 2: queries grow with the logarithm of their position."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, but

FAMILY = Family(
    "mistral3", "llama.cpp: src/models/mistral3.cpp; transformers: modeling_ministral3.py",
    models="Ministral 3, Devstral 2",
    layers=(Attend(window="attention.sliding_window"),), biases=frozenset(names.MATRICES),
    query_scale="attention.scale", query_temperature="attention.temperature_scale",
    neutral=but("attention.scale", "attention.sliding_window", "rope.scaling.yarn_log_multiplier"),
)
