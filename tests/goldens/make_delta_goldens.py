"""Makes tests/goldens/delta.npz: float32 logits of small models with gated delta rules, by `transformers`.

    .venv/bin/python -m tests.goldens.make_delta_goldens write FOLDER
    OTHER/bin/python -m tests.goldens.make_delta_goldens run FOLDER tests/goldens/delta.npz [NAME ...]

As `make_mixture_goldens` has it: keys and values are rounded to 16 bits, and a model with an unclear choice of experts
is refused. The models are those of `tests.support.delta_models`. The publisher's code reads prompts in chunks of 64,
and ours token by token, so positions on both sides of a chunk's end are kept.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.goldens import make_mixture_goldens as mixtures
from tests.goldens.make_transformers_goldens import Arrays, Config, Family, Header, partial, rope

KEPT = (0, 1, 2, 3, 7, 24, 39, 63, 64, 65, 127, 128, 140)
"""Positions whose logits are kept: in the first window of the convolution, in a chunk, and about chunks' ends."""


def _grouped(weights: Arrays, config: Config) -> None:
    """Of Qwen3.5: value heads of a key head lie together; the converter lets those of all key heads take turns."""
    _less_one(weights, config)
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    ratio = config["linear_num_value_heads"] // keys
    for name, value in weights.items():
        mixed = "attn_qkv" in name or "ssm_conv1d" in name
        rest = value[:2 * keys * size] if mixed else value[:0]
        own = value[len(rest):]
        if len(rest) or any(part in name for part in ("attn_gate", "ssm_dt", "ssm_a", "ssm_beta")):
            turned = own.reshape(ratio, keys, -1, *own.shape[1:]).swapaxes(0, 1).reshape(own.shape)
            weights[name] = np.concatenate([rest, turned])
        elif "ssm_out" in name:
            weights[name] = own.reshape(len(own), ratio, keys, -1).swapaxes(1, 2).reshape(own.shape)


def _together(weights: Arrays, config: Config) -> None:
    """Of Qwen3-Next: queries, keys, values and gates of a key head are rows of one matrix."""
    _less_one(weights, config)
    keys, size = config["linear_num_key_heads"], config["linear_key_head_dim"]
    for name in [name for name in weights if "attn_qkv" in name]:
        gate = weights.pop(name.replace("attn_qkv", "attn_gate"))
        parts = np.split(weights.pop(name), [keys * size, 2 * keys * size])
        whole = [part.reshape(keys, -1, part.shape[-1]) for part in (*parts, gate)]
        weights[name.replace("attn_qkv", "ssm_in")] = np.concatenate(whole, axis=1).reshape(-1, gate.shape[-1])


def _less_one(weights: Arrays, config: Config) -> None:
    """Of norms but those of states, the 1 that the converter adds; and what it writes of the decays."""
    mixtures.beside(weights, config)
    for name in weights:
        if "norm.weight" in name and "ssm_norm" not in name:
            weights[name] = weights[name] - 1
        elif name.endswith("ssm_a"):
            weights[name] = np.log(-weights[name])
        elif "ssm_conv1d" in name:
            weights[name] = weights[name][:, None]


def _states(get: Header, count: int) -> Config:
    layers = count - get("nextn_predict_layers", 0)
    listed = get("attention.recurrent_layers")
    kinds = [listed[index] if listed else (index + 1) % get("full_attention_interval") for index in range(layers)]
    return {**rope(get, partial_rotary_factor=partial(get)), "num_hidden_layers": layers,
            "linear_conv_kernel_dim": get("ssm.conv_kernel"), "linear_key_head_dim": get("ssm.state_size"),
            "linear_value_head_dim": get("ssm.inner_size") // get("ssm.time_step_rank"),
            "linear_num_key_heads": get("ssm.group_count"), "linear_num_value_heads": get("ssm.time_step_rank"),
            "layer_types": ["linear_attention" if kind else "full_attention" for kind in kinds]}


def _experts(get: Header, count: int) -> Config:
    return mixtures.counts(get, **_states(get, count), norm_topk_prob=True, decoder_sparse_step=1,
                           shared_expert_intermediate_size=get("expert_shared_feed_forward_length"))


FAMILIES: dict[str, Family] = {
    "qwen35": ("Qwen3_5", _grouped, _states), "qwen35moe": ("Qwen3_5Moe", _grouped, _experts),
    "qwen3next": ("Qwen3Next", _together, _experts)}


def main(action: str, folder: str, target: str = "", *names: str) -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import delta_models

        for name in delta_models.MODELS:
            (Path(folder) / f"{name}.gguf").write_bytes(delta_models.model(name))
        return
    mixtures.make(Path(folder), Path(target), FAMILIES, KEPT, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
