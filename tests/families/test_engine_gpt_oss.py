"""gpt-oss in float64, as its publisher writes it down.

The publisher appends a head's sink to the scores of a row, takes the softmax and drops the last share. Its rotation
blends frequencies from a fraction of a pair on (`truncate` is false in its configuration). T tokens, H heads, E
elements, K experts of a token.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from appliance.engine.engine import Engine, EngineOptions
from appliance.models.file import gguf
from tests.support import decoders, family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

Doubles = NDArray[np.float64]
IDS = [1, *np.random.default_rng(14).integers(3, family_models.VOCABULARY, 150).tolist()]
"""A text in which no two experts are so close that rounding chooses between them."""


class _Model:
    """A model of the family, decoded; `changed` are keys of metadata with other values."""

    def __init__(self, data: bytes, **changed: Any) -> None:
        file = gguf.parse(data)
        self.meta = {key.removeprefix("gpt-oss."): value for key, value in file.metadata.items()} | {
            key.replace("__", "."): value for key, value in changed.items()}
        self.tensors = {name: self._decoded(info, data) for name, info in file.tensors.items()}

    @staticmethod
    def _decoded(info: gguf.TensorInfo, data: bytes) -> Doubles:
        raw = memoryview(data)[info.offset:info.offset + info.nbytes]
        return decoders.dequantise(info.format, raw, info.rows, info.columns).astype(np.float64).reshape(info.shape)

    def norm(self, x: Doubles, name: str) -> Doubles:
        scale = np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.meta["attention.layer_norm_rms_epsilon"])
        return np.asarray(x / scale * self.tensors[f"{name}.weight"])

    def linear(self, x: Doubles, name: str) -> Doubles:
        return np.asarray(x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0))

    def turned(self, x: Doubles) -> Doubles:
        """x (T, H, E) rotated by halves, YaRN's blend between fractions of pairs."""
        size, base = x.shape[-1], self.meta["rope.freq_base"]
        frequency = base ** (-np.arange(0, size, 2) / size)
        context, factor = self.meta["rope.scaling.original_context_length"], self.meta["rope.scaling.factor"]
        low, high = (size * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(base)) for turns in (32.0, 1.0))
        ramp = np.clip((np.arange(size // 2) - max(low, 0)) / (min(high, size - 1) - max(low, 0)), 0, 1)
        frequency = frequency / factor * ramp + frequency * (1 - ramp)
        angles = np.arange(len(x))[:, None, None] * frequency
        cosine, sine = (turn(angles) * (0.1 * math.log(factor) + 1) for turn in (np.cos, np.sin))
        first, second = np.split(x, 2, axis=-1)
        return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)

    def attention(self, layer: int, x: Doubles) -> Doubles:
        name, rows, heads = f"blk.{layer}.attn_", len(x), self.meta["attention.head_count"]
        query, key, value = (self.linear(x, name + part).reshape(rows, -1, self.meta["attention.key_length"])
                             for part in "qkv")
        shared = heads // key.shape[1]
        query, key, value = self.turned(query), np.repeat(self.turned(key), shared, 1), np.repeat(value, shared, 1)
        past = np.arange(rows)[:, None] - np.arange(rows)
        seen = (past >= 0) & (past < (self.meta["attention.sliding_window"] if layer % 2 == 0 else rows))
        scores = np.where(seen, np.einsum("the,phe->htp", query, key) / math.sqrt(query.shape[-1]), -np.inf)
        sinks = np.broadcast_to(self.tensors[f"{name}sinks.weight"][:, None, None], (heads, rows, 1))
        scores = np.concatenate([scores, sinks], axis=-1)
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares = (shares / shares.sum(axis=-1, keepdims=True))[..., :-1]
        return self.linear(np.einsum("htp,phe->the", shares, value).reshape(rows, -1), f"{name}output")

    def feed_forward(self, layer: int, x: Doubles) -> Doubles:
        logits = self.linear(x, f"blk.{layer}.ffn_gate_inp")
        ids = np.argsort(-logits, axis=1, kind="stable")[:, :self.meta["expert_used_count"]]  # (T, K)
        powers = np.exp(np.take_along_axis(logits, ids, 1))
        out = np.zeros_like(x)
        for row, (chosen, weights) in enumerate(zip(ids, powers / powers.sum(axis=1, keepdims=True), strict=True)):
            for expert, weight in zip(chosen, weights, strict=True):
                out[row] += weight * self.expert(f"blk.{layer}.ffn_", int(expert), x[row])
        return out

    def expert(self, name: str, expert: int, x: Doubles) -> Doubles:
        """What an expert makes of a row."""
        def linear(part: str, x: Doubles) -> Doubles:
            return np.asarray(self.tensors[f"{name}{part}_exps.weight"][expert] @ x
                              + self.tensors[f"{name}{part}_exps.bias"][expert])

        gate, up = np.minimum(linear("gate", x), 7.0), np.clip(linear("up", x), -7.0, 7.0)
        return linear("down", (up + 1) * gate / (1 + np.exp(-1.702 * gate)))

    def logits(self, ids: list[int]) -> Doubles:
        x = self.tensors["token_embd.weight"][ids]
        for layer in range(self.meta["block_count"]):
            x = x + self.attention(layer, self.norm(x, f"blk.{layer}.attn_norm"))
            x = x + self.feed_forward(layer, self.norm(x, f"blk.{layer}.post_attention_norm"))
        return self.linear(self.norm(x, "output_norm"), "output")


@pytest.fixture(scope="module")
def data() -> bytes:
    """A model whose matrices are not quantised, so that activations are not."""
    return family_models.model("gpt-oss.fractions", ("F32",))


@pytest.fixture(scope="module")
def found(data: bytes) -> NDArray[np.float32]:
    """The engine's logits."""
    with opened(data) as source, Engine.open(
            source, EngineOptions(threads=2, slots=1, context_length=family_models.CONTEXT),
            kernels=kernels()) as engine:
        return logits_of(engine, IDS)


def test_the_publishers_arithmetic(data: bytes, found: NDArray[np.float32]) -> None:
    """What is between the two is how sums are rounded, and keys and values of 16 bits."""
    expected = _Model(data).logits(IDS)
    assert np.abs(expected - found).max() <= expected.std() / 250


@pytest.mark.parametrize("changed", [{"attention__sliding_window": 25}, {"attention__sliding_window": 1000},
                                     {"rope__freq_base": 140000.0}, {"rope__scaling__factor": 5.0}])
def test_the_comparison_sees(data: bytes, found: NDArray[np.float32], changed: dict[str, Any]) -> None:
    """Models that differ in one number alone are told apart."""
    expected = _Model(data, **changed).logits(IDS)
    assert np.abs(expected - found).max() > expected.std() / 50


@pytest.mark.parametrize("part", ["attn_sinks.weight", "attn_output.bias", "ffn_gate_exps.bias",
                                  "ffn_gate_inp.bias"])
def test_the_comparison_sees_a_tensor(data: bytes, found: NDArray[np.float32], part: str) -> None:
    """Likewise for one tensor of one layer."""
    model = _Model(data)
    model.tensors[f"blk.1.{part}"] = 1.0 - model.tensors[f"blk.1.{part}"]
    expected = model.logits(IDS)
    assert np.abs(expected - found).max() > expected.std() / 50
