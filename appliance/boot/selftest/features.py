"""A tiny model for each part of a forward pass that only some families have, for the self-test.

Its header says what it is. The known answer of `step/feature/NAME` is that of weights in FORMAT.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.boot.selftest import tiny_model
from appliance.engine.forward.forward import ROWS, Forward
from appliance.engine.forward.kvcache import KVCache
from appliance.families.architecture import Architecture
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors, is_vector, optional_shapes, required_shapes
from appliance.kernels.runtime.table import KernelTable
from appliance.kernels.runtime.threads import Pool
from appliance.models.file.gguf import TensorInfo
from appliance.models.file.quants import FORMATS
from appliance.models.sources.source import KernelMatrix

FORMAT = "Q8_0"
_CONTEXT = 128
_MOST = 264  # positions: more than one attention span
_CUT = 45
_SIZES: dict[str, Any] = {
    "block_count": 2, "context_length": _CONTEXT, "embedding_length": 64, "feed_forward_length": 96, "vocab_size": 96,
    "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 32, "attention.value_length": 32}
_WINDOWS = {"attention.sliding_window": 20, "attention.sliding_window_pattern": 2}
_EXPERTS = {"expert_count": 12, "expert_used_count": 4}
_MAMBA = {"ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4,
          "ssm.inner_size": 128}
_STATES = {"full_attention_interval": 2, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2,
           "ssm.time_step_rank": 4, "ssm.inner_size": 128}

# By what is tested: the family that has it, and the keys of its header beside the sizes.
FEATURES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "spans": ("llama", {"context_length": 512}),
    "halves": ("qwen3", {"attention.key_length": 48, "attention.value_length": 48}),
    "window": ("gemma3", {**_WINDOWS, "final_logit_softcapping": 5.0, "attention.head_count_kv": 1}),
    "sizes": ("gemma4", {**_WINDOWS, "attention.key_length": 64, "attention.value_length": 64,
                         "attention.key_length_swa": 32, "attention.value_length_swa": 32,
                         "attention.head_count_kv": [2, 1], "rope.dimension_count": 48}),
    "parallel": ("phi2", {"attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 32}),
    "places": ("gpt2", {}),
    "results": ("olmo2", {}),
    "fused": ("phi3", {"attention.sliding_window": 50}),
    "scales": ("granite", {"embedding_scale": 3.0, "residual_scale": 0.3, "logit_scale": 2.0, "attention.scale": 0.25}),
    "experts": ("qwen3moe", {**_EXPERTS, "expert_feed_forward_length": 96}),
    "shared": ("qwen2moe", {**_EXPERTS, "expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 64}),
    "chosen": ("granitemoe", {**_EXPERTS, "expert_count": 20, "residual_scale": 0.3,
                              "expert_shared_feed_forward_length": 64}),
    "groups": ("bailingmoe2", {**_EXPERTS, "expert_count": 16, "expert_group_count": 4, "expert_group_used_count": 2,
                               "expert_feed_forward_length": 64, "expert_shared_count": 1,
                               "expert_weights_scale": 2.5, "leading_dense_block_count": 1}),
    "beside": ("gemma4", {**_EXPERTS, **_WINDOWS, "expert_feed_forward_length": 32, "attention.key_length_swa": 32,
                          "attention.value_length_swa": 32}),
    "temperature": ("mistral3", {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                                 "rope.scaling.original_context_length": 16, "attention.temperature_scale": 0.5}),
    "convolution": ("lfm2", {"attention.head_count_kv": [0, 2], "shortconv.l_cache": 3}),
    "added": ("lfm2moe", {**_EXPERTS, "expert_feed_forward_length": 32, "attention.head_count_kv": [2, 0],
                          "shortconv.l_cache": 4, "leading_dense_block_count": 1}),
    "scan": ("granitehybrid", {**_MAMBA, "attention.head_count_kv": [0, 2], "residual_scale": 0.3}),
    "squared": ("nemotron_h_moe", {
        **_EXPERTS, **_MAMBA, "block_count": 3, "attention.head_count_kv": [0, 0, 2], "feed_forward_length": [0, 32, 0],
        "ssm.group_count": 1, "ssm.conv_kernel": 3, "expert_feed_forward_length": 32,
        "expert_shared_feed_forward_length": 64}),
    "delta": ("qwen35", _STATES),
    "together": ("qwen3next", {**_EXPERTS, **_STATES, "expert_feed_forward_length": 32, "ssm.time_step_rank": 6,
                               "ssm.inner_size": 192, "expert_shared_feed_forward_length": 64}),
    "sinks": ("gpt-oss", {**_EXPERTS, "expert_feed_forward_length": 96, "attention.sliding_window": 20,
                          "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                          "rope.scaling.original_context_length": 16}),
}


def prompt(name: str) -> list[int]:
    """Tokens of a feature's prompt: more than a page, and more than a span of attention where that
    is the feature."""
    return [(11 * i + 5) % 96 for i in range(_MOST if name == "spans" else 70)]


def metadata(name: str) -> dict[str, Any]:
    """The header of a feature's model."""
    family, own = FEATURES[name]
    said = _SIZES | {"attention.layer_norm_rms_epsilon": 1e-5, "attention.layer_norm_epsilon": 1e-5} | dict(own)
    unused = "attention.layer_norm_rms_epsilon" if family in ("phi2", "gpt2") else "attention.layer_norm_epsilon"
    header = {f"{family}.{key}": value for key, value in said.items() if key != unused}
    return {"general.architecture": family, **header}


