"""Llama 2 and 3, TinyLlama, SmolLM2, Mistral without window."""

from __future__ import annotations

from appliance.engine.families import names
from appliance.engine.families.card import Family

FAMILY = Family(
    "llama", "llama.cpp: src/models/llama.cpp",
    models="Llama 2 and 3, TinyLlama, SmolLM2, Mistral 7B without window",
    biases=frozenset(names.MATRICES),
    neutral={
        "expert_count": (0,),
        "expert_used_count": (0,),
        "attention.causal": (True,),
        "attention.clamp_kqv": (0.0,),
        "attention.max_alibi_bias": (0.0,),
        "attention.scale": (0.0,),
        "attention.sliding_window": (0,),
        "use_parallel_residual": (False,),
        "pooling_type": (0,),
        "tensor_data_layout": ("reference", "Meta AI original pth"),
        "rope.scaling.yarn_ext_factor": (1.0,),
        "rope.scaling.yarn_attn_factor": (1.0,),
        "rope.scaling.yarn_beta_fast": (32.0,),
        "rope.scaling.yarn_beta_slow": (1.0,),
        "rope.scaling.yarn_log_multiplier": (0.0,),
    },
    hints={
        "expert_count": "a mixture of experts does not run here: use a dense model",
        "attention.sliding_window": "windows of attention do not run here: use a model without (Mistral 7B from v0.2 "
                                    "on)",
        "pooling_type": "the model makes embeddings or rankings, not text: use a model that generates text",
        "attention.causal": "the model makes embeddings or fills gaps, not text: use a model that generates text",
    },
    silent=frozenset({"rope.scaling.finetuned"}),
)
