"""A small model of each family with Mamba-2 layers, with the names, shapes and keys of llama.cpp's converter.

A row of MODELS and the lists of tensors below it say what llama.cpp says, and ask no table of the product. Each tensor
is drawn from its own name. All weights are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.family_models import COMMON, VOCABULARY, header_key, tokenizer_keys
from tests.support.ggufs import Tensor, build

WIDTH = 128
HEADER: dict[str, Any] = {
    **COMMON, "embedding_length": WIDTH, "attention.head_count": 4, "attention.layer_norm_rms_epsilon": 1e-5,
    "rope.dimension_count": 32, "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 1,
    "ssm.inner_size": 256, "ssm.time_step_rank": 8, "rope.scaling.finetuned": False}
GRANITE = {"attention.key_length": None, "attention.value_length": None, "feed_forward_length": 160,
           "attention.head_count_kv": [0, 2, 0, 0], "embedding_scale": 6.0, "residual_scale": 0.22,
           "logit_scale": 2.0, "attention.scale": 0.1}
EXPERTS = {"expert_count": 8, "expert_used_count": 3, "feed_forward_length": 96,
           "expert_shared_feed_forward_length": 160}
NEMOTRON = {"block_count": 6, "attention.head_count_kv": [0, 0, 2, 0, 0, 0], "attention.layer_norm_epsilon": 1e-5,
            "feed_forward_length": [0, 160, 0, 160, 0, 160], "ssm.group_count": 2, "ssm.inner_size": 288,
            "ssm.time_step_rank": 6}
MIXED = {**NEMOTRON, "block_count": 5, "attention.head_count_kv": [0, 0, 0, 2, 0],
         "feed_forward_length": [0, 64, 0, 0, 64], "expert_count": 8, "expert_used_count": 3,
         "expert_feed_forward_length": 64, "expert_shared_count": 1, "expert_shared_feed_forward_length": 96,
         "expert_weights_norm": True, "expert_weights_scale": 2.5, "expert_group_count": 1}


@dataclass(frozen=True)
class Row:
    """What a header says beside HEADER (None takes a key away), and how its weights are drawn."""

    header: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # one whose choices of experts are clear: the script that asks the publisher's code checks it
    tied: bool = False
    biased: bool = True  # whether convolutions have a bias


MODELS = {
    "granitehybrid": Row({**GRANITE, "expert_shared_feed_forward_length": 160, "expert_count": 0,
                          "expert_used_count": 0}),
    # Heads are turned, as Bamba's; two groups, a shorter convolution, larger states and heads.
    "granitehybrid.turned": Row({**GRANITE, "rope.scaling.finetuned": True, "ssm.group_count": 2,
                                 "ssm.conv_kernel": 3, "ssm.state_size": 64, "ssm.time_step_rank": 4}, tied=True),
    "granitehybrid.experts": Row({**GRANITE, **EXPERTS}, tied=True, seed=2),
    "nemotron_h": Row(NEMOTRON),
    # A convolution without bias, one group, heads of 80.
    "nemotron_h.plain": Row({**NEMOTRON, "block_count": 4, "attention.head_count_kv": [2, 0, 0, 0],
                             "feed_forward_length": [0, 0, 96, 0], "ssm.group_count": 1, "ssm.inner_size": 160,
                             "ssm.time_step_rank": 2}, biased=False),
    "nemotron_h_moe": Row(MIXED, seed=7),
    # Weights that are not normalised, and a last layer that guesses.
    "nemotron_h_moe.sums": Row({**MIXED, "block_count": 6, "attention.head_count_kv": [0, 0, 0, 2, 0, 2],
                                "feed_forward_length": [0, 64, 0, 0, 64, 64], "expert_weights_norm": False,
                                "nextn_predict_layers": 1}, seed=11),
}
Shape = tuple[int, ...]


def header(name: str) -> dict[str, Any]:
    """The keys of a model's family."""
    return {key: value for key, value in {**HEADER, **MODELS[name].header}.items() if value is not None}


def metadata(name: str) -> dict[str, Any]:
    """The keys of a model's header, without the tokenizer's."""
    family = name.partition(".")[0]
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in header(name).items()}}


def shapes(name: str) -> dict[str, Shape]:
    """The tensors of a model as numpy has them: a matrix is (rows, columns), experts' are (experts, rows, columns)."""
    said = header(name)
    found: dict[str, Shape] = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if not MODELS[name].tied:
        found["output.weight"] = (VOCABULARY, WIDTH)
    for block in range(said["block_count"]):
        for part, shape in _block(name, said, block):
            found[f"blk.{block}.{part}"] = shape
    return found