def tensors(name: str) -> dict[str, tuple[int, ...]]:
    """Shapes of its tensors: all that it must have and may have, but for an output of its own."""
    shape = architecture_of(metadata(name))
    fused = [f"blk.{index}.ffn_gate_up_exps.weight" for index in range(shape.layers)] if name == "beside" else []
    found = dict(required_shapes(shape, fused))
    for tensor, size in optional_shapes(shape, found):
        last = tensor == f"blk.{shape.layers - 1}.attn_v.weight"  # whose values are the keys
        if tensor != "output.weight" and not last and ("attn_qkv" not in tensor or tensor.endswith("bias")):
            found[tensor] = size
    return found


class FeatureSource(tiny_model.FixedSource):
    """The weights of a feature's model."""

    def __init__(self, name: str) -> None:
        super().__init__(FORMAT, tensors(name))
        self.every = False
        """Whether rows go through all experts."""
        self.tensors = {
            tensor: TensorInfo(tensor, FORMATS["F32" if is_vector(tensor, size) else FORMAT], size,
                               0, 0) for tensor, size in self._shapes.items()}

    def weight(self, name: str) -> KernelMatrix:
        """As of any model."""
        weight = super().weight(name)
        return replace(weight, every=True) if self.every and weight.runs > 1 else weight


def logits(table: KernelTable, name: str) -> NDArray[np.float32]:
    """Logits (4, vocabulary): of the last positions of two pieces of a prompt, and of two more
    tokens. Zeros where rows that go through all experts, some at a time, give others."""
    shape = architecture_of(metadata(name))
    source = FeatureSource(name)
    found = _logits(table, source, shape, prompt(name), ROWS)
    if shape.mixture is None:
        return found
    source.every = True
    again = _logits(table, source, shape, prompt(name), _CUT)
    return found if found.tobytes() == again.tobytes() else np.zeros_like(found)


def _logits(table: KernelTable, source: FeatureSource, shape: Architecture, tokens: list[int],
            most: int) -> NDArray[np.float32]:
    """As `logits`, of a source, in buffers for `most` rows."""
    rows = []
    with Pool(table, tiny_model.THREADS) as pool:
        cache = KVCache(shape, 1, shape.context_length)
        forward = Forward(source, shape, check_tensors(shape, source.tensors), cache, table, pool, rows=most)
        end = len(tokens)
        for first, last in ((0, _CUT), (_CUT, end)):
            rows.append(forward.run(tokens[first:last], range(first, last), [0] * (last - first), [last - first - 1])
                        .copy())
        rows += [forward.run([token], [end + index], [0], [0]).copy() for index, token in enumerate((7, 3))]
        forward.release()
        cache.release()
    return np.concatenate(rows)
