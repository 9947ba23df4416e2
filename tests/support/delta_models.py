"""A small model of each family with gated delta rules, with the names, shapes and keys of llama.cpp's converter.

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
    **COMMON, "embedding_length": WIDTH, "feed_forward_length": 160, "attention.head_count": 4,
    "attention.key_length": 64, "attention.value_length": 64, "attention.layer_norm_rms_epsilon": 1e-6,
    "rope.dimension_count": 32, "rope.dimension_sections": [6, 5, 5, 0], "rope.freq_base": 1e7,
    "ssm.conv_kernel": 4, "ssm.state_size": 32, "ssm.group_count": 2, "ssm.time_step_rank": 4, "ssm.inner_size": 128,
    "full_attention_interval": 4}
MIXTURE = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 64,
           "expert_shared_feed_forward_length": 96}


@dataclass(frozen=True)
class Row:
    """What a header says beside HEADER (None takes a key away), and how its weights are drawn."""

    header: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # one whose choices of experts are clear: the script that asks the publisher's code checks it
    tied: bool = False


MODELS = {
    "qwen35": Row(),
    # Every second layer attends. One key head for three value heads; larger states; tied embeddings.
    "qwen35.shared": Row({"full_attention_interval": 2, "ssm.group_count": 1, "ssm.time_step_rank": 3,
                          "ssm.state_size": 64, "ssm.inner_size": 192}, tied=True),
    # As many key heads as value heads, layers by a list, and a last layer that guesses.
    "qwen35.guessing": Row({"ssm.group_count": 4, "block_count": 5, "nextn_predict_layers": 1,
                            "attention.recurrent_layers": [True, True, False, True, False]}),
    "qwen35moe": Row(MIXTURE, seed=1),
    "qwen35moe.guessing": Row({**MIXTURE, "block_count": 5, "nextn_predict_layers": 1}, seed=3),
    "qwen3next": Row({**MIXTURE, "rope.dimension_sections": None}, seed=1),
    "qwen3next.many": Row({**MIXTURE, "rope.dimension_sections": None, "ssm.time_step_rank": 6, "ssm.inner_size": 192,
                           "expert_count": 16, "expert_used_count": 4}, seed=3),
}
Shape = tuple[int, ...]


def header(name: str) -> dict[str, Any]:
    """The keys of a model's family."""
    return {key: value for key, value in {**HEADER, **MODELS[name].header}.items() if value is not None}


def metadata(name: str) -> dict[str, Any]:
    """The keys of a model's header, without the tokenizer's."""
    family = name.partition(".")[0]
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in header(name).items()}}


def recurrent(said: dict[str, Any], block: int) -> bool:
    """Whether a block keeps a state."""
    trunk = said["block_count"] - said.get("nextn_predict_layers", 0)
    listed = said.get("attention.recurrent_layers")
    return block < trunk and bool(listed[block] if listed else (block + 1) % said["full_attention_interval"])


def shapes(name: str) -> dict[str, Shape]:
    """The tensors of a model as numpy has them: a matrix is (rows, columns), experts' are (experts, rows, columns)."""
    said, family = header(name), name.partition(".")[0]
    found: dict[str, Shape] = {"token_embd.weight": (VOCABULARY, WIDTH), "output_norm.weight": (WIDTH,)}
    if not MODELS[name].tied:
        found["output.weight"] = (VOCABULARY, WIDTH)
    for block in range(said["block_count"]):
        mixer = _delta(family, said) if recurrent(said, block) else _attention(said)
        for part, shape in (*mixer, *_feed_forward(said), *_guessing(said, block)):
            found[f"blk.{block}.{part}"] = shape
    return found


def _attention(said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    size = said["attention.key_length"]
    query, keys = said["attention.head_count"] * size, said["attention.head_count_kv"] * size
    yield "attn_q.weight", (2 * query, WIDTH)  # of each head its query, then its gate
    yield "attn_k.weight", (keys, WIDTH)
    yield "attn_v.weight", (keys, WIDTH)
    yield "attn_output.weight", (WIDTH, query)
    yield "attn_q_norm.weight", (size,)
    yield "attn_k_norm.weight", (size,)


def _delta(family: str, said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    size, heads, values = said["ssm.state_size"], said["ssm.time_step_rank"], said["ssm.inner_size"]
    mixed = 2 * size * said["ssm.group_count"] + values
    yield "attn_qkv.weight", (mixed, WIDTH)
    yield "attn_gate.weight", (values, WIDTH)
    yield "ssm_conv1d.weight", (mixed, said["ssm.conv_kernel"])
    yield "ssm_dt.bias", (heads,)
    yield "ssm_a", (heads,)
    for part in ("beta", "alpha") if family != "qwen3next" else ():
        yield f"ssm_{part}.weight", (heads, WIDTH)
    if family == "qwen3next":
        yield "ssm_ba.weight", (2 * heads, WIDTH)
    yield "ssm_norm.weight", (size,)
    yield "ssm_out.weight", (WIDTH, values)


def _feed_forward(said: dict[str, Any]) -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (WIDTH,)
    yield "post_attention_norm.weight", (WIDTH,)
    if "expert_count" not in said:
        yield from _gated("", said["feed_forward_length"])
        return
    count = said["expert_count"]
    yield "ffn_gate_inp.weight", (count, WIDTH)
    yield "ffn_gate_inp_shexp.weight", (WIDTH,)
    for part, shape in _gated("_exps", said["expert_feed_forward_length"]):
        yield part, (count, *shape)
    yield from _gated("_shexp", said["expert_shared_feed_forward_length"])


def _gated(ending: str, inner: int) -> Iterator[tuple[str, Shape]]:
    yield f"ffn_gate{ending}.weight", (inner, WIDTH)
    yield f"ffn_up{ending}.weight", (inner, WIDTH)
    yield f"ffn_down{ending}.weight", (WIDTH, inner)


def _guessing(said: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    """Beside the tensors of a block, those of one that guesses the token after the next."""
    if block < said["block_count"] - said.get("nextn_predict_layers", 0):
        return
    yield "nextn.eh_proj.weight", (WIDTH, 2 * WIDTH)
    for part in ("enorm", "hnorm", "shared_head_norm"):
        yield f"nextn.{part}.weight", (WIDTH,)


def values(name: str, tensor: str, shape: Shape) -> np.ndarray:
    """The float32 numbers of a tensor."""
    row = MODELS[name]
    noise = np.random.default_rng([17, row.seed, *f"{name} {tensor}".encode()]).standard_normal(shape)
    part = tensor.split(".", 2)[-1] if tensor.startswith("blk.") else tensor
    if part == "ssm_a":  # from 0.05 to 8 in the publisher's models, below zero
        noise = -np.exp(noise * 1.5 - 1)
    elif "norm" in part:
        noise = 1 + noise / 5
    elif part == "ssm_conv1d.weight":
        noise /= 2
    elif not part.endswith(".bias"):
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
