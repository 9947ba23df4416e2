"""Known architectures that do not run here, and the operation that is missing for each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

LACKING: Mapping[str, str] = MappingProxyType({
    "gemma2": "its scores of attention are bent by a cap (attn_logit_softcapping)",
    "gemma3n": "its residual rows are several, and its layers have embeddings of their own",
    "hunyuan-dense": "its heads are normalised after they are turned",
    "hunyuan-moe": "its heads are normalised after they are turned",
    "llama4": "weights come before its experts, and it attends in chunks",
    "phimoe": "its router is SparseMixer",
    "dbrx": "its queries, keys and values are clamped",
    "grok": "its scores of attention are bent by a cap",
    "apertus": "its activation is xIELU",
})
"""By `general.architecture`."""

_STATE = "some of its layers keep a state in place of keys and values"
_KEYS: Mapping[str, str] = MappingProxyType({
    "expert_count": "it is a mixture of experts without a card", "ssm.conv_kernel": _STATE, "shortconv.l_cache": _STATE,
    "wkv.head_size": _STATE, "attention.kv_lora_rank": "its keys and values are compressed"})
"""Of others, by a key that is a number above 0."""


def lacking(name: str, metadata: Mapping[str, Any]) -> str | None:
    """Return what is missing for a model of another architecture, None if that is not known."""
    values = {key: metadata.get(f"{name}.{key}") for key in _KEYS}
    found = [_KEYS[key] for key, value in values.items() if isinstance(value, int) and value > 0]
    return " and ".join([*filter(None, [LACKING.get(name)]), *found]) or None
