"""The text part of Qwen2-VL and Qwen2.5-VL: as Qwen2.

Sections of a head are turned by positions in time, height and width, which are equal in a text.
"""

from __future__ import annotations

from appliance.engine.families.cards import names
from appliance.engine.families.cards.card import Attend, Family, Rotary

TEXT = (Attend(Rotary("halves")),)
FAMILY = Family(
    "qwen2vl", "llama.cpp: src/models/qwen2vl.cpp; transformers: modeling_qwen2_vl.py",
    models="the text part of Qwen2-VL and Qwen2.5-VL",
    layers=TEXT, sectioned=TEXT, biases=frozenset({names.QUERY, names.KEY, names.VALUE}),
)
