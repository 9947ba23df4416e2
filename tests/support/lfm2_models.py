"""Small models of LFM2 and LFM2-MoE, with the names, shapes and keys that llama.cpp's converter writes.

A row of MODELS says what differs, and asks no table of the product. Each tensor is drawn from its own name. All weights
are float32.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.support.family_models import COMMON, VOCABULARY, header_key, tokenizer_keys
from tests.support.ggufs import Tensor, build

WIDTH, HEAD = 128, 32
HEADER: dict[str, Any] = {**{key: value for key, value in COMMON.items() if "_length" not in key or "." not in key},
                          "embedding_length": WIDTH, "feed_forward_length": 160, "attention.head_count": 4,
                          "attention.head_count_kv": [0, 0, 2, 0], "attention.layer_norm_rms_epsilon": 1e-5,
                          "rope.freq_base": 1e6, "shortconv.l_cache": 3}
EXPERTS = {"expert_count": 8, "expert_used_count": 3, "expert_feed_forward_length": 96, "expert_gating_func": 2,
           "leading_dense_block_count": 1, "attention.head_count_kv": [0, 2, 0, 2]}


@dataclass(frozen=True)
class Convolved:
    """What a header says beside HEADER, and the deviations of what chooses experts."""

    header: dict[str, Any] = field(default_factory=dict)
    seed: int = 0  # one whose choices of experts are clear: the script that asks the publisher's code checks it
    tied: bool = True
    spread: float = 1.5  # how far the router's logits lie apart
    selection: float = 0.2  # of the bias for choosing; 0: there is none


MODELS = {
    "lfm2": Convolved(),
    "lfm2.wide": Convolved({"shortconv.l_cache": 5, "attention.head_count_kv": [1, 0, 0, 1]}, tied=False),
    "lfm2.two": Convolved({"shortconv.l_cache": 2}),
    "lfm2moe": Convolved(EXPERTS, seed=5),
    "lfm2moe.sums": Convolved({**EXPERTS, "expert_weights_norm": False, "expert_weights_scale": 1.5}, selection=0.0,
                              seed=1),
    # Chosen by their bias, experts whose scores add up to little: the number that is added to the sum shows.
    "lfm2moe.improbable": Convolved(EXPERTS, spread=40.0, selection=3.0, seed=1),
}
Shape = tuple[int, ...]


def metadata(name: str) -> dict[str, Any]:
    """The keys of a model's header, without the tokenizer's."""
    family = name.partition(".")[0]
    return {"general.architecture": family, **{f"{family}.{key}": value for key, value in {
        **HEADER, **MODELS[name].header}.items()}}


def shapes(name: str) -> dict[str, Shape]:
    """The tensors of a model as numpy has them: a matrix is (rows, columns)."""
    row = MODELS[name]
    header = {**HEADER, **row.header}
    found: dict[str, Shape] = {"token_embd.weight": (VOCABULARY, WIDTH), "token_embd_norm.weight": (WIDTH,)}
    if not row.tied:
        found["output.weight"] = (VOCABULARY, WIDTH)
    for block in range(header["block_count"]):
        for part, shape in (*_mixer(header, block), *_feed_forward(row, header, block)):
            found[f"blk.{block}.{part}"] = shape
    return found


def _mixer(header: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    yield "attn_norm.weight", (WIDTH,)
    yield "ffn_norm.weight", (WIDTH,)
    keys = header["attention.head_count_kv"][block] * HEAD
    if not keys:
        yield "shortconv.conv.weight", (WIDTH, header["shortconv.l_cache"])
        yield "shortconv.in_proj.weight", (3 * WIDTH, WIDTH)
        yield "shortconv.out_proj.weight", (WIDTH, WIDTH)
        return
    for part, shape in (("q", (WIDTH, WIDTH)), ("k", (keys, WIDTH)), ("v", (keys, WIDTH)), ("output", (WIDTH, WIDTH))):
        yield f"attn_{part}.weight", shape
    yield "attn_q_norm.weight", (HEAD,)
    yield "attn_k_norm.weight", (HEAD,)


def _feed_forward(row: Convolved, header: dict[str, Any], block: int) -> Iterator[tuple[str, Shape]]:
    experts, inner = (), header["feed_forward_length"]
    if block >= header.get("leading_dense_block_count", header["block_count"]):
        experts, inner = (header["expert_count"],), header["expert_feed_forward_length"]
        yield "ffn_gate_inp.weight", (*experts, WIDTH)
        if row.selection:
            yield "exp_probs_b.bias", experts
    ending = "_exps" if experts else ""
    yield f"ffn_gate{ending}.weight", (*experts, inner, WIDTH)
    yield f"ffn_up{ending}.weight", (*experts, inner, WIDTH)
    yield f"ffn_down{ending}.weight", (*experts, WIDTH, inner)


def values(name: str, tensor: str, shape: Shape) -> np.ndarray:
    """The float32 numbers of a tensor."""
    row = MODELS[name]
    noise = np.random.default_rng([17, row.seed, *f"{name} {tensor}".encode()]).standard_normal(shape)
    part = tensor.split(".", 2)[-1] if tensor.startswith("blk.") else tensor
    if part == "exp_probs_b.bias":
        noise *= row.selection
    elif "norm" in part:
        noise = 1 + noise / 5
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
