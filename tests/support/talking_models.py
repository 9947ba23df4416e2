"""A model of the llama architecture that gives one text, whatever it is asked: to see what a server reads in it.

Each piece of the text is a token. A state has one number for each place in the text: the embedding of a piece sets the
next place's, and the output reads it. All else is zero.
"""

from __future__ import annotations

import numpy as np

from tests.support.ggufs import BOOL, F32, I32, STRING, U32, Tensor, build, kv, kv_array
from tests.support.vocabularies import letters

FFN = 64
BEGIN, END = 256, 257


def model(text: str, template: str) -> bytes:
    """The file. Prompts are bytes, any of which begins the text."""
    pieces, letter = _pieces(text.encode()), letters()
    tokens = [*letter, "<s>", "</s>", *("".join(letter[byte] for byte in piece) for piece in pieces)]
    size, width = len(tokens), -(-(len(pieces) + 2) // 64) * 64
    first, places = END + 1, np.arange(len(pieces))
    embedding, output = np.zeros((2, size, width), np.float32)
    embedding[:first, 0] = 1
    embedding[first + places, places + 1] = 1
    output[first + places, places] = output[END, len(pieces)] = 10
    keys = [
        kv("general.architecture", STRING, "llama"), kv("llama.block_count", U32, 1),
        kv("llama.context_length", U32, 1 << 15), kv("llama.embedding_length", U32, width),
        kv("llama.feed_forward_length", U32, FFN), kv("llama.attention.head_count", U32, 1),
        kv("llama.attention.layer_norm_rms_epsilon", F32, 1e-5), kv("llama.rope.dimension_count", U32, width),
        kv("tokenizer.ggml.model", STRING, "gpt2"), kv("tokenizer.ggml.pre", STRING, "gpt-2"),
        kv_array("tokenizer.ggml.tokens", STRING, tokens), kv_array("tokenizer.ggml.merges", STRING, ["a b"]),
        kv_array("tokenizer.ggml.token_type", I32, [1] * BEGIN + [3, 3] + [1] * len(pieces)),
        kv("tokenizer.ggml.bos_token_id", U32, BEGIN), kv("tokenizer.ggml.eos_token_id", U32, END),
        kv("tokenizer.ggml.add_bos_token", BOOL, False), kv("tokenizer.chat_template", STRING, template)]
    return build(keys, [_tensor("token_embd", embedding), _tensor("output", output),
                        _tensor("output_norm", np.ones(width, np.float32)), *_layer(width)])


def _layer(width: int) -> list[Tensor]:
    """One layer that changes nothing."""
    shapes = {"attn_q": (width, width), "attn_k": (width, width), "attn_v": (width, width),
              "attn_output": (width, width), "ffn_gate": (FFN, width), "ffn_up": (FFN, width), "ffn_down": (width, FFN)}
    return [*(_tensor(f"blk.0.{name}", np.ones(width, np.float32)) for name in ("attn_norm", "ffn_norm")),
            *(_tensor(f"blk.0.{name}", np.zeros(shape, np.float32)) for name, shape in shapes.items())]


def _tensor(name: str, values: np.ndarray) -> Tensor:  # type: ignore[type-arg]
    return Tensor(f"{name}.weight", 0, tuple(reversed(values.shape)), values.astype(np.float32).tobytes())


def _pieces(data: bytes) -> list[bytes]:
    """The text in pieces of two bytes or more, no two of them equal."""
    found: list[bytes] = []
    at = 0
    while at < len(data):
        end = at + 3
        while data[at:end] in found and end < len(data):
            end += 1
        piece = data[at:end]
        if (piece in found or len(piece) < 2) and found:
            piece = found.pop() + piece
        found.append(piece)
        at = end
    return found
