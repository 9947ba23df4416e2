"""The llama architecture in plain numpy, float32 throughout: what the engines' logits are measured against.

No quantised activations, no rounded key-value cache, no fused loops. Weights are decoded by `appliance.models`;
nothing of `appliance.engine` is used. B = positions, D = model dimension, H = heads, E = head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from appliance.models.file import gguf
from appliance.models.file.gguf import TensorInfo
from tests.support import caches, decoders

Floats = NDArray[np.float32]


class ReferenceModel:
    """One model, decoded to float32. `round_cache` rounds keys and values to half floats, as
    engines keep them, or to the cache format named (with it also queries)."""

    def __init__(self, data: bytes, *, round_cache: bool | str = False) -> None:
        file = gguf.parse(data)
        meta = file.metadata
        self.metadata = meta
        self.tensors = {name: _decode(info, data) for name, info in file.tensors.items()}
        self.round_cache = round_cache
        self.layers = int(meta["llama.block_count"])
        self.heads = int(meta["llama.attention.head_count"])
        self.kv_heads = int(meta.get("llama.attention.head_count_kv", self.heads))
        self.head_size = int(meta.get("llama.attention.key_length", int(meta["llama.embedding_length"]) // self.heads))
        self.epsilon = np.float32(meta["llama.attention.layer_norm_rms_epsilon"])

    def logits(self, ids: Sequence[int], last: int | None = None) -> Floats:
        """Logits (positions, vocabulary) after each of the last `last` tokens of `ids` (default: all)."""
        cos, sin = self._rotation(len(ids))
        x = self.tensors["token_embd.weight"][np.asarray(ids)]  # (B, D)
        for layer in range(self.layers):
            x = x + self._attention(layer, self._norm(x, f"blk.{layer}.attn_norm.weight"), cos, sin)
            x = x + self._feed_forward(layer, self._norm(x, f"blk.{layer}.ffn_norm.weight"))
        x = self._norm(x[-(last or len(ids)):], "output_norm.weight")
        output = self.tensors.get("output.weight", self.tensors["token_embd.weight"])
        return np.asarray(x @ output.T, np.float32)

    def _norm(self, x: Floats, name: str) -> Floats:
        scale = 1 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        return np.asarray(x * scale * self.tensors[name], np.float32)

    def _project(self, x: Floats, layer: int, name: str) -> Floats:
        bias = self.tensors.get(f"blk.{layer}.{name}.bias", np.float32(0))
        return np.asarray(x @ self.tensors[f"blk.{layer}.{name}.weight"].T + bias, np.float32)

    def _attention(self, layer: int, x: Floats, cos: Floats, sin: Floats) -> Floats:
        positions = len(x)
        q = _rotate(self._project(x, layer, "attn_q").reshape(positions, self.heads, -1), cos, sin)  # (B, H, E)
        k = _rotate(self._project(x, layer, "attn_k").reshape(positions, self.kv_heads, -1), cos, sin)
        v = self._project(x, layer, "attn_v").reshape(positions, self.kv_heads, -1)
        if self.round_cache:
            q, k, v = self._rounded(q, k, v)
        shared = self.heads // self.kv_heads
        k, v = np.repeat(k, shared, axis=1), np.repeat(v, shared, axis=1)
        scores = q.transpose(1, 0, 2) @ k.transpose(1, 2, 0) / np.float32(math.sqrt(self.head_size))  # (H, B, B)
        scores = np.where(np.tri(positions, dtype=bool), scores, np.float32(-np.inf))
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        mixed = (shares @ v.transpose(1, 0, 2)).transpose(1, 0, 2).reshape(positions, -1)
        return self._project(mixed, layer, "attn_output")

    def _rounded(self, q: Floats, k: Floats, v: Floats) -> tuple[Floats, Floats, Floats]:
        kind = self.round_cache if isinstance(self.round_cache, str) else "f16"
        asked, keys, values = (x.reshape(-1, x.shape[-1]) for x in (q, k, v))
        return (caches.query(kind, asked).astype(np.float32).reshape(q.shape),
                caches.decoded(caches.form(kind, keys=True), keys).reshape(k.shape),
                caches.decoded(caches.form(kind, keys=False), values).reshape(v.shape))

    def _feed_forward(self, layer: int, x: Floats) -> Floats:
        gate = self._project(x, layer, "ffn_gate")
        gate = gate / (1 + np.exp(-gate))
        return self._project(gate * self._project(x, layer, "ffn_up"), layer, "ffn_down")

    def _rotation(self, positions: int) -> tuple[Floats, Floats]:
        """Cosines and sines (positions, 1, E / 2) of each position's angles, scaled as the metadata says."""
        half = self.head_size // 2
        base = float(self.metadata.get("llama.rope.freq_base", 10000.0))
        frequency = base ** (-np.arange(half) / half)  # radians per position
        if "rope_freqs.weight" in self.tensors:
            frequency = frequency / self.tensors["rope_freqs.weight"]
        kind = self.metadata.get("llama.rope.scaling.type", "none")
        factor = float(self.metadata.get("llama.rope.scaling.factor", 1.0))
        magnitude = 1.0
        if kind == "linear":
            frequency = frequency / factor
        elif kind == "yarn":
            keep = self._yarn_keep(half, base)
            frequency = frequency * keep + frequency / factor * (1 - keep)
            magnitude = 1 + 0.1 * math.log(factor)
        angles = np.arange(positions)[:, None, None] * frequency
        return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)

    def _yarn_keep(self, half: int, base: float) -> NDArray[np.float64]:
        """How much of each frequency YaRN leaves as trained: 1 for the fast ones, 0 for the slow (arXiv 2309.00071)."""
        context = self.metadata["llama.rope.scaling.original_context_length"]

        def dimension(rotations: float) -> float:
            return half * math.log(context / (rotations * 2 * math.pi)) / math.log(base)

        low, high = max(0, math.floor(dimension(32))), min(2 * half - 1, math.ceil(dimension(1)))
        return 1 - np.clip((np.arange(half) - low) / max(0.001, high - low), 0, 1)


def _decode(info: TensorInfo, data: bytes) -> Floats:
    raw = memoryview(data)[info.offset:info.offset + info.nbytes]
    decoded = decoders.dequantise(info.format, raw, info.rows, info.columns)
    return decoded if len(info.shape) > 1 else decoded[0]


def _rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate neighbouring pairs of x (B, H, E) by the angles of their position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    out = np.empty_like(x)
    out[..., 0::2], out[..., 1::2] = even * cos - odd * sin, even * sin + odd * cos
    return out


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    """Log probabilities over the last axis, in float64."""
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True)))


def divergence(reference: Floats, logits: Floats) -> NDArray[np.float64]:
    """KL divergence (positions,) of the distribution of `logits` from that of `reference`, in nats."""
    p, q = log_softmax(reference), log_softmax(logits)
    return np.asarray((np.exp(p) * (p - q)).sum(axis=-1))
