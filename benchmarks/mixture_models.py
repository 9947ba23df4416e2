"""Mixtures of experts with the shapes of well-known ones and random weights, for measurements of
speed and of traces only.

A model has as many layers as are asked for. Its vocabulary is smaller in the same measure, so that
the output matrix keeps its share of a pass. Routers are random, so tokens choose experts evenly.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tqdm import tqdm

from benchmarks.models import Type, blocks

TYPES = (Type.Q4_K, Type.Q6_K, Type.Q8_0, Type.MXFP4)


@dataclass(frozen=True)
class Mixture:
    """Dimensions of a published mixture, and the types of its blocks."""

    architecture: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head: int
    experts: int
    used: int
    hidden: int  # of an expert
    vocabulary: int
    matrices: Type  # of attention and embedding
    output: Type
    weights: Type  # of experts
    keys: dict[str, Any] = field(default_factory=dict)  # of the header, beside the dimensions


SHAPES = {
    "qwen3-30b-a3b": Mixture("qwen3moe", 48, 2048, 32, 4, 128, 128, 8, 768, 151936, Type.Q4_K, Type.Q6_K, Type.Q4_K,
                             {"rope.freq_base": 1e6}),
    "gpt-oss-20b": Mixture("gpt-oss", 24, 2880, 64, 8, 64, 32, 4, 2880, 201088, Type.Q8_0, Type.Q8_0, Type.MXFP4, {
        "rope.freq_base": 150000.0, "attention.sliding_window": 128, "rope.scaling.type": "yarn",
        "rope.scaling.factor": 32.0, "rope.scaling.original_context_length": 4096}),
    "small": Mixture("qwen3moe", 4, 256, 4, 2, 64, 16, 2, 256, 1024, Type.Q8_0, Type.Q8_0, Type.Q8_0),
}
Row = tuple[str, tuple[int, ...], Type]


def words(shape: Mixture, layers: int) -> int:
    """How many tokens a model of so many layers knows."""
    return max(512, shape.vocabulary * layers // shape.layers // 256 * 256)


def tensors(shape: Mixture, layers: int) -> Iterator[Row]:
    """Name, shape and type of every tensor in the order of the file; the last dimension is that of
    a row."""
    width, query, key, oss = shape.width, shape.heads * shape.head, shape.kv_heads * shape.head, _is_oss(shape)
    yield "token_embd.weight", (words(shape, layers), width), shape.matrices
    yield "output.weight", (words(shape, layers), width), shape.output
    yield "output_norm.weight", (width,), Type.F32
    for layer in range(layers):
        parts: list[Row] = [("attn_norm.weight", (width,), Type.F32)]
        sizes = {"q": (query, width), "k": (key, width), "v": (key, width), "output": (width, query)}
        for part, (rows, columns) in sizes.items():
            parts.append((f"attn_{part}.weight", (rows, columns), shape.matrices))
            parts += [(f"attn_{part}.bias", (rows,), Type.F32)] if oss else []
        vectors = ({"attn_sinks": shape.heads, "post_attention_norm": width} if oss else
                   {"attn_q_norm": shape.head, "attn_k_norm": shape.head, "ffn_norm": width})
        parts += [(f"{part}.weight", (size,), Type.F32) for part, size in vectors.items()]
        parts += [("ffn_gate_inp.weight", (shape.experts, width), Type.F32)]
        parts += [("ffn_gate_inp.bias", (shape.experts,), Type.F32)] if oss else []
        for part, rows, columns in (("gate", shape.hidden, width), ("up", shape.hidden, width),
                                    ("down", width, shape.hidden)):
            parts.append((f"ffn_{part}_exps.weight", (shape.experts, rows, columns), shape.weights))
            parts += [(f"ffn_{part}_exps.bias", (shape.experts, rows), Type.F32)] if oss else []
        yield from ((f"blk.{layer}.{name}", size, kind) for name, size, kind in parts)


def _is_oss(shape: Mixture) -> bool:
    return shape.architecture == "gpt-oss"


def _header(writer: gguf.GGUFWriter, shape: Mixture, layers: int) -> None:
    keys = {"context_length": 8192, "embedding_length": shape.width, "block_count": layers,
            "feed_forward_length": shape.hidden, "expert_feed_forward_length": shape.hidden,
            "attention.head_count": shape.heads, "attention.head_count_kv": shape.kv_heads,
            "attention.key_length": shape.head, "attention.value_length": shape.head,
            "attention.layer_norm_rms_epsilon": 1e-6, "expert_count": shape.experts, "expert_used_count": shape.used,
            **shape.keys}
    write = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    for key, value in keys.items():
        write[type(value)](f"{shape.architecture}.{key}", value)
    count, kinds = words(shape, layers) - 259, gguf.TokenType
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)),
                           *(f"\u2581w{i}" for i in range(count))])
    writer.add_token_scores([0.0] * 259 + [-float(i) for i in range(count)])
    writer.add_token_types([kinds.UNKNOWN, kinds.CONTROL, kinds.CONTROL] + [kinds.BYTE] * 256 + [kinds.NORMAL] * count)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def _values(name: str, size: tuple[int, ...], kind: Type, random: np.random.Generator) -> np.ndarray:
    if kind != Type.F32:
        data = blocks(kind, int(np.prod(size[:-1])), size[-1], random)
        return data.reshape(*size[:-1], -1)
    if name.endswith("norm.weight"):
        return np.ones(size, np.float32)
    spread = 3 * size[-1]**-0.5 if name.endswith("ffn_gate_inp.weight") else 0.1
    return (random.standard_normal(size) * spread).astype(np.float32)


def make(name: str, layers: int, work: Path) -> Path:
    """Write a model of so many layers, unless it is there: `<work>/<name>-<layers>.gguf`."""
    shape, path = SHAPES[name], work / f"{name}-{layers}.gguf"
    if path.exists():
        return path
    work.mkdir(parents=True, exist_ok=True)
    part, random = path.with_suffix(".part"), np.random.default_rng(1)
    try:
        writer, plan = gguf.GGUFWriter(part, shape.architecture), list(tensors(shape, layers))
        _header(writer, shape, layers)
        for tensor, size, kind in plan:
            if kind == Type.F32:
                writer.add_tensor_info(tensor, size, np.dtype(np.float32), 4 * int(np.prod(size)))
                continue
            elements, nbytes = gguf.GGML_QUANT_SIZES[kind]
            row = size[-1] // elements * nbytes
            writer.add_tensor_info(tensor, (*size[:-1], row), np.dtype(np.uint8), int(np.prod(size[:-1])) * row,
                                   raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor, size, kind in tqdm(plan, desc=path.name, unit="tensor", file=sys.stderr):
            writer.write_tensor_data(_values(tensor, size, kind, random))
        writer.close()
        part.rename(path)
    finally:
        part.unlink(missing_ok=True)
    return path
