"""Makes tests/goldens/mixtures.npz: float32 logits of small mixtures of each family and option, by `transformers`.

    .venv/bin/python -m tests.goldens.make_mixture_goldens write FOLDER
    OTHER/bin/python -m tests.goldens.make_mixture_goldens run FOLDER tests/goldens/mixtures.npz [NAME ...]

As `make_transformers_goldens` has it, whose environment it needs. The models are those of
`tests.support.mixture_models`. Keys and values are rounded to 16 bits, as the engine keeps them: of what is then
between the two, only the order of sums is left. A model with an unclear choice of experts is refused: another rounding
would choose others, and nothing could be compared. Give it another seed then.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tests.goldens import make_transformers_goldens as dense
from tests.goldens.make_transformers_goldens import KEPT, Arrays, Config, Family, Header, nothing, partial, rope, yarn

CLEAR = 0.002
"""The least distance of the last score that is chosen from the first that is not, in parts of it."""


def beside(weights: Arrays, config: Config) -> None:
    """Of most: rows of gate and of up are one matrix, and so are those of shared experts where they are written so."""
    _left_out(weights, config)
    for name in [name for name in weights if "ffn_gate_exps.weight" in name]:
        up = weights.pop(name.replace("gate", "up"))
        weights[name.replace("gate", "gate_up")] = np.concatenate([weights.pop(name), up], axis=1)


def _left_out(weights: Arrays, config: Config) -> None:
    """Of blocks that guess further tokens: the publisher's code does not run them."""
    for name in list(weights):
        if name.startswith("blk.") and int(name.split(".")[1]) >= config["num_hidden_layers"]:
            del weights[name]


def _turned(weights: Arrays, config: Config) -> None:
    """Of Mixtral and Granite, whose queries and keys the converter turns."""
    dense.turns(weights, config)
    beside(weights, config)
    for name in [name for name in weights if "ffn_gate_shexp" in name]:
        up = weights.pop(name.replace("gate", "up"))
        weights[name.replace("gate", "gate_up")] = np.concatenate([weights.pop(name), up])


def _in_turns(weights: Arrays, config: Config) -> None:
    """Of gpt-oss: rows of gate and up take turns, and experts' matrices are transposed."""
    for name in [name for name in weights if "ffn_gate_exps" in name]:
        pair = np.stack([weights.pop(name), weights.pop(name.replace("gate", "up"))], axis=2)
        weights[name.replace("gate", "gate_up")] = pair.reshape(pair.shape[0], -1, *pair.shape[3:])
    for name in weights:
        if name.endswith("_exps.weight"):
            weights[name] = weights[name].swapaxes(1, 2).copy()


def _of_glm(weights: Arrays, config: Config) -> None:
    """Of GLM, whose larger models have norms of heads."""
    config["use_qk_norm"] = "blk.0.attn_q_norm.weight" in weights
    beside(weights, config)


def counts(get: Header, **more: Any) -> Config:
    """The keys that families name alike."""
    count, inner = get("expert_count"), get("expert_feed_forward_length")
    return {"num_experts": count, "num_local_experts": count, "num_experts_per_tok": get("expert_used_count"),
            "moe_intermediate_size": inner, **more}


