"""Makes tests/goldens/lfm2.npz: float32 logits of small models of LFM2 and LFM2-MoE, by `transformers`.

    .venv/bin/python -m tests.goldens.make_lfm2_goldens write FOLDER
    OTHER/bin/python -m tests.goldens.make_lfm2_goldens run FOLDER tests/goldens/lfm2.npz

As `make_mixture_goldens` has it: keys and values are rounded to 16 bits, and unclear choices of experts are refused.
The models are those of `tests.support.lfm2_models`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens import make_mixture_goldens as mixtures
from tests.goldens import make_transformers_goldens as dense
from tests.goldens.make_transformers_goldens import KEPT, Config, Family, Header, nothing, rope


def _layers(get: Header, attention: str, **more: Any) -> Config:
    groups = get("attention.head_count_kv")
    return {**rope(get), **more, "num_key_value_heads": max(groups), "conv_L_cache": get("shortconv.l_cache"),
            "layer_types": [attention if each else "conv" for each in groups], "block_auto_adjust_ff_dim": False,
            "norm_eps": get("attention.layer_norm_rms_epsilon"),
            "head_dim": get("embedding_length") // get("attention.head_count")}


FAMILIES: dict[str, Family] = {
    "lfm2": ("Lfm2", nothing, lambda get, n: _layers(get, "full_attention")),
    "lfm2moe": ("Lfm2Moe", mixtures._beside, lambda get, n: _layers(
        get, "full_attention", num_experts=get("expert_count"), num_experts_per_tok=get("expert_used_count"),
        moe_intermediate_size=get("expert_feed_forward_length"), num_dense_layers=get("leading_dense_block_count"),
        norm_topk_prob=get("expert_weights_norm", True), routed_scaling_factor=get("expert_weights_scale", 1.0))),
}


def _logits(path: Path, family: Family) -> np.ndarray:
    name, undo, extra = family

    def chosen(weights: dense.Arrays, config: Config) -> None:
        undo(weights, config)
        config["use_expert_bias"] = any("exp_probs_b" in each for each in weights)
    return dense.logits(path, (name, chosen, extra), KEPT)


def main(action: str, folder: str, target: str = "") -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import lfm2_models

        for name in lfm2_models.MODELS:
            (Path(folder) / f"{name}.gguf").write_bytes(lfm2_models.model(name))
        return
    dense.UNMAPPED["feed_forward.expert_bias"] = "exp_probs_b.bias"
    found = {}
    for path in sorted(Path(folder).glob("*.gguf")):
        family = FAMILIES[path.stem.partition(".")[0]]
        with mixtures._choices() as distances, mixtures._rounded(family[0]):
            found[path.stem] = _logits(path, family)
        print(f"{path.stem}: deviation {found[path.stem].std():.3f}, least {min(distances, default=1.0):.5f}")
        if min(distances, default=1.0) < mixtures.CLEAR:
            raise SystemExit(f"{path.stem}: a choice of experts is unclear; give it another seed")
    np.savez_compressed(target, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
