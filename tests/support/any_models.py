"""Small models of the llama architecture with dimensions drawn from a seed: whatever the metadata may say.

`synthetic` varies one thing at a time at one size. Here everything varies at once: widths that are
not a multiple of a block of 256, heads that do not add up to the width, any size and number of
heads, a vocabulary that ends inside a group of rows, a format for each matrix, biases, a tied
output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.models.file.quants import FORMATS
from tests.support.ggufs import BOOL, F32, I32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.quantisers import quantise

CONTEXT = 640
_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
_EXACT = ("F32", "F16", "BF16")


@dataclass(frozen=True)
class Shape:
    """The dimensions of one model, and what else is particular to it."""

    blocks: int
    embedding: int
    heads: int
    kv_heads: int
    head_size: int
    feed_forward: int
    vocabulary: int
    tied: bool
    rope: str  # "none", "linear", "yarn" or "factors"
    formats: tuple[str, ...]  # to choose from
    exact: bool  # activations stay floats


def shape(seed: int) -> Shape:
    """The shape that a seed stands for. Every fourth has weights of 16 bits or more only, and so no rounded
    activations: errors of a whole model show there."""
    random, exact = np.random.default_rng([7, seed]), seed % 4 == 0

    def pick(*values: Any) -> Any:
        return values[int(random.integers(len(values)))]
    kv_heads, group, head_size = pick(1, 2, 3, 5), pick(1, 2, 3, 4, 5, 7, 8, 12), 16 * int(random.integers(2, 17))
    if kv_heads * group * head_size % 32:
        head_size += 16
    return Shape(
        blocks=pick(1, 2, 3), embedding=32 * pick(1, 3, 7, 8, 8, 13, 16, 24), heads=kv_heads * group,
        kv_heads=kv_heads, head_size=head_size, feed_forward=32 * pick(1, 3, 8, 8, 11, 16, 33, 40),
        vocabulary=int(random.integers(300, 700)), tied=pick(False, True),
        rope=pick("none", "linear", "yarn", "factors"),
        formats=_EXACT if exact else tuple(map(str, random.permutation(list(FORMATS))[:pick(3, len(FORMATS))])),
        exact=exact)


def matrices(seed: int) -> list[str]:
    """The names of a model's matrices."""
    made = shape(seed)
    names = [f"blk.{block}.{part}.weight" for block in range(made.blocks) for part in _MATRICES]
    return [*names, "token_embd.weight", *([] if made.tied else ["output.weight"])]


def model(seed: int, spare: int = 0) -> bytes:
    """The GGUF file of a seed. `spare`: rows at the end of the vocabulary that no token of the tokenizer has."""
    made, random = shape(seed), np.random.default_rng([8, seed])
    keys = [
        kv("general.architecture", STRING, "llama"), kv("llama.block_count", U32, made.blocks),
        kv("llama.context_length", U32, CONTEXT), kv("llama.embedding_length", U32, made.embedding),
        kv("llama.feed_forward_length", U32, made.feed_forward), kv("llama.attention.head_count", U32, made.heads),
        kv("llama.attention.head_count_kv", U32, made.kv_heads),
        kv("llama.attention.key_length", U32, made.head_size), kv("llama.attention.value_length", U32, made.head_size),
        kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), kv("llama.rope.freq_base", F32, 10000.0),
        kv("llama.rope.dimension_count", U32, made.head_size), kv("llama.vocab_size", U32, made.vocabulary)]
    if made.rope in ("linear", "yarn"):
        keys += [kv("llama.rope.scaling.type", STRING, made.rope), kv("llama.rope.scaling.factor", F32, 4.0),
                 kv("llama.rope.scaling.original_context_length", U32, CONTEXT // 4)]
    return build(keys + _tokenizer_keys(made.vocabulary - spare), list(_tensors(made, random)))


def _tokenizer_keys(size: int) -> list[bytes]:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *(f"▁w{i}" for i in range(size - 259))]
    return [kv("tokenizer.ggml.model", STRING, "llama"), kv_array("tokenizer.ggml.tokens", STRING, tokens),
            kv_array("tokenizer.ggml.scores", F32, [0.0 - i for i in range(size)]),
            kv_array("tokenizer.ggml.token_type", I32, [2, 3, 3] + [6] * 256 + [1] * (size - 259)),
            kv("tokenizer.ggml.bos_token_id", U32, 1), kv("tokenizer.ggml.eos_token_id", U32, 2),
            kv("tokenizer.ggml.unknown_token_id", U32, 0), kv("tokenizer.ggml.add_bos_token", BOOL, True)]


def _tensors(made: Shape, random: np.random.Generator) -> list[Tensor]:
    """Tensors in an order drawn from the seed: a file need not have them in the order of their use."""
    width, query, keys = made.embedding, made.heads * made.head_size, made.kv_heads * made.head_size
    hidden = made.feed_forward
    sizes = dict(zip(_MATRICES, ((query, width), (keys, width), (keys, width), (width, query), (hidden, width),
                                 (hidden, width), (width, hidden)), strict=True))
    # As an output, embeddings of deviation 1 would name the token itself again, whatever the blocks do.
    found = [_matrix("token_embd.weight", (made.vocabulary, width), 2 / width**0.5 if made.tied else 1.0,
                     made.formats, random)]
    if not made.tied:
        found.append(_matrix("output.weight", (made.vocabulary, width), 3 / width**0.5, made.formats, random))
    for block in range(made.blocks):
        for part, size in sizes.items():
            found.append(_matrix(f"blk.{block}.{part}.weight", size, size[1]**-0.5, made.formats, random))
            if random.random() < 0.3:
                found.append(_vector(f"blk.{block}.{part}.bias", random.standard_normal(size[0]) / 4))
        found += [_vector(f"blk.{block}.{kind}_norm.weight", 1 + random.standard_normal(width) / 5)
                  for kind in ("attn", "ffn")]
    found.append(_vector("output_norm.weight", 1 + random.standard_normal(width) / 5))
    if made.rope == "factors":
        found.append(_vector("rope_freqs.weight", np.clip(np.arange(made.head_size // 2) - 4, 1, 8)))
    return [found[index] for index in random.permutation(len(found))]


def _matrix(name: str, size: tuple[int, int], deviation: float, formats: tuple[str, ...],
            random: np.random.Generator) -> Tensor:
    """Random weights in one of the formats whose blocks fit the columns; F16 where none does."""
    fitting = [kind for kind in formats if size[1] % FORMATS[kind].elements == 0] or ["F16"]
    largest = [kind for kind in fitting if FORMATS[kind].elements == 256]  # fit seldom, so they go first
    fitting = largest if largest and random.random() < 0.7 else fitting
    kind = fitting[int(random.integers(len(fitting)))]
    weights = (random.standard_normal(size) * deviation).astype(np.float32)
    return Tensor(name, FORMATS[kind].ggml_id, (size[1], size[0]), quantise(kind, weights))


def _vector(name: str, values: NDArray[Any]) -> Tensor:
    return Tensor(name, 0, (len(values),), np.asarray(values, np.float32).tobytes())