FAMILIES: dict[str, Family] = {
    "llama": ("Mixtral", _turned, lambda get, n: counts(get, **rope(get))),
    "qwen2moe": ("Qwen2Moe", beside, lambda get, n: counts(
        get, **rope(get), norm_topk_prob=get("expert_weights_norm", False),
        shared_expert_intermediate_size=get("expert_shared_feed_forward_length"))),
    "qwen3moe": ("Qwen3Moe", beside, lambda get, n: counts(
        get, **rope(get), norm_topk_prob=get("expert_weights_norm", True))),
    "qwen3vlmoe": ("Qwen3VLMoe", beside, lambda get, n: counts(
        get, **rope(get, mrope_section=get("rope.dimension_sections")[:3], mrope_interleaved=True))),
    "gpt-oss": ("GptOss", _in_turns, lambda get, n: counts(
        get, **rope(get, **yarn(get), beta_fast=32.0, beta_slow=1.0, truncate=False),
        sliding_window=get("attention.sliding_window"), intermediate_size=get("expert_feed_forward_length"))),
    "gemma4": ("Gemma4", nothing, lambda get, n: counts(
        get, **dense.FAMILIES["gemma4"][2](get, n), enable_moe_block=True, top_k_experts=get("expert_used_count"))),
    "granitemoe": ("GraniteMoeShared", _turned, lambda get, n: counts(
        get, **dense.FAMILIES["granite"][2](get, n),
        shared_intermediate_size=get("expert_shared_feed_forward_length", 0))),
    "olmoe": ("Olmoe", beside, lambda get, n: counts(get, **rope(get), norm_topk_prob=False)),
    "glm4moe": ("Glm4Moe", _of_glm, lambda get, n: counts(
        get, **rope(get, partial_rotary_factor=partial(get)), attention_bias=True,
        num_hidden_layers=n - get("nextn_predict_layers", 0), n_routed_experts=get("expert_count"),
        n_shared_experts=get("expert_shared_count"), routed_scaling_factor=get("expert_weights_scale"),
        norm_topk_prob=get("expert_weights_norm"), n_group=get("expert_group_count"),
        topk_group=get("expert_group_used_count"), first_k_dense_replace=get("leading_dense_block_count"))),
    "ernie4_5-moe": ("Ernie4_5_Moe", beside, lambda get, n: counts(
        get, **rope(get), moe_num_experts=get("expert_count"), moe_k=get("expert_used_count"),
        moe_num_shared_experts=get("expert_shared_count", 0),
        moe_layer_start_index=get("leading_dense_block_count"))),
}


@contextmanager
def _choices() -> Iterator[list[float]]:
    """The distances at the choices that are made meanwhile, the least of each call."""
    import torch

    places, least = ((torch, torch.topk), (torch.Tensor, torch.Tensor.topk)), []

    def watched(scores: Any, k: int, **options: Any) -> Any:
        if k < scores.shape[-1] and scores.ndim == 2:  # not those of experts in their group, which are added only
            last, next_ = scores.sort(dim=-1, descending=True).values[..., k - 1:k + 1].unbind(dim=-1)
            least.append(float(((last - next_) / last.abs()).min()))
        return places[0][1](scores, k, **options)

    for place, _ in places:
        place.topk = watched
    yield least
    for place, method in places:
        place.topk = method


@contextmanager
def _rounded(family: str) -> Iterator[None]:
    """Round keys and values to 16 bits before the publisher's code attends to them."""
    import transformers

    module = sys.modules[getattr(transformers, f"{family}PreTrainedModel").__module__]
    own = module.eager_attention_forward

    def rounded(layer: Any, query: Any, key: Any, value: Any, *others: Any, **options: Any) -> Any:
        return own(layer, query, key.half().float(), value.half().float(), *others, **options)

    module.eager_attention_forward = rounded
    yield
    module.eager_attention_forward = own


def make(folder: Path, target: Path, families: dict[str, Family], positions: Sequence[int],
         names: Sequence[str]) -> None:
    """Write the logits of a folder's models, or of those with these names."""
    found = dict(np.load(target)) if names else {}
    for path in sorted(folder.glob("*.gguf")):
        if names and path.stem not in names:
            continue
        family = families[path.stem.partition(".")[0]]
        with _choices() as distances, _rounded(family[0]):
            found[path.stem] = dense.logits(path, family, positions)
        print(f"{path.stem}: deviation {found[path.stem].std():.3f}, least distance {min(distances, default=1):.5f}")
        if min(distances, default=1) < CLEAR:
            raise SystemExit(f"{path.stem}: a choice of experts is unclear, at {min(distances)}; allowed: {CLEAR}")
    np.savez_compressed(target, **found)


def main(action: str, folder: str, target: str = "", *names: str) -> None:
    """`write` or `run`."""
    if action == "write":
        from tests.support import mixture_models

        for name in mixture_models.MODELS:
            (Path(folder) / f"{name}.gguf").write_bytes(mixture_models.model(name))
        return
    make(Path(folder), Path(target), FAMILIES, KEPT, names)


if __name__ == "__main__":
    main(*sys.argv[1:])
