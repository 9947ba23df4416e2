"""Known architectures that do not run here, and the operation that is not there for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_EXPERTS = "it is a mixture of experts"
_EMBEDS = "it makes embeddings, not text"
_STATE = "some of its layers keep a state in place of keys and values"

LACKING: Mapping[str, str] = MappingProxyType({
    **dict.fromkeys(("qwen2moe", "qwen3moe", "qwen3vlmoe", "granitemoe", "ernie4_5-moe", "hunyuan-moe", "glm4moe",
                     "olmoe", "phimoe", "dbrx", "cohere2moe"), _EXPERTS),
    "gpt-oss": f"{_EXPERTS}, and its attention has sinks",
    **dict.fromkeys(("bert", "nomic-bert", "jina-bert-v2", "gemma-embedding", "t5encoder"), _EMBEDS),
    **dict.fromkeys(("lfm2", "granitehybrid", "nemotron_h", "falcon-h1", "qwen35", "qwen3next", "mamba", "mamba2",
                     "jamba", "rwkv6", "rwkv7"), _STATE),
    **dict.fromkeys(("lfm2moe", "qwen35moe", "nemotron_h_moe"), f"{_EXPERTS}, and {_STATE}"),
    **dict.fromkeys(("deepseek2", "minicpm3", "mistral4"), "its keys and values are compressed"),
    "gemma2": "its scores of attention are bent by a cap (attn_logit_softcapping)",
    "gemma3n": "its residual rows are several, and its layers have embeddings of their own",
    "hunyuan-dense": "its heads are normalised after they are turned",
    "apertus": "its activation is xIELU",
    "arcee": "its activation is a squared ReLU",
    "nemotron": "its activation is a squared ReLU",
})
"""Why, by `general.architecture`."""
