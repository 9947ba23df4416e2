"""Synthetic GGUF models with the shapes of well-known ones and random weights, for measurements of
speed only.

Weights are random bytes in valid blocks whose scales are set so that activations stay near one
through all layers; the results of a model mean nothing. In a shape `-loop` the layers add next to
nothing, so a token follows from the one before it alone: answers soon repeat themselves. Types
follow llama.cpp's Q4_K_M recipe: Q4_K, and Q6_K for the output and for the value and down
projections of the layers where it spends more bits. `SHAPE:TYPE` (0.3b:q5_k) has one type for all
matrices instead.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tqdm import tqdm

Type = gguf.GGMLQuantizationType
Q4_K, Q6_K = Type.Q4_K, Type.Q6_K

# For each block type, the deviation of a block of random bytes per unit of its scale, from the
# moments of its integer fields. Then its binary16 fields: offset, and the factor of the scale that
# makes the mean zero.
FIELDS: dict[Type, tuple[float, tuple[tuple[int, float], ...]]] = {
    Type.Q4_0: (4.61, ((0, 1),)), Type.Q4_1: (4.61, ((0, 1), (2, -7.5))),
    Type.Q5_0: (9.23, ((0, 1),)), Type.Q5_1: (9.23, ((0, 1), (2, -15.5))), Type.Q8_0: (73.9, ((0, 1),)),
    Type.Q2_K: (13.9, ((80, 1), (82, 1.5))), Type.Q3_K: (43.3, ((108, 1),)),
    Type.Q4_K: (258, ((0, 1), (2, 7.5))), Type.Q5_K: (527, ((0, 1), (2, 15.5))), Type.Q6_K: (1365, ((208, 1),)),
    Type.IQ4_NL: (68.8, ((0, 1),)), Type.IQ4_XS: (1272, ((0, 1),))}
POWERS = {Type.MXFP4: (5.85, 0, 128)}  # the scale is a power of two: deviation, byte of the exponent, its excess
FLOATS = {Type.F32: np.dtype(np.float32), Type.F16: np.dtype(np.float16), Type.BF16: np.dtype(np.uint16)}


@dataclass(frozen=True)
class Shape:
    """Dimensions of a llama-architecture model."""

    layers: int
    width: int
    hidden: int  # of the gated feed-forward network
    heads: int
    kv_heads: int
    vocabulary: int
    norm: float = 1.0  # weights of the layers' norms


SHAPES = {
    "1.1b": Shape(22, 2048, 5632, 32, 4, 32000),  # TinyLlama
    "1.1b-loop": Shape(22, 2048, 5632, 32, 4, 32000, 1e-3),
    "2.8b": Shape(32, 2560, 6912, 32, 32, 51200),  # phi-2's widths and heads of 80, with a gated network
    "7b": Shape(32, 4096, 11008, 32, 32, 32000),  # Llama 2 7B
    "7b-gqa": Shape(32, 4096, 14336, 32, 8, 32000),  # Mistral 7B
    "0.3b": Shape(8, 2048, 5632, 32, 4, 8192),  # eight layers of TinyLlama, to compare types
    "tiny": Shape(4, 256, 1024, 4, 2, 1024),  # reads a thousand tokens in a moment: for what is tried many times
    "7b-gqa-4": Shape(4, 4096, 14336, 32, 8, 32000),  # four layers of it, to try things out
}


def more_bits(layer: int, layers: int) -> bool:
    """Whether Q4_K_M stores the value and down projections of a layer in Q6_K."""
    eighth = layers // 8
    return layer < eighth or layer >= 7 * layers // 8 or (layer - eighth) % 3 == 2


def tensors(shape: Shape, only: Type | None = None) -> list[tuple[str, int, int, Type | None]]:
    """Name, rows, columns and type of every tensor in file order; type None is a float32 vector of
    `columns`."""
    width, head = shape.width, shape.width // shape.heads
    found: list[tuple[str, int, int, Type | None]] = [
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
    return [(name, rows, columns, only if kind and only is not None else kind) for name, rows, columns, kind in found]


def blocks(kind: Type, rows: int, columns: int, random: np.random.Generator) -> np.ndarray:
    """Random blocks, (rows, bytes of a row), whose values have mean 0 and deviation
    1/sqrt(columns)."""
    deviation = columns ** -0.5
    if kind in FLOATS:
        values = random.standard_normal((rows, columns), np.float32) * np.float32(deviation)
        if kind == Type.BF16:
            values = (values.view(np.uint32) >> 16)
        return values.astype(FLOATS[kind]).view(np.uint8)
    elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
    data = np.frombuffer(random.bytes(rows * columns // elements * nbytes), np.uint8).reshape(-1, nbytes).copy()
    if kind in POWERS:
        spread, at, excess = POWERS[kind]
        data[:, at] = excess + round(float(np.log2(deviation / spread)))
        return data.reshape(rows, -1)
    spread, fields = FIELDS[kind]
    scale = float(np.float16(deviation / spread))
    for offset, factor in fields:
        data[:, offset:offset + 2] = np.frombuffer(np.float16(factor * scale).tobytes(), np.uint8)
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


def _norm(name: str, columns: int, shape: Shape) -> np.ndarray:
    return np.full(columns, shape.norm if name.startswith("blk.") else 1.0, np.float32)


def _parse(name: str) -> tuple[Shape, Type | None] | None:
    shape, _, kind = name.partition(":")
    if shape not in SHAPES or (kind and kind.upper() not in {item.name for item in (*FIELDS, *POWERS, *FLOATS)}):
        return None
    return SHAPES[shape], Type[kind.upper()] if kind else None


def is_known(name: str) -> bool:
    """Whether `make` knows the name: a shape, or a shape with a type."""
    return _parse(name) is not None


def make(name: str, work: Path, *, architecture: str = "llama") -> Path:
    """Write the synthetic model of a known name, unless it is there: `<work>/<shape>-<type>.gguf`.
    `architecture`: a name under which llama.cpp knows the same tensors."""
    parsed = _parse(name)
    if parsed is None:
        raise ValueError(f"no such model: {name}")
    shape, only = parsed
    path = work / (f"{name}-q4_k_m.gguf" if only is None else f"{name.replace(':', '-').lower()}.gguf")
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    try:
        _write(gguf.GGUFWriter(part, architecture), name, shape, only, path.name)
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _write(writer: gguf.GGUFWriter, name: str, shape: Shape, only: Type | None, shown: str) -> None:
    random = np.random.default_rng(1)
    _metadata(writer, name, shape)
    plan = tensors(shape, only)
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
    for _, rows, columns, kind in tqdm(plan, desc=shown, unit="tensor", file=sys.stderr):
        writer.write_tensor_data(_norm(tensor, columns, shape) if kind is None else blocks(kind, rows, columns, random))
    writer.close()
