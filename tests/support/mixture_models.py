"""A small mixture of each family and option, with the names, shapes and keys that llama.cpp's converter writes.

A row of MODELS and the lists of tensors below it say what llama.cpp says, and ask no table of the product. Each tensor
is drawn from its own name, so it does not depend on the order of the others. All weights are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.family_models import COMMON, UNTURNED, VOCABULARY, header_key, tokenizer_keys
from tests.support.ggufs import Tensor, build

WIDTH, HEAD = 128, 32
HEADER: dict[str, Any] = {**COMMON, "block_count": 3, "embedding_length": WIDTH, "feed_forward_length": 96,
                          "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5,
                          "expert_count": 8, "expert_used_count": 2}
GRANITE = {"embedding_scale": 6.0, "residual_scale": 0.22, "logit_scale": 2.0, "attention.scale": 0.1,
           "rope.dimension_count": HEAD}
GLM = {"rope.freq_base": 1e6, "attention.key_length": 64, "attention.value_length": 64, "rope.dimension_count": 32,
       "feed_forward_length": 160, "expert_used_count": 3, "expert_feed_forward_length": 96, "expert_shared_count": 1,
       "leading_dense_block_count": 1, "expert_gating_func": 2, "expert_weights_norm": True, "expert_group_count": 1,
       "expert_group_used_count": 1}
ERNIE = {"rope.freq_base": 5e5, "feed_forward_length": 160, "expert_feed_forward_length": 64,
         "interleave_moe_layer_step": 1, "leading_dense_block_count": 1}
GEMMA = {"block_count": 6, "attention.sliding_window": 16, "rope.freq_base": 1e6, "rope.freq_base_swa": 10000.0,
         "attention.key_length": 64, "attention.value_length": 64, "attention.key_length_swa": HEAD,
         "attention.value_length_swa": HEAD, "rope.dimension_count": 64, "rope.dimension_count_swa": HEAD,
         "attention.head_count_kv": [2, 2, 2, 2, 2, 1], "final_logit_softcapping": 30.0,
         "attention.sliding_window_pattern": [True] * 5 + [False], "attention.shared_kv_layers": 0,
         "embedding_length_per_layer_input": 0, "expert_feed_forward_length": 64}
OWN = {"attention.key_length": 48, "attention.value_length": 48}  # heads that do not add up to the width


@dataclass(frozen=True)
class Mixture:
    """What a header says beside HEADER (None takes a key away), and which tensors there are."""

    header: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # one whose choices of experts are clear: the script that asks the publisher's code checks it
    norms: str = ""  # of queries and keys: "head", "row" or none
    biases: str = ""  # of the matrices whose letters are here: queries, keys, values, output
    spread: float = 3.0  # how far the router's logits lie apart
    selection: float = 0.0  # deviation of the bias for choosing
    tied: bool = False


QWEN2 = {"rope.freq_base": 1e6, "feed_forward_length": 160, "expert_feed_forward_length": 64,
          "expert_shared_feed_forward_length": 96}
QWEN3 = {**OWN, "rope.freq_base": 1e6, "expert_feed_forward_length": 64, "expert_used_count": 3}
MODELS = {
    "llama.experts": Mixture({"rope.dimension_count": HEAD}),
    "qwen2moe": Mixture(QWEN2, biases="qkv", seed=6),
    "qwen2moe.normalised": Mixture({**QWEN2, "expert_weights_norm": True}, biases="qkv", seed=6),
    "qwen3moe": Mixture(QWEN3, norms="head", seed=3),
    "qwen3moe.sums": Mixture({**QWEN3, "expert_weights_norm": False}, norms="head", seed=6),
    "qwen3vlmoe": Mixture({"rope.freq_base": 5e6, "rope.dimension_sections": [6, 5, 5, 0], "n_deepstack_layers": 3,
                           "expert_feed_forward_length": 64}, norms="head"),
    "gpt-oss": Mixture({"rope.freq_base": 150000.0, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
                        "rope.scaling.original_context_length": 128, "rope.scaling.yarn_beta_fast": 32.0,
                        "rope.scaling.yarn_beta_slow": 1.0, "attention.sliding_window": 16, "block_count": 4,
                        "attention.key_length": 64, "attention.value_length": 64,
                        "expert_feed_forward_length": 96}, biases="qkvo", seed=5),
    "gemma4.experts": Mixture(GEMMA, norms="head", tied=True, seed=6),
    "granitemoe": Mixture({**GRANITE, "expert_used_count": 3}, seed=5),
    "granitemoe.shared": Mixture({**GRANITE, "expert_shared_feed_forward_length": 160}, tied=True, seed=6),
    "olmoe": Mixture({"attention.head_count_kv": 4, "expert_count": 16, "expert_used_count": 4}, norms="row",
                     seed=4),
    "glm4moe": Mixture({**GLM, "expert_weights_scale": 1.0, "block_count": 4, "nextn_predict_layers": 1},
                       biases="qkv", selection=0.2, spread=1.5, seed=5),
    "glm4moe.groups": Mixture({
        **GLM, "expert_weights_scale": 2.5, "expert_count": 16, "expert_used_count": 4, "expert_group_count": 4,
        "expert_group_used_count": 2, "leading_dense_block_count": 2, "block_count": 4, "expert_shared_count": 2},
        biases="qkv", norms="head", selection=0.2, spread=1.5, seed=3),
    "glm4moe.sums": Mixture({**GLM, "expert_weights_scale": 1.5, "expert_weights_norm": False}, biases="qkv",
                            selection=0.2, spread=1.5, seed=3),
    "ernie4_5-moe": Mixture({**ERNIE, "expert_shared_count": 2, "expert_shared_feed_forward_length": 128},
                            selection=0.1, tied=True, seed=1),
    # Chosen by their bias, experts whose scores add up to less than the least divisor of llama.cpp.
    "ernie4_5-moe.improbable": Mixture({**ERNIE, "leading_dense_block_count": 0}, selection=3.0, spread=12.0, seed=6),
}
Shape = tuple[int, ...]


def metadata(name: str) -> dict[str, Any]:
    """The keys of a model's header, without the tokenizer's."""
    family, row = name.partition(".")[0], MODELS[name]
    keys = {key: value for key, value in {**HEADER, **row.header}.items() if value is not None}
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in keys.items()}}


def shapes(name: str) -> dict[str, Shape]:
    """The tensors of a model as numpy has them: a matrix is (rows, columns), experts' are (experts, rows, columns)."""
    row, family = MODELS[name], name.partition(".")[0]
    header = {**HEADER, **row.header}
    found: dict[str, Shape] = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if not row.tied:
        found["output.weight"] = (VOCABULARY, WIDTH)
    if family == "gemma4":
        found["rope_freqs.weight"] = (header["attention.key_length"] // 2,)
    for block in range(header["block_count"]):
        for part, shape in (*_attention(family, row, header, block), *_feed_forward(family, row, header, block),
                            *_guessing(header, block)):
            found[f"blk.{block}.{part}"] = shape
    return found


def _attention(family: str, row: Mixture, header: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    groups = header["attention.head_count_kv"]
    groups = groups if isinstance(groups, int) else groups[block]
    local = family == "gemma4" and header["attention.sliding_window_pattern"][block]
    head = header["attention.key_length_swa" if local else "attention.key_length"]
    query, keys = header["attention.head_count"] * head, groups * head
    sizes = {"q": (query, WIDTH), "k": (keys, WIDTH), "v": (keys, WIDTH), "output": (WIDTH, query)}
    if family == "gemma4" and not local:
        del sizes["v"]  # its keys are its values
    for part, shape in sizes.items():
        yield f"attn_{part}.weight", shape
        if part[0] in row.biases:
            yield f"attn_{part}.bias", shape[:1]
    if row.norms:
        yield "attn_q_norm.weight", (query if row.norms == "row" else head,)
        yield "attn_k_norm.weight", (keys if row.norms == "row" else head,)
    yield "attn_norm.weight", (WIDTH,)
    yield ("post_attention_norm.weight" if family in ("gpt-oss", "glm4moe") else "ffn_norm.weight"), (WIDTH,)
    if family == "gpt-oss":
        yield "attn_sinks.weight", (header["attention.head_count"],)
    if family == "gemma4":
        yield "post_attention_norm.weight", (WIDTH,)
        yield "post_ffw_norm.weight", (WIDTH,)
        yield "layer_output_scale.weight", (1,)


def _feed_forward(family: str, row: Mixture, header: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    if block < header.get("leading_dense_block_count", 0):
        yield from _gated("", header["feed_forward_length"])
        return
    count, inner = header["expert_count"], header.get("expert_feed_forward_length", header["feed_forward_length"])
    yield "ffn_gate_inp.weight", (count, WIDTH)
    if row.selection:
        yield "exp_probs_b.bias", (count,)
    if family == "gemma4":
        yield from _gated("", header["feed_forward_length"])
        yield "ffn_gate_inp.scale", (WIDTH,)
        yield "ffn_gate_up_exps.weight", (count, 2 * inner, WIDTH)
        yield "ffn_down_exps.weight", (count, WIDTH, inner)
        yield "ffn_down_exps.scale", (count,)
        for part in ("pre_ffw_norm_2", "post_ffw_norm_1", "post_ffw_norm_2"):
            yield f"{part}.weight", (WIDTH,)
        return
    for part, shape in _gated("_exps", inner):
        yield part, (count, *shape)
        if family == "gpt-oss":
            yield part.replace("weight", "bias"), (count, shape[0])
    if family == "gpt-oss":
        yield "ffn_gate_inp.bias", (count,)
    if family == "qwen2moe":
        yield "ffn_gate_inp_shexp.weight", (WIDTH,)
    shared = header.get("expert_shared_feed_forward_length", inner * header.get("expert_shared_count", 0))
    if shared:
        yield from _gated("_shexp", shared)


def _gated(ending: str, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"ffn_gate{ending}.weight", (inner, WIDTH)
    yield f"ffn_up{ending}.weight", (inner, WIDTH)
    yield f"ffn_down{ending}.weight", (WIDTH, inner)


def _guessing(header: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    """Beside the tensors of a block, those of one that guesses the token after the next."""
    if block < header["block_count"] - header.get("nextn_predict_layers", 0):
        return
    yield "nextn.eh_proj.weight", (WIDTH, 2 * WIDTH)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        yield f"nextn.{part}.weight", (WIDTH,)


def values(name: str, tensor: str, shape: Shape) -> np.ndarray:
    """The float32 numbers of a tensor."""
    row = MODELS[name]
    noise = np.random.default_rng([13, row.seed, *f"{name} {tensor}".encode()]).standard_normal(shape)
    part = tensor.split(".", 2)[-1] if tensor.startswith("blk.") else tensor
    if part == "rope_freqs.weight":
        noise = np.where(np.arange(shape[0]) < shape[0] // 4, 1.0, UNTURNED)
    elif part == "exp_probs_b.bias":
        noise *= row.selection
    elif part in ("ffn_gate_exps.bias", "ffn_up_exps.bias"):
        noise *= 4  # so that some are beyond 7, where they are cut
    elif part == "ffn_gate_inp.scale":
        noise = (1 + noise / 5) * shape[0]**0.5
    elif "norm" in part or part.endswith("scale") or part == "layer_output_scale.weight":
        noise = 1 + noise / 5
    elif part.endswith(".bias"):
        noise /= 4
    elif part == "attn_sinks.weight":
        noise *= 2
    else:
        noise *= {"token_embd.weight": 1.0, "output.weight": 3 / shape[-1]**0.5,
                  "ffn_gate_inp.weight": row.spread / shape[-1]**0.5}.get(part, 1.2 / shape[-1]**0.5)
        noise *= 2 / WIDTH**0.5 if row.tied and part == "token_embd.weight" else 1
    return noise.astype(np.float32)


@functools.cache
def model(name: str) -> bytes:
    """The GGUF file of a model of MODELS."""
    tensors = [Tensor(tensor, 0, shape[::-1], values(name, tensor, shape).tobytes())
               for tensor, shape in shapes(name).items()]
    return build([*(header_key(key, value) for key, value in metadata(name).items()), *tokenizer_keys()], tensors)
