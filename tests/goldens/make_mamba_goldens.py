"""Makes tests/goldens/mamba.npz: float32 logits of small models with Mamba-2 layers, by `transformers`.

    .venv/bin/python -m tests.goldens.make_mamba_goldens write FOLDER
    OTHER/bin/python -m tests.goldens.make_mamba_goldens run FOLDER tests/goldens/mamba.npz [NAME ...]

As `make_mixture_goldens` has it: keys and values are rounded to 16 bits, and a model with an unclear choice of experts
is refused. The models are those of `tests.support.mamba_models`. The publisher's code reads prompts in chunks of 64,
and ours token by token, so positions on both sides of a chunk's end are kept. `time_step_min` is as good as 0: files
do not have it, and neither llama.cpp nor the publisher's own kernels use it as a bound.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.goldens import make_mixture_goldens as mixtures
from tests.goldens import make_transformers_goldens as dense
from tests.goldens.make_transformers_goldens import Arrays, Config, Family, Header

KEPT = (0, 1, 2, 3, 7, 24, 39, 63, 64, 65, 127, 128, 140)
"""Positions whose logits are kept: in the first window of the convolution, in a chunk, and about chunks' ends."""
CHUNK = 64
NAMES = {"dt_bias": "ssm_dt.bias", "A_log": "ssm_a", "mixer.D": "ssm_d", "mixer.norm.weight": "ssm_norm.weight",
         "conv1d.weight": "ssm_conv1d.weight", "conv1d.bias": "ssm_conv1d.bias", "in_proj.weight": "ssm_in.weight",
         "mixer.out_proj.weight": "ssm_out.weight", "mixer.experts.up_proj": "ffn_up_exps.weight",
         "mixer.gate.weight": "ffn_gate_inp.weight", "shared_experts.up_proj.weight": "ffn_up_shexp.weight",
         "shared_experts.down_proj.weight": "ffn_down_shexp.weight", "mixer.up_proj.weight": "ffn_up.weight",
         "mixer.down_proj.weight": "ffn_down.weight", "mixer.q_proj.weight": "attn_q.weight",
         "mixer.k_proj.weight": "attn_k.weight", "mixer.v_proj.weight": "attn_v.weight",
         "mixer.o_proj.weight": "attn_output.weight"}


def _states(weights: Arrays, config: Config) -> None:
    """What the converter makes of the decays."""
    mixtures.beside(weights, config)
    config["use_conv_bias"] = any(name.endswith("ssm_conv1d.bias") for name in weights)
    for name in weights:
        if name.endswith("ssm_a"):
            weights[name] = np.log(-weights[name])


def _granite(weights: Arrays, config: Config) -> None:
    """Of Granite: gate and up of what it calls a shared expert are one matrix; so it calls a dense network."""
    dense.turns(weights, config)
    _states(weights, config)
    for name in [name for name in weights if ".ffn_gate." in name or "ffn_gate_shexp" in name]:
        up, down = weights.pop(name.replace("gate", "up")), weights.pop(name.replace("gate", "down"))
        block = name.rpartition(".ffn_")[0]
        weights[f"{block}.ffn_gate_up_shexp.weight"] = np.concatenate([weights.pop(name), up])
        weights[f"{block}.ffn_down_shexp.weight"] = down


def _common(get: Header, count: int) -> Config:
    layers = count - get("nextn_predict_layers", 0)
    keys, heads = get("attention.head_count_kv"), get("ssm.time_step_rank")
    wide = get("feed_forward_length")
    kinds = ["full_attention" if keys[index] else "linear_attention" for index in range(layers)]
    if not isinstance(wide, int):
        network = "moe" if get("expert_count", 0) else "mlp"
        kinds = [network if wide[index] else kind for index, kind in enumerate(kinds)]
    return {"num_hidden_layers": layers, "layer_types": kinds, "num_key_value_heads": max(keys),
            "mamba_n_heads": heads, "mamba_d_head": get("ssm.inner_size") // heads,
            "mamba_d_state": get("ssm.state_size"), "mamba_n_groups": get("ssm.group_count"),
            "mamba_d_conv": get("ssm.conv_kernel"), "mamba_chunk_size": CHUNK, "head_dim": 32}


def _of_granite(get: Header, count: int) -> Config:
    rope = dense.rope(get) if get("rope.scaling.finetuned") else {}
    wide = get("feed_forward_length")
    return mixtures.counts(
        get, **{**dense.FAMILIES["granite"][2](get, count), **_common(get, count), **rope},
        shared_intermediate_size=get("expert_shared_feed_forward_length", wide) or wide,
        position_embedding_type="rope" if rope else None, num_local_experts=get("expert_count", 0),
        mamba_expand=get("ssm.inner_size") // get("embedding_length"))


def _of_nemotron(get: Header, count: int) -> Config:
    common = _common(get, count)
    return {**common, "layers_block_type": common.pop("layer_types"), "intermediate_size": max(
            get("feed_forward_length")), "ssm_state_size": get("ssm.state_size"),
            "mamba_num_heads": get("ssm.time_step_rank"), "mamba_head_dim": common["mamba_d_head"],
            "time_step_min": 1e-30, "n_routed_experts": get("expert_count", 8),
            "moe_intermediate_size": get("expert_feed_forward_length", 32),
            "moe_shared_expert_intermediate_size": get("expert_shared_feed_forward_length", 32),
            "num_experts_per_tok": get("expert_used_count", 2), "norm_topk_prob": get("expert_weights_norm", True),
            "routed_scaling_factor": get("expert_weights_scale", 1.0)}


FAMILIES: dict[str, Family] = {"granitehybrid": ("GraniteMoeHybrid", _granite, _of_granite),
                               "nemotron_h": ("NemotronH", _states, _of_nemotron),
                               "nemotron_h_moe": ("NemotronH", _states, _of_nemotron)}


def main(action: str, folder: str, target: str = "", *names: str) -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import mamba_models

        for name in mamba_models.MODELS:
            (Path(folder) / f"{name}.gguf").write_bytes(mamba_models.model(name))
        return
    dense.UNMAPPED.update(NAMES)
    mixtures.make(Path(folder), Path(target), FAMILIES, KEPT, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
