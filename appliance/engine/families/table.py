"""The families that run, one row each. A new one is a file in a room beside this, and a row here.
"""

from __future__ import annotations

from types import MappingProxyType

from appliance.engine.families.cards.centred import cohere2, command_r, falcon, gpt2, phi2, starcoder2
from appliance.engine.families.cards.normed import exaone4, gemma3, gemma4, glm4, olmo2
from appliance.engine.families.cards.serial import (
    ernie4_5,
    gemma,
    granite,
    llama,
    minicpm,
    mistral3,
    phi3,
    qwen2,
    qwen3,
    seed_oss,
    smollm3,
)
from appliance.engine.families.cards.sighted import qwen2vl, qwen3vl

FAMILIES = MappingProxyType({family.name: family for family in (
    llama.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    gemma3.FAMILY,
    gemma4.FAMILY,
    phi3.FAMILY,
    phi2.FAMILY,
    gpt2.FAMILY,
    mistral3.FAMILY,
    granite.FAMILY,
    smollm3.FAMILY,
    olmo2.FAMILY,
    exaone4.FAMILY,
    glm4.FAMILY,
    falcon.FAMILY,
    starcoder2.FAMILY,
    command_r.FAMILY,
    cohere2.FAMILY,
    gemma.FAMILY,
    qwen2vl.FAMILY,
    qwen3vl.FAMILY,
    seed_oss.FAMILY,
    ernie4_5.FAMILY,
    minicpm.FAMILY,
)})
