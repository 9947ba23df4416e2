"""Seed-OSS: the norm before the feed-forward network has the name of one behind attention."""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary

FAMILY = Family(
    "seed_oss", "llama.cpp: src/models/seed-oss.cpp; transformers: modeling_seed_oss.py",
    models="Seed-OSS 36B",
    layers=(Attend(Rotary("halves")),), biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
    feed_forward_norm="post_attention_norm",
)
