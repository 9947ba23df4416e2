"""The text part of Qwen3-VL: as Qwen3.

Elements of a head take turns in being turned by positions in time, height and width, which are
equal in a text. The first layers get nothing from images.
"""

from __future__ import annotations

from appliance.engine.families.cards.card import SILENT, Attend, Family, Rotary

TEXT = (Attend(Rotary("halves")),)
FAMILY = Family(
    "qwen3vl", "llama.cpp: src/models/qwen3vl.cpp; transformers: modeling_qwen3_vl.py",
    models="the text part of Qwen3-VL",
    layers=TEXT, sectioned=TEXT, head_norm="head", silent=SILENT | {"n_deepstack_layers"},
)