def _block(name: str, said: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (WIDTH,)
    attends = said["attention.head_count_kv"][block] > 0
    if name.startswith("granitehybrid"):
        yield from _attention(said) if attends else _state(name, said)
        yield "ffn_norm.weight", (WIDTH,)
        yield from _granite(said)
        return
    guesses = block >= said["block_count"] - said.get("nextn_predict_layers", 0)
    wide = said["feed_forward_length"][block]
    if attends:
        yield from _attention(said)
    elif not wide:
        yield from _state(name, said)
    if wide:
        yield from _nemotron(said, wide)
    if guesses:
        yield "post_attention_norm.weight", (WIDTH,)
        yield "nextn.eh_proj.weight", (WIDTH, 2 * WIDTH)
        for part in ("enorm", "hnorm", "shared_head_norm"):
            yield f"nextn.{part}.weight", (WIDTH,)


def _attention(said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    size = WIDTH // said["attention.head_count"]
    keys = max(said["attention.head_count_kv"]) * size
    yield "attn_q.weight", (WIDTH, WIDTH)
    yield "attn_k.weight", (keys, WIDTH)
    yield "attn_v.weight", (keys, WIDTH)
    yield "attn_output.weight", (WIDTH, WIDTH)


def _state(name: str, said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    inner, heads, groups = said["ssm.inner_size"], said["ssm.time_step_rank"], said["ssm.group_count"]
    mixed = inner + 2 * groups * said["ssm.state_size"]
    yield "ssm_in.weight", (inner + mixed + heads, WIDTH)
    yield "ssm_conv1d.weight", (mixed, said["ssm.conv_kernel"])
    if MODELS[name].biased:
        yield "ssm_conv1d.bias", (mixed,)
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads, 1)
    yield "ssm_d", (heads, 1)
    yield "ssm_norm.weight", (groups, inner // groups)
    yield "ssm_out.weight", (WIDTH, inner)


def _granite(said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    if not said.get("expert_count"):
        yield from _gated("", said["feed_forward_length"])
        return
    yield "ffn_gate_inp.weight", (said["expert_count"], WIDTH)
    for part, shape in _gated("_exps", said["feed_forward_length"]):
        yield part, (said["expert_count"], *shape)
    yield from _gated("_shexp", said["expert_shared_feed_forward_length"])


def _nemotron(said: dict[str, Any], wide: int) -> Iterator[tuple[str, Shape]]:
    if "expert_count" not in said:
        yield "ffn_up.weight", (wide, WIDTH)
        yield "ffn_down.weight", (WIDTH, wide)
        return
    count, shared = said["expert_count"], said["expert_shared_feed_forward_length"]
    yield "ffn_gate_inp.weight", (count, WIDTH)
    yield "exp_probs_b.bias", (count,)
    yield "ffn_up_exps.weight", (count, wide, WIDTH)
    yield "ffn_down_exps.weight", (count, WIDTH, wide)
    yield "ffn_up_shexp.weight", (shared, WIDTH)
    yield "ffn_down_shexp.weight", (WIDTH, shared)


def _gated(ending: str, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"ffn_gate{ending}.weight", (inner, WIDTH)
    yield f"ffn_up{ending}.weight", (inner, WIDTH)
    yield f"ffn_down{ending}.weight", (WIDTH, inner)


def values(name: str, tensor: str, shape: Shape) -> np.ndarray:
    """The float32 numbers of a tensor."""
    row = MODELS[name]
    noise = np.random.default_rng([19, row.seed, *f"{name} {tensor}".encode()]).standard_normal(shape)
    part = tensor.split(".", 2)[-1] if tensor.startswith("blk.") else tensor
    if part == "ssm_a":  # from 0.05 to 8, below zero
        noise = -np.exp(noise * 1.5 - 1)
    elif part == "ssm_dt.bias":
        noise -= 1
    elif "norm" in part or part == "ssm_d":
        noise = 1 + noise / 5
    elif part == "ssm_conv1d.weight":
        noise /= 2
    elif part.endswith(".bias"):
        noise /= 4
    else:
        noise *= {"token_embd.weight": 1.0, "output.weight": 3 / shape[-1]**0.5,
                  "ffn_gate_inp.weight": 3 / shape[-1]**0.5}.get(part, 1.2 / shape[-1]**0.5)
        noise *= 2 / WIDTH**0.5 if row.tied and part == "token_embd.weight" else 1
    return noise.astype(np.float32)


@functools.cache
def model(name: str) -> bytes:
    """The GGUF file of a model of MODELS."""
    tensors = [Tensor(tensor, 0, shape[::-1], values(name, tensor, shape).tobytes())
               for tensor, shape in shapes(name).items()]
    return build([*(header_key(key, value) for key, value in metadata(name).items()), *tokenizer_keys()], tensors)
