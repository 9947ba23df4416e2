"""Small llama-architecture models, made from a seed: the same file, byte for byte, on every machine.

One float32 model per shape is stored in each block format; some variants turn on one more feature of the
architecture each. Weights are sums of uniform random numbers, so no mathematics library can make them differ.
"""

from __future__ import annotations

import functools
import zlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.models.file.quants import FORMATS
from tests.support.ggufs import BOOL, F32, I32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.quantisers import quantise

SEED = 20240229
LAYERS, DIM, FFN, VOCAB, CONTEXT = 3, 256, 512, 512, 512
ROPE_BASE, EPSILON = 10000.0, 1e-5

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Variant:
    """One synthetic model. `rope` is "none", "linear", "yarn" or "factors" (the tensor of Llama 3.1)."""

    name: str
    format: str
    heads: int = 8
    kv_heads: int = 2
    tied: bool = False
    rope: str = "none"
    better: str | None = None  # the format of attn_v, ffn_down and output where it is another one

    @property
    def head_size(self) -> int:
        """Elements per head."""
        return DIM // self.heads


FORMAT_VARIANTS = tuple(Variant(name, name) for name in FORMATS)
FEATURE_VARIANTS = (
    Variant("mixed", "Q4_K", better="Q6_K"),
    Variant("tied", "Q8_0", heads=4, kv_heads=4, tied=True),
    Variant("rope-linear", "Q8_0", heads=2, kv_heads=1, rope="linear"),
    Variant("rope-yarn", "Q8_0", heads=4, kv_heads=2, rope="yarn"),
    Variant("rope-factors", "Q8_0", heads=4, kv_heads=1, rope="factors"),
)
VARIANTS = {variant.name: variant for variant in FORMAT_VARIANTS + FEATURE_VARIANTS}


@functools.cache
def _weights(name: str, rows: int, columns: int, deviation: float) -> Floats:
    """Weights of mean 0, seeded by the tensor's name."""
    random = np.random.default_rng([SEED, zlib.crc32(name.encode()), rows, columns])
    uniform = random.integers(0, 1 << 20, (4, rows, columns)).sum(axis=0)  # variance (2^20)^2 / 3
    return ((uniform - (2 << 20)) * (3**0.5 / (1 << 20) * deviation)).astype(np.float32)


def _norm(name: str) -> Floats:
    return (1 + _weights(name, 1, DIM, 0.2)[0]).astype(np.float32)


def rope_factors(head_size: int) -> Floats:
    """Divisors of the rotation frequencies, rising from 1 to 8 as Llama 3.1 has them; exact in float32."""
    half = head_size // 2
    return np.clip(np.arange(half, dtype=np.float32) - half // 3, 1, 8).astype(np.float32)


def _matrices(variant: Variant) -> list[tuple[str, int, int, float]]:
    """(name, rows, columns, deviation) of every matrix, in file order."""
    kv_rows = variant.kv_heads * variant.head_size
    found = [("token_embd.weight", VOCAB, DIM, 1.0 if not variant.tied else 0.2)]
    found += [] if variant.tied else [("output.weight", VOCAB, DIM, 0.2)]
    for layer in range(LAYERS):
        prefix, narrow, wide = f"blk.{layer}.", 1 / 16, 1 / 512**0.5
        found += [(prefix + "attn_q.weight", DIM, DIM, 1.5 * narrow), (prefix + "attn_k.weight", kv_rows, DIM, narrow),
                  (prefix + "attn_v.weight", kv_rows, DIM, narrow), (prefix + "attn_output.weight", DIM, DIM, narrow),
                  (prefix + "ffn_gate.weight", FFN, DIM, narrow), (prefix + "ffn_up.weight", FFN, DIM, narrow),
                  (prefix + "ffn_down.weight", DIM, FFN, wide)]
    return found


def _tensors(variant: Variant) -> list[Tensor]:
    tensors = []
    for name, rows, columns, deviation in _matrices(variant):
        better = variant.better is not None and name.split(".")[-2] in ("attn_v", "ffn_down", "output")
        kind = variant.better if better and variant.better is not None else variant.format
        data = quantise(kind, _weights(name, rows, columns, deviation))
        tensors.append(Tensor(name, FORMATS[kind].ggml_id, (columns, rows), data))
    norms = ["output_norm.weight"]
    norms += [f"blk.{i}.{kind}_norm.weight" for i in range(LAYERS) for kind in ("attn", "ffn")]
    tensors += [Tensor(name, 0, (DIM,), _norm(name).tobytes()) for name in norms]
    if variant.rope == "factors":
        factors = rope_factors(variant.head_size)
        tensors.append(Tensor("rope_freqs.weight", 0, (len(factors),), factors.tobytes()))
    return tensors


def _rope_keys(variant: Variant) -> list[bytes]:
    if variant.rope not in ("linear", "yarn"):
        return []
    keys = [kv("llama.rope.scaling.type", STRING, variant.rope), kv("llama.rope.scaling.factor", F32, 4.0)]
    return [*keys, kv("llama.rope.scaling.original_context_length", U32, CONTEXT // 4)]


def _tokenizer_keys() -> list[bytes]:
    """A vocabulary of SentencePiece's kind: three specials, all bytes, then words of three letters."""
    words = [f"▁{chr(97 + i % 26)}{chr(97 + i // 26 % 26)}" for i in range(VOCAB - 259)]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *words]
    kinds = [2, 3, 3] + [6] * 256 + [1] * len(words)
    scores = [0.0] * 259 + [-float(i) for i in range(len(words))]
    return [
        kv("tokenizer.ggml.model", STRING, "llama"), kv_array("tokenizer.ggml.tokens", STRING, tokens),
        kv_array("tokenizer.ggml.scores", F32, scores), kv_array("tokenizer.ggml.token_type", I32, kinds),
        kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
        kv("tokenizer.ggml.unknown_token_id", U32, 0), kv("tokenizer.ggml.add_bos_token", BOOL, True),
    ]


def model(variant: Variant, context: int = CONTEXT, *more: bytes) -> bytes:
    """The GGUF file of a variant, with so many positions and `more` metadata."""
    keys = [
        kv("general.architecture", STRING, "llama"), kv("general.name", STRING, f"synthetic {variant.name}"),
        kv("llama.block_count", U32, LAYERS), kv("llama.context_length", U32, context),
        kv("llama.embedding_length", U32, DIM), kv("llama.feed_forward_length", U32, FFN),
        kv("llama.attention.head_count", U32, variant.heads),
        kv("llama.attention.head_count_kv", U32, variant.kv_heads),
        kv("llama.attention.layer_norm_rms_epsilon", F32, EPSILON), kv("llama.rope.freq_base", F32, ROPE_BASE),
        kv("llama.rope.dimension_count", U32, variant.head_size), kv("llama.vocab_size", U32, VOCAB),
    ]
    return build([*keys, *_rope_keys(variant), *_tokenizer_keys(), *more], _tensors(variant))


def prompts() -> list[list[int]]:
    """Thirty prompts of 1 to 200 random tokens; the same for all variants."""
    random = np.random.default_rng(SEED)
    lengths = [1, 2, 3, 5, 8, 13, 17, 31, 32, 33, 63, 64, 65, 100, 200, *random.integers(4, 90, 15).tolist()]
    return [[1, *random.integers(3, VOCAB, length - 1).tolist()] for length in lengths]
