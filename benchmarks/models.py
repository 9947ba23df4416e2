"""Synthetic GGUF models with the shapes of well-known ones and random weights, for measurements of speed only.

Weights are random bytes in valid blocks whose scales are set so that activations stay near one through all layers;
what a model computes means nothing. Types follow llama.cpp's Q4_K_M recipe: Q4_K, and Q6_K for the output and for
the value and down projections of the layers where it spends more bits.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tqdm import tqdm

Q4_K, Q6_K = gguf.GGMLQuantizationType.Q4_K, gguf.GGMLQuantizationType.Q6_K


@dataclass(frozen=True)
class Shape:
    """Dimensions of a llama-architecture model."""

    layers: int
    width: int
    hidden: int  # of the gated feed-forward network
    heads: int
    kv_heads: int
    vocabulary: int


SHAPES = {
    "1.1b": Shape(22, 2048, 5632, 32, 4, 32000),  # TinyLlama
    "2.8b": Shape(32, 2560, 6912, 32, 32, 51200),  # phi-2's widths and heads of 80, with a gated network
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama 2 7B
    "7b-gqa": Shape(32, 4096, 14336, 32, 8, 32000),  # Mistral 7B
    "7b-gqa-4": Shape(4, 4096, 14336, 32, 8, 32000),  # four layers of it, to try things out
}


def more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M stores the value and down projections of a layer in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape: Shape) -> list[tuple[str, int, int, gguf.GGMLQuantizationType | None]]:
    """Name, rows, columns and type of every tensor in file order; type None is a float32 vector of `columns`."""
    width, head = shape.width, shape.width // shape.heads
    found: list[tuple[str, int, int, gguf.GGMLQuantizationType | None]] = [
        ("token_embd.weight", shape.vocabulary, width, Q4_K), ("output.weight", shape.vocabulary, width, Q6_K),
        ("output_norm.weight", 1, width, None)]
    for layer in range(shape.layers):
        better = Q6_K if more_bits(layer, shape.layers) else Q4_K
        parts = [("attn_norm", 1, width, None), ("attn_q", width, width, Q4_K),
                 ("attn_k", head * shape.kv_heads, width, Q4_K), ("attn_v", head * shape.kv_heads, width, better),
                 ("attn_output", width, width, Q4_K), ("ffn_norm", 1, width, None),
                 ("ffn_gate", shape.hidden, width, Q4_K), ("ffn_up", shape.hidden, width, Q4_K),
                 ("ffn_down", width, shape.hidden, better)]
        found += [(f"blk.{layer}.{name}.weight", rows, columns, kind) for name, rows, columns, kind in parts]
    return found


def blocks(kind: gguf.GGMLQuantizationType, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Random blocks, (rows, bytes of a row), whose values have mean 0 and deviation 1/sqrt(columns)."""
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.frombuffer(random.bytes(rows * columns // elements * nbytes), np.uint8).reshape(-1, nbytes).copy()
    deviation = columns ** -0.5
    # Deviation of a block of random bytes per unit of its float16 scale, from the moments of its integer fields.
    if kind == Q4_K:  # d (0:2), dmin (2:4): d * scale * quant - dmin * minimum; scale, minimum < 64, quant < 16
        scale = np.float16(deviation / 258)
        data[:, 0:2] = np.frombuffer(scale.tobytes(), np.uint8)
        data[:, 2:4] = np.frombuffer(np.float16(7.5 * float(scale)).tobytes(), np.uint8)
    else:  # d (208:210): d * signed 8-bit scale * (quant - 32)
        data[:, 208:210] = np.frombuffer(np.float16(deviation / 1365).tobytes(), np.uint8)
    return data.reshape(rows, -1)


def _metadata(writer: gguf.GGUFWriter, name: str, shape: Shape) -> None:
    writer.add_name(f"synthetic-{name}")
    writer.add_context_length(8192)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.hidden)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.width // shape.heads)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(shape.vocabulary)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_K_M)
    words = shape.vocabulary - 259
    kinds = gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)),
                           *(f"\u2581w{i}" for i in range(words))])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(words)])
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * words)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def make(name: str, work: Path) -> Path:
    """Write the synthetic model of a shape, unless it is there: `<work>/<name>-q4_k_m.gguf`."""
    path = work / f"{name}-q4_k_m.gguf"
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    shape, random = SHAPES[name], np.random.default_rng(1)
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, "llama")
    _metadata(writer, name, shape)
    plan = tensors(shape)
    for tensor, rows, columns, kind in plan:
        if kind is None:
            writer.add_tensor_info(tensor, (columns,), np.dtype(np.float32), columns * 4)
        else:
            elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
            row = columns // elements * nbytes
            writer.add_tensor_info(tensor, (rows, row), np.dtype(np.uint8), rows * row, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for _, rows, columns, kind in tqdm(plan, desc=path.name, unit="tensor", file=sys.stderr):
        writer.write_tensor_data(np.ones(columns, np.float32) if kind is None else blocks(kind, rows, columns, random))
    writer.close()
    part.rename(path)
    return path
