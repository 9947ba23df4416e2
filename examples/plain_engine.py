"""The engine's arithmetic in plain numpy: the same bits, slowly. It is for readers who want to know
in an afternoon what the kernels compute, or to check an answer without them.

    appliance infer POLICY --prompt TEXT --json > answer.json
    python examples/plain_engine.py MODEL.gguf answer.json

This reads a GGUF file of one of the families below, and computes the logits after the prompt and
after each token of the answer. It chooses by them as the answer's settings and seed say, and
compares. It uses nothing of the appliance and follows docs/formats/arithmetic.md, whose sections
have the numbers of those below; `tests/engine/test_plain_engine.py` compares its logits with the
engine's, bit for bit. It knows nothing of text, and does not check the model's file: name a file
whose SHA-256 you know. It is to be read downward. `plain_gguf.py` beside it reads the file.

Shapes: T tokens, P positions, R rows and C columns of a matrix, B blocks of a row, S sub-blocks of
a block, H query heads, E elements of a head.
"""

from __future__ import annotations

import argparse
import base64
import decimal
import hashlib
import json
import math
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

if __package__:
    from examples.plain_gguf import Gguf
else:  # run as a program, perhaps by `python -I`, which does not look beside it
    sys.path.insert(0, str(Path(__file__).parent))
    from plain_gguf import Gguf  # type: ignore[import-not-found,no-redef]

Array = NDArray[Any]  # of float32, where nothing else is said
F32, F64 = np.float32, np.float64

# --- 1. Weights: d * scale * quant - m * minimum --------------------------------------------------
# The quants of nibbles 0 to 15: of IQ4_NL and IQ4_XS, and of MXFP4.
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113])
E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12])


@dataclass
class Quantised:
    """R rows of weights that are made of these parts; all but d and m are integers."""

    d: Array  # (R, B) float32
    scales: Array  # (R, B, S); S is 1 in blocks of 32 columns
    quants: Array  # (R, B, S, columns of a sub-block)
    m: Array | None  # (R, B) float32, of formats with minima
    minima: Array  # (R, B, S); -1 in blocks of 32, where m is added


Matrix = Quantised | Array  # weights that are not quantised: (R, C) float32


def low_high(packed: Array) -> Array:
    """Low nibbles of bytes, then their high nibbles."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def planes(packed: Array, bits: int, count: int) -> Array:
    """(blocks, n, bytes) cut into `count` planes of `bits`: (blocks, n * count * bytes), plane
    after plane."""
    shifts = (np.arange(count) * bits)[:, None]
    return ((packed[:, :, None, :].astype(np.int32) >> shifts) & ((1 << bits) - 1)).reshape(len(packed), -1)


def six_bits(packed: Array) -> tuple[Array, Array]:
    """Scales and minima of Q4_K and Q5_K."""
    a, b, c = packed[:, 0:4].astype(int), packed[:, 4:8].astype(int), packed[:, 8:12].astype(int)
    return (np.concatenate([a & 63, c & 15 | a >> 6 << 4], axis=1),
            np.concatenate([b & 63, c >> 4 | b >> 6 << 4], axis=1))


def unpack(name: str, x: Array) -> tuple[Array, Array, Array]:
    """Scales, minima (0 where there are none) and quants of the blocks of a quantised format, each
    (blocks, n)."""
    ones = np.ones((len(x), 1), int)
    if name in ("Q4_0", "Q4_1"):
        return ones, -ones, low_high(x["qs"]).astype(int) - (8 if name == "Q4_0" else 0)
    if name in ("Q5_0", "Q5_1"):
        fifth = np.unpackbits(x["qh"], axis=-1, bitorder="little").astype(int) << 4
        return ones, -ones, (low_high(x["qs"]) | fifth) - (16 if name == "Q5_0" else 0)
    if name in ("Q8_0", "Q8_1"):
        return ones, -ones, x["qs"].astype(int)
    if name in ("IQ4_NL", "MXFP4"):
        return ones, -ones, (IQ4 if name == "IQ4_NL" else E2M1)[low_high(x["qs"])]
    if name == "IQ4_XS":
        low, high = planes(x["scales_l"][:, :, None], 4, 2), planes(x["scales_h"][:, None, None], 2, 8)
        return (low | high << 4) - 32, 0 * low, IQ4[planes(x["qs"].reshape(-1, 8, 16), 4, 2)]
    if name == "Q2_K":
        return x["scales"] & 15, x["scales"] >> 4, planes(x["qs"].reshape(-1, 2, 32), 2, 4)
    if name == "Q3_K":
        packed = x["scales"]
        scales = low_high(packed[:, :8]) | planes(packed[:, None, 8:], 2, 4) << 4
        high = planes(x["hmask"].reshape(-1, 1, 32), 1, 8)
        return scales - 32, 0 * scales, planes(x["qs"].reshape(-1, 2, 32), 2, 4) + 4 * high - 4
    if name == "Q6_K":
        low, high = planes(x["ql"].reshape(-1, 2, 64), 4, 2), planes(x["qh"].reshape(-1, 2, 32), 2, 4)
        return x["scales"], 0 * x["scales"], (low | high << 4) - 32
    low = planes(x["qs"].reshape(-1, 4, 32), 4, 2)
    high = planes(x["qh"].reshape(-1, 1, 32), 1, 8) if name == "Q5_K" else 0 * low
    return (*six_bits(x["scales"]), low | high << 4)


def matrix(name: str, shape: tuple[int, ...], x: Array) -> Matrix:
    """A tensor of the file; a vector is a matrix of one row."""
    rows = shape[0] if len(shape) > 1 else 1
    if name in ("F32", "F16"):
        return x["x"].astype(F32).reshape(rows, -1)
    if name == "BF16":
        return (x["x"].astype(np.uint32) << 16).view(F32).reshape(rows, -1)
    scales, minima, quants = (part.astype(np.int16).reshape(rows, len(x) // rows, -1) for part in unpack(name, x))
    with_minima = "m" in (x.dtype.names or ())
    d = np.ldexp(F32(1), x["e"].astype(int) - 128) if name == "MXFP4" else x["d"].astype(F32)
    return Quantised(d.reshape(rows, -1), scales, quants.reshape(*scales.shape, -1),
                     x["m"].astype(F32).reshape(rows, -1) if with_minima else None, minima)


def count_rows(w: Matrix) -> int:
    """The rows R of a matrix."""
    return len(w.d) if isinstance(w, Quantised) else len(w)


def decoded(w: Matrix, rows: Sequence[int]) -> Array:
    """Some rows of a matrix as float32 (len(rows), C), rounded at each product and difference."""
    chosen = list(rows)
    if not isinstance(w, Quantised):
        return w[chosen]
    x = (w.d[chosen][:, :, None] * w.scales[chosen].astype(F32))[..., None] * w.quants[chosen].astype(F32)
    if w.m is not None:
        x = x - (w.m[chosen][:, :, None] * w.minima[chosen].astype(F32))[..., None]
    return x.reshape(len(chosen), -1)


# --- 2. Float operations --------------------------------------------------------------------------
def fma(x: Array, y: Array, z: Any) -> Array:
    """x * y + z, rounded once to float32; shapes are broadcast.

    A product of two float32 is exact in float64. So rounding the sum to float64 and then to float32
    goes wrong in one case: the first rounding ends halfway between two float32, or next to numbers
    that have fewer bits. There it goes to the odd neighbour instead, if it was inexact (Boldo and
    Melquiond, "Emulation of a FMA", 2008).
    """
    product, z = np.multiply(x, y, dtype=F64), np.asarray(z, F64)
    total = product + z
    halfway = total.view(np.int64) & 0x1FFFFFFF == 1 << 28
    where = np.nonzero(halfway | (np.abs(total) < 2.0**-126))
    if len(where[0]):
        product, z, found = (np.broadcast_to(part, total.shape)[where] for part in (product, z, total))
        back = found - product
        error = (product - (found - back)) + (z - back)  # found + error is the sum (Knuth's TwoSum)
        even = (error != 0) & (found.view(np.int64) & 1 == 0)
        total[where] = np.where(even, np.nextafter(found, np.copysign(np.inf, error)), found)
    return np.asarray(total, F32)


LOG2E = math.log2(math.e)
POWER = [F32(c) for c in (0.6931471824645996, 0.24022647738456726, 0.055503323674201965, 0.009618437848985195,
                          0.0013398875016719103, 0.0001535333867650479)]


def exp2(x: Array) -> Array:
    """2^x for -126 <= x <= 127 (others are clamped): a polynomial of the part beyond the nearest
    integer."""
    x = np.clip(x, F32(-126), F32(127))
    whole = np.rint(x)
    rest, total = x - whole, np.full_like(x, POWER[-1])
    for coefficient in [*POWER[-2::-1], F32(1)]:
        total = fma(total, rest, coefficient)
    return np.asarray(np.ldexp(total, whole.astype(int)), F32)


def softplus(x: Array) -> Array:
    """ln(1 + e^x)."""
    power = exp2(np.abs(x) * F32(-LOG2E))
    ratio = power / (power + F32(2))
    square, series = ratio * ratio, np.full_like(x, F32(1 / 15))
    for n in (13, 11, 9, 7, 5, 3, 1):
        series = fma(series, square, F32(1 / n))
    return np.asarray(np.maximum(x, F32(0)) + (ratio + ratio) * series)


def fold(x: Array) -> Array:
    """The sum of a power of two of lanes: the upper half onto the lower half until one is left."""
    while (lanes := x.shape[-1] // 2):
        x = x[..., :lanes] + x[..., lanes:]
    return np.asarray(x[..., 0])


def half(x: Array) -> Array:
    """Rounded to binary16."""
    with np.errstate(over="ignore"):
        return x.astype(np.float16).astype(F32)


def divided(x: Any, y: Array) -> Array:
    """x / y, and 0 where y is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(y != 0, F32(x) / y, F32(0)), F32)


def quants_of(x: Array, factor: Array) -> Array:
    """x times a factor for each block, to the nearest integer (ties to even) within -127..127."""
    return np.asarray(np.clip(np.rint(x * factor[..., None]), -127, 127))


# --- 3. Matrix products ---------------------------------------------------------------------------
def quantised(x: Array, subblocks: int) -> tuple[Array, Array, Array]:
    """Activations x (T, B, columns of a block) as integers, with a scale (T, B) and sums for the
    minima."""
    first = np.abs(x).argmax(axis=-1)[..., None]
    peak = np.take_along_axis(x, first, axis=-1)[..., 0]  # the first of largest magnitude, with its sign
    if subblocks == 1:
        values, exact = quants_of(x, divided(127, np.abs(peak))), np.abs(peak) / F32(127)
        return values, half(exact), half(exact * values.sum(axis=-1).astype(F32))  # sums (T, B)
    factor = divided(-127, peak)
    values = quants_of(x, factor)
    return values, divided(1, factor), values.reshape(*x.shape[:2], subblocks, -1).sum(axis=-1)  # sums (T, B, S)


def exact_product(x: Array, w: Array) -> Array:
    """x * transpose of w, of integers that stay below 2^53 and so are exact in any order; rounded
    once, at the end."""
    return (x.astype(F64) @ w.astype(F64).T).astype(F32)


def multiply(w: Matrix, x: Array, y: Array) -> Array:
    """y + x * transpose of w, for x (T, C) and y (T, R): one chain over the blocks of a row."""
    if not isinstance(w, Quantised):
        return multiply_floats(w, x, y)
    rows, blocks, subblocks, _ = w.quants.shape
    values, scale, sums = quantised(x.reshape(len(x), blocks, -1), subblocks)
    weights = (w.scales[..., None] * w.quants).reshape(rows, blocks, -1)
    for b in range(blocks):
        scaled = w.d[:, b] * exact_product(values[:, b], weights[:, b])  # (T, R)
        if w.m is not None and subblocks > 1:
            scaled = scaled - w.m[:, b] * exact_product(sums[:, b], w.minima[:, b])
        y = fma(scaled, scale[:, b, None], y)
        if w.m is not None and subblocks == 1:
            y = fma(w.m[:, b], sums[:, b, None], y)
    return y


def multiply_floats(w: Array, x: Array, y: Array) -> Array:
    """Segments of 256 columns: a chain over the even columns plus one over the odd ones, added to
    y."""
    for start in range(0, w.shape[1], 256):
        chains = np.zeros((2, *y.shape), F32)
        for column in range(start, min(start + 256, w.shape[1]), 2):
            pair = slice(column, column + 2)
            chains = fma(w.T[pair, None, :], x.T[pair, :, None], chains)
        y = y + (chains[0] + chains[1])
    return y


# --- 4. Attention ---------------------------------------------------------------------------------
BLOCK, SPAN, LANES = 64, 256, 16  # positions of a block; of a span; chains of the sum of weights
NOTHING, HIDDEN = F32(-1e20), F32(-1e30)  # the score of no position; of a position that a token must not see


def rotate(x: Array, turns: Array, pairs: str = "neighbours") -> Array:
    """The pairs of the first 2 P elements of x (T, heads, E) turned by the cosines and sines (T, P,
    2) of their positions. Pairs are neighbours, or halves: elements i and i + P."""
    count, cosine, sine = turns.shape[1], turns[:, None, :, 0], turns[:, None, :, 1]
    first, second = ((slice(0, count), slice(count, 2 * count)) if pairs == "halves" else
                     (slice(0, 2 * count, 2), slice(1, 2 * count, 2)))
    one, other, out = x[..., first], x[..., second], x.copy()
    out[..., first], out[..., second] = fma(one, cosine, -(other * sine)), fma(other, cosine, one * sine)
    return out


CACHES = {"f16": ("f16", "f16"), "q8": ("q8", "q8"), "q4": ("q4", "q4"), "q8q4": ("q8", "q4")}
"""The forms of keys, and of values, by `kv_cache`."""


def grouped(x: Array) -> Array:
    """Elements (..., E) in groups of 32 (..., groups, 32), the last filled up with zeros."""
    missing = -x.shape[-1] % 32
    return np.concatenate([x, np.zeros((*x.shape[:-1], missing), F32)], axis=-1).reshape(*x.shape[:-1], -1, 32)


def kept(x: Array, cache: str) -> tuple[Array, Array]:
    """Keys or values (..., E) in f16, q8 or q4: numbers (..., groups, n) and a scale for each
    group."""
    x = np.clip(x, F32(-65504), F32(65504))
    if cache == "f16":
        return half(x)[..., None, :], np.ones((*x.shape[:-1], 1), F32)
    x = grouped(x)
    if cache == "q8":
        peak = np.abs(x).max(axis=-1)
        scale = half(peak / F32(127))
        return quants_of(x, np.where(scale > 0, divided(127, peak), F32(0))), scale
    high, low = x.max(axis=-1), x.min(axis=-1)
    peak = np.where(high > -low, high, low)
    scale = half(peak / F32(-8))
    factor = np.where(scale != 0, divided(-8, peak), F32(0))
    return np.clip(np.rint(x * factor[..., None]), -8, 7), scale


def scores_of(query: Array, keys: Array, scales: Array, cache: str) -> Array:
    """Scores (H, T, P) of queries (T, H, E) with the keys (P, H, groups, n) of P positions."""
    total = np.zeros((query.shape[1], len(query), len(keys)), F32)
    if cache == "f16":
        for element in range(query.shape[-1]):
            key = keys[:, :, 0, element].T[:, None, :]  # (H, 1, P)
            total = fma(key, query[:, :, element].T[:, :, None], total)
        return total
    query = grouped(query)
    peak = np.abs(query).max(axis=-1)
    values, own = quants_of(query, divided(127, peak)), peak / F32(127)  # (T, H, groups, 32), (T, H, groups)
    for group in range(query.shape[2]):
        dots = np.einsum("thn,phn->htp", values[:, :, group], keys[:, :, group], dtype=F64).astype(F32)
        total = fma(dots, scales[:, :, group].T[:, None, :] * own[:, :, group].T[:, :, None], total)
    return total


def span(scores: Array, values: Array, scales: Array, seen: Array) -> tuple[Array, Array, Array]:
    """Largest score (H, T), sums of weights (H, T, LANES) and weighted values (H, T, E) of up to
    SPAN positions. They follow from scores (H, T, P), values (P, H, groups, n) with scales (P, H,
    groups), and which a token may see (T, P)."""
    heads, rows, positions = scores.shape
    groups, each = values.shape[2:]
    largest = np.full((heads, rows), NOTHING)
    sums, mixed = np.zeros((heads, rows, LANES), F32), np.zeros((heads, rows, groups, each), F32)
    for start in range(0, positions, BLOCK):
        count = min(BLOCK, positions - start)
        block = np.full((heads, rows, BLOCK), HIDDEN)
        block[..., :count] = np.where(seen[:, start:start + count], scores[..., start:start + count], HIDDEN)
        before, largest = largest, np.maximum(largest, block.max(axis=-1))
        shrink, below = exp2(before - largest), block - largest[..., None]
        weights = np.where(below > -100, exp2(below), F32(0))
        sums = sums * shrink[..., None]
        for first in range(0, BLOCK, LANES):
            sums = sums + weights[..., first:first + LANES]
        mixed = mixed * shrink[..., None, None]
        for position in range(count):
            scaled = weights[..., position, None] * scales[start + position][:, None, :]  # (H, T, groups)
            value = values[start + position][:, None]  # (H, 1, groups, n)
            mixed = fma(value, scaled[..., None], mixed)
    return largest, sums, mixed.reshape(heads, rows, -1)


def attend(query: Array, keys: tuple[Array, Array], values: tuple[Array, Array], cache: str, window: int = 0,
           sinks: Array | None = None) -> Array:
    """Attended values (T, H, E) of the last T positions' queries, over all positions or, of each
    token, the last `window` ones. `sinks` (H,): a score of each head that has no value."""
    rows, heads, size = query.shape
    shared = heads // keys[0].shape[1]
    (k, k_scales), (v, v_scales) = ([np.repeat(part, shared, axis=1) for part in pair] for pair in (keys, values))
    past = np.arange(len(k) - rows, len(k))[:, None] - np.arange(len(k))  # (T, P)
    seen = (past >= 0) & (past < (window or len(k)))
    scores = scores_of(query, k, k_scales, cache)
    largest = np.full((heads, rows), NOTHING)
    total = np.zeros((heads, rows, LANES + v.shape[2] * v.shape[3]), F32)  # sums, then values
    if sinks is not None:
        largest, total[..., 0] = np.repeat(sinks[:, None] * F32(LOG2E), rows, axis=1), F32(1)
    for start in range(0, len(k), SPAN):
        part = slice(start, start + SPAN)
        peak, *found = span(scores[..., part], v[part], v_scales[part], seen[:, part])
        most = np.maximum(largest, peak)
        keep, take = exp2(largest - most)[..., None], exp2(peak - most)[..., None]
        largest, total = most, fma(np.concatenate(found, axis=-1), take, total * keep)
    scale = F32(1) / fold(total[..., :LANES])
    return (total[..., LANES:LANES + size] * scale[..., None]).transpose(1, 0, 2)


# --- 5. The model ---------------------------------------------------------------------------------
# The traits in which families differ from llama, from their cards (`appliance/families`).
# Each kind of layer says how heads are turned (pairs, keys of the base, whether scaled), whether it
# has a window, and the ending of the keys of its head size.
# cards: begin
HALVES, UNTURNED = ("halves", ("rope.freq_base",), True, False, ""), (None, (), True, False, "")
NEIGHBOURS = ("neighbours", ("rope.freq_base",), True, False, "")
WINDOWED = ("halves", ("rope.freq_base",), True, True, "")
LOCAL = ("halves", ("rope.freq_base_swa",), False, True, "")
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"norm": "rms", "topology": "serial", "layers": (NEIGHBOURS,), "windowless": None, "sectioned": None,
        "head_norm": None, "value_norm": False, "yarn_whole": True, "switch": None, "activation": "silu",
        "gated": True, "fused": False, "feed_forward_norm": "ffn_norm", "embedding_scale": False,
        "query_scale": None, "logit_scale": None, "recurrent": None, "single": False, "output_norm": "output_norm",
        "output_gate": False, "experts": ("softmax", True, 1e-20, 0.0)},
    "qwen2": {"layers": (HALVES,)},
    "qwen3": {"layers": (HALVES,), "head_norm": "head"},
    "qwen3moe": {"layers": (HALVES,), "head_norm": "head"},
    "qwen2moe": {"layers": (HALVES,), "experts": ("softmax", False, 1e-20, 0.0)},
    "olmoe": {"layers": (HALVES,), "head_norm": "row", "experts": ("softmax", False, 1e-20, 0.0)},
    "gemma3": {"topology": "sandwich", "layers": (*[LOCAL] * 5, HALVES), "windowless": (HALVES,),
        "head_norm": "head", "activation": "gelu", "embedding_scale": True,
        "query_scale": "1/sqrt(share) at 62 layers"},
    "gemma4": {"topology": "sandwich",
        "layers": (*[("halves", ("rope.freq_base_swa",), False, True, "_swa")] * 5, HALVES), "head_norm": "head",
        "value_norm": True, "activation": "gelu", "embedding_scale": True, "query_scale": "1"},
    "phi3": {"layers": (WINDOWED,), "fused": True},
    "phi2": {"norm": "layer", "topology": "parallel", "layers": (HALVES,), "activation": "gelu", "gated": False},
    "gpt2": {"norm": "layer", "layers": (UNTURNED,), "activation": "gelu", "gated": False},
    "mistral3": {"layers": (("neighbours", ("rope.freq_base",), True, True, ""),)},
    "granite": {"switch": "rope.scaling.finetuned", "logit_scale": "/logit_scale"},
    "granitemoe": {"switch": "rope.scaling.finetuned", "logit_scale": "/logit_scale",
        "experts": ("chosen", True, 1e-20, 0.0)},
    "smollm3": {"layers": (*[NEIGHBOURS] * 3, UNTURNED)},
    "olmo2": {"topology": "post",
        "layers": (*[("halves", ("rope.freq_base_swa", "rope.freq_base"), False, True, "")] * 3, HALVES),
        "windowless": (HALVES,), "head_norm": "row"},
    "exaone4": {"topology": "post", "layers": (*[WINDOWED] * 3, UNTURNED), "windowless": (HALVES,),
        "head_norm": "head"},
    "glm4": {"topology": "sandwich", "sectioned": (HALVES,), "fused": True},
    "glm4moe": {"layers": (HALVES,), "head_norm": "head", "feed_forward_norm": "post_attention_norm",
        "experts": ("sigmoid", True, 1e-20, 0.0)},
    "falcon": {"norm": "layer", "topology": "parallel", "layers": (HALVES,), "activation": "gelu", "gated": False},
    "starcoder2": {"norm": "layer", "layers": (WINDOWED,), "activation": "gelu", "gated": False},
    "command-r": {"norm": "layer", "topology": "parallel", "logit_scale": "logit_scale"},
    "cohere2": {"norm": "layer", "topology": "parallel",
        "layers": (*[("neighbours", ("rope.freq_base",), True, True, "")] * 3, UNTURNED),
        "logit_scale": "logit_scale"},
    "gemma": {"layers": (HALVES,), "activation": "gelu", "embedding_scale": True},
    "qwen2vl": {"layers": (HALVES,), "sectioned": (HALVES,)},
    "qwen3vl": {"layers": (HALVES,), "sectioned": (HALVES,), "head_norm": "head"},
    "qwen3vlmoe": {"layers": (HALVES,), "sectioned": (HALVES,), "head_norm": "head"},
    "seed_oss": {"layers": (HALVES,), "feed_forward_norm": "post_attention_norm"},
    "gpt-oss": {"layers": (WINDOWED, HALVES), "yarn_whole": False, "activation": "swiglu_oai",
        "feed_forward_norm": "post_attention_norm", "experts": ("chosen", True, 1e-20, 0.0)},
    "ernie4_5": {},
    "ernie4_5-moe": {"experts": ("softmax", True, 1e-12, 0.0)},
    "bailingmoe2": {"layers": (HALVES,), "head_norm": "head", "experts": ("sigmoid", True, 1e-20, 0.0)},
    "minicpm": {"logit_scale": "/logit_scale"},
    "lfm2": {"layers": (HALVES,), "head_norm": "head", "recurrent": "convolution", "output_norm": "token_embd_norm"},
    "lfm2moe": {"layers": (HALVES,), "head_norm": "head", "recurrent": "convolution",
        "output_norm": "token_embd_norm", "experts": ("sigmoid", True, 1e-20, 1e-06)},
    "qwen35": {"layers": (HALVES,), "sectioned": (HALVES,), "head_norm": "head",
        "feed_forward_norm": "post_attention_norm", "recurrent": "delta", "output_gate": True},
    "qwen35moe": {"layers": (HALVES,), "sectioned": (HALVES,), "head_norm": "head",
        "feed_forward_norm": "post_attention_norm", "recurrent": "delta", "output_gate": True},
    "qwen3next": {"layers": (HALVES,), "head_norm": "head", "feed_forward_norm": "post_attention_norm",
        "recurrent": "delta", "output_gate": True},
    "arcee": {"activation": "relu2", "gated": False},
    "nemotron": {"norm": "layer", "layers": (HALVES,), "activation": "relu2", "gated": False},
    "granitehybrid": {"switch": "rope.scaling.finetuned", "logit_scale": "/logit_scale", "recurrent": "mamba",
        "experts": ("chosen", True, 1e-20, 0.0)},
    "nemotron_h": {"layers": (UNTURNED,), "activation": "relu2", "gated": False, "feed_forward_norm": "attn_norm",
        "recurrent": "mamba", "single": True},
    "nemotron_h_moe": {"layers": (UNTURNED,), "activation": "relu2", "gated": False,
        "feed_forward_norm": "attn_norm", "recurrent": "mamba", "single": True,
        "experts": ("sigmoid", True, 1e-20, 0.0)},
}
# cards: end


def summed(x: Array, y: Array | None = None) -> Array:
    """The sums of rows of x (T, C), or of its products with y: 32 chains."""
    chains, x = np.zeros((len(x), 32), F32), np.pad(x, ((0, 0), (0, -x.shape[1] % 32)))
    y = None if y is None else np.pad(np.broadcast_to(y, (len(x), y.shape[-1])), ((0, 0), (0, -y.shape[-1] % 32)))
    for start in range(0, x.shape[1], 32):
        part = slice(start, start + 32)
        chains = chains + x[:, part] if y is None else fma(x[:, part], y[:, part], chains)
    return fold(chains[:, :16] + chains[:, 16:])


def norm(x: Array, weight: Array, epsilon: Any) -> Array:
    """x / sqrt(mean(x²) + epsilon) * weight."""
    mean = summed(x, x) / F32(x.shape[1])
    return np.asarray(x * (F32(1) / np.sqrt(mean + epsilon))[:, None] * weight)


def turns(meta: Callable[..., Any], positions: int, head_size: int, factors: Array | None,
          base: tuple[str, ...] = ("rope.freq_base",), scaled: bool = True, whole: bool = True) -> Array:
    """Cosines and sines (positions, P, 2) of the turned elements of a head, in float64 until they
    are rounded. `whole`: YaRN blends between whole pairs."""
    pairs, theta = head_size // 2, float(next((meta(key) for key in base if meta(key) is not None), 10000.0))
    with decimal.localcontext(decimal.Context(prec=40)):
        own = np.array([float(decimal.Decimal(theta) ** (decimal.Decimal(-i) / pairs)) for i in range(pairs)])
    if factors is not None and scaled:
        own = own / factors.astype(F64)
    kind, magnitude = meta("rope.scaling.type", "linear"), float(meta("rope.scaling.attn_factor", 1.0))
    factor = float(meta("rope.scaling.factor", meta("rope.scale_linear", 0.0))) or 1.0  # 0 stands for none
    kind, magnitude = (kind, magnitude) if scaled else ("none", 1.0)
    frequency = own if kind in ("none", "longrope") else own / factor
    if kind == "yarn":
        context = meta("rope.scaling.original_context_length", meta("context_length"))
        fast, slow = meta("rope.scaling.yarn_beta_fast", 32.0), meta("rope.scaling.yarn_beta_slow", 1.0)
        low, high = (pairs * math.log(context / (t * 2 * math.pi)) / math.log(theta) for t in (fast, slow))
        low, high = (math.floor(low), math.ceil(high)) if whole else (low, high)
        low, high = max(0.0, low), min(2.0 * pairs - 1, high)
        keep = 1.0 - np.clip((np.arange(pairs) - low) / max(0.001, high - low), 0.0, 1.0)
        frequency = frequency * (1.0 - keep) + own * keep
        magnitude *= max(1.0, 1.0 + 0.1 * math.log(factor))
        magnitude /= max(1.0, 1.0 + 0.1 * meta("rope.scaling.yarn_log_multiplier", 0.0) * math.log(factor))
    angles = np.outer(np.arange(positions, dtype=F64), frequency)
    return (np.stack([np.cos(angles), np.sin(angles)], axis=-1) * magnitude).astype(F32)


def gated(gate: Array, up: Array) -> Array:
    """silu(gate) * up."""
    return np.asarray(gate / (exp2(gate * F32(-LOG2E)) + F32(1)) * up)


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x)."""
    return np.asarray(F32(1) / (exp2(x * F32(-LOG2E)) + F32(1)))


def softmax(x: Array) -> Array:
    """Shares (T, n) of e^x, where 16 sums go over x."""
    powers = exp2((x - x.max(axis=1)[:, None]) * F32(LOG2E))
    lanes = np.pad(powers, ((0, 0), (0, -x.shape[1] % 16))).reshape(len(x), -1, 16)
    return np.asarray(powers / fold(np.add.accumulate(lanes, axis=1)[:, -1])[:, None])


def best(x: Array, count: int, *, lowest: bool = False) -> Array:
    """Return which of x (T, n) are the `count` largest, of equal ones the first; or the lowest."""
    order = np.argsort(-x, axis=1, kind="stable")
    chosen = np.zeros(x.shape, bool)
    np.put_along_axis(chosen, order[:, -count:] if lowest else order[:, :count], True, axis=1)
    return chosen


def gelu(x: Array) -> Array:
    """GELU by the hyperbolic tangent."""
    slope = F32(-2 * LOG2E * math.sqrt(2 / math.pi))
    return np.asarray(x / (exp2(x * (x * x * F32(0.044715) + F32(1)) * slope) + F32(1)))


def clamped(gate: Array, up: Array) -> Array:
    """The activation of gpt-oss."""
    gate, up = np.minimum(gate, F32(7)), np.clip(up, F32(-7), F32(7))
    return np.asarray(gate / (exp2(gate * F32(-1.702 * LOG2E)) + F32(1)) * (up + F32(1)))


def silu(x: Array) -> Array:
    """x / (1 + e^-x)."""
    return np.asarray(x / (exp2(x * F32(-LOG2E)) + F32(1)))


def unit(x: Array) -> Array:
    """Rows x (..., D) of length 1."""
    squares = summed(x.reshape(-1, x.shape[-1]), x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])
    return np.asarray(x * (F32(1) / np.sqrt(squares + F32(1e-6)))[..., None])


def delta_rule(query: Array, key: Array, value: Array, keep: Array, rate: Array, state: Array) -> Array:
    """Results (T, N, V) of heads by their states (N, D, V), which change at each token. Queries and
    keys are (T, N, D), values (T, N, V); `keep` and `rate` (T, N) are how much of a state stays,
    and how much of an error goes into it."""
    out = np.empty_like(value)
    for t in range(len(query)):
        stays, found = keep[t][:, None], np.zeros((2, *state[:, 0].shape), F32)
        for i in range(state.shape[1]):
            found = fma(state[:, i], np.stack([key[t, :, i], query[t, :, i]])[:, :, None], found)
        error = (value[t] - found[0] * stays) * rate[t][:, None]
        out[t] = fma(summed(key[t], query[t])[:, None], error, found[1] * stays)
        state[:] = fma(key[t][:, :, None], error[:, None], state * stays[:, :, None])
    return out


def scan(x: Array, key: Array, query: Array, pace: Array, keep: Array, state: Array) -> Array:
    """Results (T, N, V) of heads by their states (N, D, V), which change at each token. Keys and
    queries are (T, N, D), x (T, N, V); `pace` and `keep` (T, N) are how much of x goes into a
    state, and how much of a state stays."""
    out = np.empty_like(x)
    for t in range(len(x)):
        state[:] = fma((pace[t][:, None] * x[t])[:, None], key[t][:, :, None], state * keep[t][:, None, None])
        chains = np.zeros((4, *x[t].shape), F32)
        for i in range(0, state.shape[1], 4):
            chains = fma(state[:, i:i + 4].swapaxes(0, 1), query[t].T[i:i + 4, :, None], chains)
        out[t] = fold(np.moveaxis(chains, 0, -1))
    return out


class Model:
    """A model of one of the families, and the keys and values of one sequence."""

    def __init__(self, data: bytes, cache: str = "f16", context: int | None = None,
                 rope: Mapping[str, Any] | None = None) -> None:
        """`data`: the GGUF file; `cache`: how keys and values are kept (CACHES); `context`:
        positions that the sequence may have, which some models turn heads by; `rope`: how a policy
        extends them."""
        self.file, self.cache = Gguf(data), cache
        self.family = self.file.metadata.get("general.architecture")
        if rope:
            more = {"type": "yarn", "factor": rope["factor"], "original_context_length": rope["original_context"]}
            self.file.metadata |= {f"{self.family}.rope.scaling.{key}": value for key, value in more.items()}
        if self.family not in FAMILIES:
            raise ValueError(f"no model of {', '.join(FAMILIES)}")
        self.card = FAMILIES["llama"] | FAMILIES[self.family]
        self.context = context or min(self.meta("context_length", 0), 32768)
        self.layers = self.meta("block_count") - self.meta("nextn_predict_layers", 0)
        self.width, self.position = self.meta("embedding_length"), 0
        self.epsilon = F32(self.meta(f"attention.layer_norm{'_rms' if self.card['norm'] == 'rms' else ''}_epsilon"))
        self.states: dict[int, Array] = {}  # by layer
        self.past: dict[int, list[Array]] = {}  # by layer: keys, their scales, values, their scales; or its state

    def meta(self, key: str, default: Any = None, layer: int | None = None) -> Any:
        """A value of metadata, which may be another in each layer."""
        value = self.file.metadata.get(f"{self.family}.{key}", default)
        return value if layer is None or not isinstance(value, list) else value[layer]

    def kind(self, layer: int) -> tuple[Any, ...]:
        """The kind of a layer, as in its card."""
        kinds, pattern = self.card["layers"], self.meta("attention.sliding_window_pattern")
        if self.card["sectioned"] and all([*self.meta("rope.dimension_sections", ()), 0, 0][:2]):
            kinds = self.card["sectioned"]
        if self.card["windowless"] and not self.meta("attention.sliding_window", 0):
            kinds = self.card["windowless"]
        if pattern is None:
            return tuple(kinds[layer % len(kinds)])
        return tuple(kinds[0 if (pattern[layer] if isinstance(pattern, list) else (layer + 1) % pattern) else -1])

    def weight(self, name: str, expert: int | None = None) -> Matrix:
        """A matrix of weights, or that of an expert."""
        kind, shape, blocks = self.file.tensors[name]
        return matrix(kind, shape, blocks) if expert is None else matrix(
            kind, shape[1:], blocks.reshape(shape[0], -1)[expert])

    def vector(self, name: str) -> Array:
        """A vector of weights."""
        weight = self.weight(name)
        return decoded(weight, range(count_rows(weight))).reshape(-1)

    def has(self, name: str) -> bool:
        """Whether there is a tensor."""
        return name in self.file.tensors

    def normed(self, name: str, x: Array) -> Array:
        """x (T, C), normalised by the weights `name`."""
        weight, bias = self.vector(f"{name}.weight"), f"{name}.bias"
        if self.card["norm"] == "rms":
            return norm(x, weight, self.epsilon)
        x = norm(x - (summed(x) / F32(x.shape[1]))[:, None], weight, self.epsilon)
        return x + self.vector(bias) if self.has(bias) else x

    def project(self, layer: int, part: str, x: Array, y: Array | None = None, expert: int | None = None) -> Array:
        """y (0 without one) + weights * x, and then the bias."""
        w, bias = self.weight(f"blk.{layer}.{part}.weight", expert), f"blk.{layer}.{part}.bias"
        found = multiply(w, x, np.zeros((len(x), count_rows(w)), F32) if y is None else y)
        return found + decoded(self.weight(bias), [expert or 0])[0] if self.has(bias) else found

    def shaped(self, layer: int, part: str, x: Array) -> Array:
        """Queries or keys x (T, heads, E), normalised and turned."""
        angles = self.angles(layer, x.shape[2])
        if self.card["head_norm"] == "head" and self.has(f"blk.{layer}.{part}.weight"):
            x = self.normed(f"blk.{layer}.{part}", x.reshape(-1, x.shape[2])).reshape(x.shape)
        return x if angles is None else rotate(x, angles[-len(x):], self.kind(layer)[0])

    def angles(self, layer: int, size: int) -> Array | None:
        """Cosines and sines of the newest positions; None where heads are not turned."""
        pairs, base, scaled, _, ending = self.kind(layer)
        if pairs is None or not (self.card["switch"] is None or self.meta(self.card["switch"], True)):
            return None
        original = self.meta("rope.scaling.original_context_length", self.meta("context_length", 0))
        names = (f"rope_factors_{'long' if self.context > original else 'short'}.weight", "rope_freqs.weight")
        factors = next((self.vector(name) for name in names if self.has(name)), None)
        return turns(self.meta, self.position, self.meta(f"rope.dimension_count{ending}", size), factors, base, scaled,
                     self.card["yarn_whole"])

    def scale(self, heads: int, size: int) -> Array:
        """The factors of queries (positions,)."""
        rule, scale = self.card["query_scale"], float(self.meta("attention.scale", 0.0)) or 1 / math.sqrt(size)
        if rule is not None:
            scale = 1.0 if rule == "1" else 1 / math.sqrt(self.width / heads) if self.layers == 62 else scale
        step = self.meta("rope.scaling.original_context_length", self.meta("context_length", 1))
        slope = float(self.meta("attention.temperature_scale", 0.0))
        with decimal.localcontext(decimal.Context(prec=40)):
            grown = [float(decimal.Decimal(p // step + 1).ln()) for p in range(self.position)]
        return np.array([LOG2E * scale * (1 + slope * x) for x in grown]).astype(F32)

    def attention(self, layer: int, x: Array) -> Array:
        """The heads' attention for normalised rows x (T, C); their keys and values are remembered.
        """
        rows, heads = len(x), self.meta("attention.head_count", None, layer)
        window, ending = self.kind(layer)[3:]
        size = self.meta(f"attention.key_length{ending}", self.width // heads)
        q, k = heads * size * (1 + self.card["output_gate"]), self.meta("attention.head_count_kv", heads, layer) * size
        name = f"blk.{layer}.attn_"
        if self.has(f"{name}qkv.weight"):
            query, key, value = np.split(self.project(layer, "attn_qkv", x), [q, q + k], axis=1)
        else:
            query, key = self.project(layer, "attn_q", x), self.project(layer, "attn_k", x)
            value = self.project(layer, "attn_v", x) if self.has(f"{name}v.weight") else key
        if self.card["head_norm"] == "row":
            query, key = self.normed(f"{name}q_norm", query), self.normed(f"{name}k_norm", key)
        if self.card["output_gate"]:
            query, gate = np.split(query.reshape(rows, heads, -1), 2, axis=2)
        if self.card["value_norm"]:
            value = norm(value.reshape(-1, size), np.ones(size, F32), self.epsilon)
        query, key, value = (part.reshape(rows, -1, size) for part in (query, key, value))
        query = self.shaped(layer, "attn_q_norm", query) * self.scale(heads, size)[-rows:, None, None]
        of_keys, of_values = CACHES[self.cache]
        new = [*kept(self.shaped(layer, "attn_k_norm", key), of_keys), *kept(value, of_values)]
        if layer in self.past:
            new = [np.concatenate(both) for both in zip(self.past[layer], new, strict=True)]
        self.past[layer] = new
        seen = self.meta("attention.sliding_window", 0) if window else 0
        sinks = self.vector(f"{name}sinks.weight") if self.has(f"{name}sinks.weight") else None
        found = attend(query, (new[0], new[1]), (new[2], new[3]), self.cache, seen, sinks)
        return (found * sigmoid(gate) if self.card["output_gate"] else found).reshape(rows, -1)

    def convolved(self, layer: int, part: str, x: Array) -> Array:
        """Sums (T, C) over each row of x (T, C) and the ones before it, column by column. The rows
        that the next one sees are remembered."""
        weights = decoded(self.weight(f"blk.{layer}.{part}.weight"), range(x.shape[1]))  # (C, width)
        kept = weights.shape[1] - 1
        rows = np.concatenate([self.past[layer][0] if layer in self.past else np.zeros((kept, x.shape[1]), F32), x])
        self.past[layer] = [rows[-kept:]]
        bias = f"blk.{layer}.{part}.bias"
        total = np.broadcast_to(self.vector(bias) if self.has(bias) else F32(0), x.shape)
        for place in range(kept + 1):
            total = fma(rows[place:place + len(x)], weights[:, place], total)
        return total

    def short_convolution(self, layer: int, x: Array) -> Array:
        """The result for normalised rows x (T, C), in place of attention's."""
        before, behind, x = np.split(self.project(layer, "shortconv.in_proj", x), 3, axis=1)
        return behind * self.convolved(layer, "shortconv.conv", before * x)

    def delta(self, layer: int, x: Array) -> Array:
        """The delta rule for normalised rows x (T, C), in place of attention."""
        size, keys, heads = (self.meta(f"ssm.{key}") for key in ("state_size", "group_count", "time_step_rank"))
        mixed = silu(self.convolved(layer, "ssm_conv1d", self.project(layer, "attn_qkv", x)))
        query, key, value = np.split(mixed.reshape(len(x), -1, size), [keys, 2 * keys], axis=1)
        if self.has(f"blk.{layer}.ssm_ba.weight"):  # value heads with the same keys lie together
            both = self.project(layer, "ssm_ba", x).reshape(len(x), keys, 2, -1)
            rate, pace = both[:, :, 0].reshape(len(x), -1), both[:, :, 1].reshape(len(x), -1)
            own = np.arange(heads) * keys // heads
        else:
            rate, pace = self.project(layer, "ssm_beta", x), self.project(layer, "ssm_alpha", x)
            own = np.arange(heads) % keys
        start, decay, scale = (self.vector(f"blk.{layer}.ssm_{part}") for part in ("dt.bias", "a", "norm.weight"))
        keep, state = exp2(softplus(pace + start) * decay * F32(LOG2E)), np.zeros((heads, size, size), F32)
        out = delta_rule(unit(query[:, own]) * F32(size**-0.5), unit(key[:, own]), value, keep, sigmoid(rate),
                         self.states.setdefault(layer, state))
        out = norm(out.reshape(-1, size), scale, self.epsilon).reshape(len(x), -1)
        return out * silu(self.project(layer, "attn_gate", x))

    def mamba(self, layer: int, x: Array) -> Array:
        """Mamba-2 for normalised rows x (T, C), in place of attention."""
        rows, name = len(x), f"blk.{layer}.ssm_"
        inner, heads, groups, size = (self.meta(f"ssm.{key}") for key in (
            "inner_size", "time_step_rank", "group_count", "state_size"))
        gate, mixed, pace = np.split(self.project(layer, "ssm_in", x), [inner, 2 * (inner + groups * size)], axis=1)
        mixed, middle = silu(self.convolved(layer, "ssm_conv1d", mixed)), inner + groups * size
        x, key, query = (part.reshape(rows, number, -1) for part, number in zip(
            np.split(mixed, [inner, middle], axis=1), (heads, groups, groups), strict=True))
        key, query = (np.repeat(part, heads // groups, axis=1) for part in (key, query))
        start, decay, skip, scale = (self.vector(f"{name}{part}") for part in ("dt.bias", "a", "d", "norm.weight"))
        pace, state = softplus(pace + start), np.zeros((heads, size, inner // heads), F32)
        out = scan(x, key, query, pace, exp2(pace * decay * F32(LOG2E)), self.states.setdefault(layer, state))
        out = gated(gate, fma(skip[:, None], x, out).reshape(rows, -1)).reshape(rows * groups, -1)
        return norm(out, np.ones(1, F32), self.epsilon).reshape(rows, -1) * scale

    def mixer(self, layer: int) -> tuple[Callable[[int, Array], Array] | None, str]:
        """The part of a layer that looks at earlier rows, and the matrix behind it; None in a layer
        without one."""
        if self.has(f"blk.{layer}.attn_output.weight"):
            return self.attention, "attn_output"
        if self.card["single"] and self.meta("feed_forward_length", None, layer):
            return None, ""
        return {"convolution": (self.short_convolution, "shortconv.out_proj"),
                "delta": (self.delta, "ssm_out"), "mamba": (self.mamba, "ssm_out")}[self.card["recurrent"]]

    def feed_forward(self, layer: int, x: Array, ending: str = "", expert: int | None = None) -> Array:
        """The hidden rows for normalised rows x (T, C): activation(gate) * up, or activation(up).
        """
        whole = f"ffn_gate_up{ending}"  # gate and up in one
        part = whole if self.has(f"blk.{layer}.{whole}.weight") else f"ffn_up{ending}"
        up = self.project(layer, part, x, None, expert)
        gate, up = (np.split(up, 2, axis=1) if self.card["fused"] or part == whole else
                    (self.project(layer, f"ffn_gate{ending}", x, None, expert), up) if self.card["gated"] else
                    (up, np.ones(1, F32)))
        if self.card["activation"] == "swiglu_oai":
            return clamped(gate, up)
        if self.card["activation"] == "relu2":
            return np.asarray(np.maximum(gate, F32(0)) * np.maximum(gate, F32(0)))
        return gelu(gate) * up if self.card["activation"] == "gelu" else gated(gate, up)

    def chosen(self, layer: int, x: Array) -> tuple[Array, Array]:
        """The experts of normalised rows x (T, C): ids (T, k), which ascend, and weights (T, k)."""
        logits, used = self.project(layer, "ffn_gate_inp", x), self.meta("expert_used_count")
        kind, normalised, least, added = self.card["experts"]
        scores = softmax(logits) if kind == "softmax" else sigmoid(logits) if kind == "sigmoid" else logits
        bias = f"blk.{layer}.exp_probs_b.bias"
        wanted = scores + (self.vector(bias) if self.has(bias) else F32(0))
        groups, kept = self.meta("expert_group_count", 0) or 1, self.meta("expert_group_used_count", 0)
        if 0 < kept < groups:
            parts = wanted.reshape(len(x), groups, -1)
            two = np.sort(parts, axis=2)[..., -2:]
            parts[best(two[..., 0] + two[..., 1], groups - kept, lowest=True)] = HIDDEN
        ids = best(wanted, used)
        found = scores[ids].reshape(len(x), used)
        if kind == "chosen":
            found = exp2((found - found.max(axis=1)[:, None]) * F32(LOG2E))
        if kind == "chosen" or self.meta("expert_weights_norm", normalised):
            found = found / np.maximum(np.add.accumulate(found, axis=1)[:, -1:] + F32(added), F32(least))
        found = found * F32(self.meta("expert_weights_scale", 0.0) or 1.0)
        numbers, own = np.nonzero(ids)[1].reshape(len(x), used), f"blk.{layer}.ffn_down_exps.scale"
        return numbers, found * self.vector(own)[numbers] if self.has(own) else found

    def mixed(self, layer: int, x: Array, asked: Array | None = None) -> Array:
        """The sums (T, C) of what experts make of normalised rows x (T, C). `asked`: rows that they
        are chosen by, where these are others."""
        y, name = np.zeros_like(x), f"blk.{layer}.ffn_gate_inp_shexp.weight"
        if self.has(f"blk.{layer}.ffn_up_shexp.weight"):
            y = self.project(layer, "ffn_down_shexp", self.feed_forward(layer, x, "_shexp"))
        if self.has(name):
            y = y * sigmoid(summed(x, self.vector(name)))[:, None]
        ids, weights = self.chosen(layer, x if asked is None else asked)
        for expert in np.unique(ids):
            rows, place = np.nonzero(ids == expert)
            hidden = self.feed_forward(layer, x[rows], "_exps", int(expert))
            out = self.project(layer, "ffn_down_exps", hidden, None, int(expert))
            y[rows] = fma(out, weights[rows, place][:, None], y[rows])
        return y

    def beside(self, layer: int, x: Array) -> Array:
        """The residual rows x (T, C) after a dense network with experts beside it."""
        name, scale = f"blk.{layer}.", self.vector(f"blk.{layer}.ffn_gate_inp.scale") * F32(self.width**-0.5)
        hidden = self.feed_forward(layer, self.normed(f"{name}ffn_norm", x))
        y = self.normed(f"{name}post_ffw_norm_1", self.project(layer, "ffn_down", hidden))
        found = self.mixed(layer, self.normed(f"{name}pre_ffw_norm_2", x), norm(x, scale, self.epsilon))
        x = x + self.normed(f"{name}post_ffw_norm", y + self.normed(f"{name}post_ffw_norm_2", found))
        final = f"{name}layer_output_scale.weight"
        return x * self.vector(final)[0] if self.has(final) else x

    def added(self, layer: int, part: str, x: Array, y: Array, result: str) -> Array:
        """Rows y (T, C) with the products of a matrix and x added."""
        scale = float(self.meta("residual_scale", 0.0)) or 1.0
        final, normed = f"blk.{layer}.layer_output_scale.weight", self.card["topology"] in ("sandwich", "post")
        last = part == "ffn_down" and self.has(final)
        if not normed and scale == 1.0 and not last:
            return self.project(layer, part, x, y)
        x = self.project(layer, part, x)
        y = fma(self.normed(f"blk.{layer}.{result}", x) if normed else x, np.asarray(scale, F32), y)
        return y * self.vector(final)[0] if last else y

    def block(self, layer: int, x: Array) -> Array:
        """The residual rows x (T, C) after a layer."""
        name, topology = f"blk.{layer}.", self.card["topology"]
        first = "attn_norm_2" if self.has(f"{name}attn_norm_2.weight") else "attn_norm"
        mix, output = self.mixer(layer)
        if mix is not None:
            seen = mix(layer, x if topology == "post" else self.normed(name + first, x))
        if topology == "parallel":
            hidden = self.feed_forward(layer, self.normed(f"{name}attn_norm", x))
        if mix is not None:
            x = self.added(layer, output, seen, x, "post_attention_norm")
        if mix is not None and self.card["single"]:
            return x
        if self.has(f"{name}ffn_gate_inp.scale"):
            return self.beside(layer, x)
        if self.has(f"{name}ffn_gate_inp.weight"):
            mixed = self.mixed(layer, self.normed(name + self.card["feed_forward_norm"], x))
            return fma(mixed, np.asarray(float(self.meta("residual_scale", 0.0)) or 1.0, F32), x)
        if topology != "parallel":
            second = name + self.card["feed_forward_norm"]
            hidden = self.feed_forward(layer, x if topology == "post" else self.normed(second, x))
        return self.added(layer, "ffn_down", hidden, x, "post_ffw_norm")

    def rows(self, tokens: Sequence[int]) -> Array:
        """Go on with `tokens`: their residual rows (T, C) after all layers."""
        first, self.position = self.position, self.position + len(tokens)
        x = decoded(self.weight("token_embd.weight"), tokens)
        x = x * F32(math.sqrt(self.width) if self.card["embedding_scale"] else self.meta("embedding_scale", 0.0) or 1.0)
        if self.has("position_embd.weight"):
            x = x + decoded(self.weight("position_embd.weight"), range(first, self.position))
        for layer in range(self.layers):
            x = self.block(layer, x)
        return x

    def guessed(self, x: Array, tokens: Sequence[int]) -> tuple[Array, Array]:
        """The rows (T, C) of the layer that guesses, for residual rows x (T, C) and the token after
        each, and its logits (T, vocabulary) of the token after that."""
        name = f"blk.{self.layers}.nextn."
        own = [name + part if self.has(f"{name}{part}.weight") else other for part, other in (
            ("embed_tokens", "token_embd"), ("shared_head_norm", self.card["output_norm"]), (
                "shared_head_head", "output" if self.has("output.weight") else "token_embd"))]
        known = decoded(self.weight(f"{own[0]}.weight"), tokens)
        both = np.concatenate([self.normed(f"{name}enorm", known), self.normed(f"{name}hnorm", x)], axis=1)
        x = self.block(self.layers, multiply(self.weight(f"{name}eh_proj.weight"), both, np.zeros_like(x)))
        head = self.weight(f"{own[2]}.weight")
        return x, multiply(head, self.normed(own[1], x), np.zeros((len(x), count_rows(head)), F32))

    def logits(self, tokens: Sequence[int], last: int | None = None) -> Array:
        """Go on with `tokens`: logits (last, vocabulary) after each of the `last` ones (None: all).
        """
        x = self.rows(tokens)
        x = self.normed(self.card["output_norm"], x[len(x) - (len(x) if last is None else last):])
        head = self.weight("output.weight" if self.has("output.weight") else "token_embd.weight")
        x = multiply(head, x, np.zeros((len(x), count_rows(head)), F32))
        x = x + self.vector("output.bias") if self.has("output.bias") else x
        factor, cap = float(self.meta("logit_scale", 1.0)), F32(self.meta("final_logit_softcapping", 0.0))
        x = x * F32(1 / factor if self.card["logit_scale"] == "/logit_scale" else factor)
        return cap - (cap + cap) / (exp2(x / cap * F32(2 * LOG2E)) + F32(1)) if cap else x


# --- 6. The choice of a token ---------------------------------------------------------------------
ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "tfs_z", "typ_p", "top_p", "min_p", "epsilon_cutoff", "eta_cutoff",
         "xtc", "temperature")
SETTINGS = {  # where an answer does not say
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.0, "repeat_last_n": 64,
    "frequency_penalty": 0.0, "presence_penalty": 0.0, "dynatemp_range": 0.0, "dynatemp_exponent": 1.0,
    "typical_p": 1.0, "tfs_z": 1.0, "top_n_sigma": 0.0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0,
    "xtc_probability": 0.0, "xtc_threshold": 0.1,
    "mirostat": 0, "mirostat_tau": 5.0, "mirostat_eta": 0.1, "dry_multiplier": 0.0, "dry_base": 1.75,
    "dry_allowed_length": 2, "dry_penalty_last_n": -1, "dry_breakers": (), "guidance_scale": 1.0, "token_healing": 0,
    "samplers": ORDER, "logit_bias": {}}
LN2, LN2_HIGH, LN2_LOW = 0.6931471805599453, 0.6931471803691238, 1.9082149292705877e-10


def exp(x: Any) -> Any:
    """e^x of numbers in float64, each operation rounded."""
    x = np.asarray(x, F64)
    r = np.clip(x, -708.0, 709.0)
    k = np.rint(r * 1.4426950408889634)
    r = (r - k * LN2_HIGH) - k * LN2_LOW
    power = np.full_like(r, 1 / math.factorial(13))
    for n in range(12, -1, -1):
        power = power * r + 1 / math.factorial(n)
    return np.where(x < -708.0, 0.0, np.ldexp(power, k.astype(int)))


def ln(x: float) -> float:
    """The logarithm of a number above 0."""
    m, e = math.frexp(x)
    if m < 0.7071067811865476:
        m, e = 2 * m, e - 1
    f = (m - 1) / (m + 1)
    series = 1 / 23
    for n in range(21, 0, -2):
        series = series * (f * f) + 1 / n
    return float(e * LN2_HIGH + (e * LN2_LOW + 2 * f * series))


def sums(x: Array) -> Array:
    """The sums of all numbers up to the end of each chunk of 256."""
    rows = np.zeros((-(-len(x) // 256), 256), F64)
    rows.reshape(-1)[:len(x)] = x
    return np.cumsum(fold(rows))


def total(x: Array) -> float:
    """The sum of numbers."""
    return float(sums(x)[-1])


def uniform(seed: int, draw: int, name: str = "draw") -> float:
    """The number in 0..1 that draw number `draw` of a seed takes."""
    data = f"appliance sampler {name} v1\0".encode() + seed.to_bytes(8, "little") + draw.to_bytes(8, "little")
    return float((int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 11) * 2.0**-53)


def penalise(x: Array, s: Mapping[str, Any], prompt: Sequence[int], answer: Sequence[int]) -> None:
    """Lower the logits of tokens that are there already."""
    last, penalty = s["repeat_last_n"], F32(s["repeat_penalty"])
    with np.errstate(over="ignore"):
        for token in set([*prompt, *answer][-last:] if last else ()):
            x[token] = x[token] / penalty if x[token] > 0 else x[token] * penalty
        bound(x)
        for token, times in Counter(answer).items():
            x[token] -= F32(times * s["frequency_penalty"] + s["presence_penalty"])
    bound(x)


def bound(x: Array) -> None:
    """Keep adjusted logits finite."""
    np.clip(x, np.finfo(F32).min, np.finfo(F32).max, out=x)


def dry(x: Array, s: Mapping[str, Any], tokens: Sequence[int]) -> None:
    """Lower the logits of tokens that would make a repetition longer."""
    last, allowed = s["dry_penalty_last_n"], s["dry_allowed_length"]
    tokens = list(tokens[-last:] if last > 0 else tokens if last else ())
    breakers = {tuple(each) for each in s["dry_breakers"]}
    lengths = {len(each) for each in breakers}
    if s["dry_multiplier"] == 0 or len(tokens) <= allowed:
        return
    most = len(tokens)  # tokens after the last breaker
    for start in range(len(tokens) - 1, -1, -1):
        found = [n for n in lengths if start + n <= len(tokens) and tuple(tokens[start:start + n]) in breakers]
        if found:
            most = len(tokens) - start - max(found)
            break
    runs: dict[int, int] = {}
    for end in range(1, len(tokens)):  # a token that came after a run of those at the end
        run = 0
        while run < end and tokens[end - 1 - run] == tokens[len(tokens) - 1 - run]:
            run += 1
        runs[tokens[end]] = max(runs.get(tokens[end], 0), min(run, most))
    for token, run in runs.items() if most >= allowed else ():
        if run >= allowed and (token,) not in breakers:
            power = float(exp(min((run - allowed) * ln(s["dry_base"]), 88.7228391)))
            x[token] -= F32(min(s["dry_multiplier"] * power, 1e30))


def narrowed(name: str, s: Mapping[str, Any], logits: Array, x: Array, chance: float) -> Array:
    """Places that a sampler keeps, of candidates with such logits; x is relative to the highest.
    `chance` is the draw of `xtc`."""
    count, order = len(x), np.argsort(-logits, kind="stable")  # the best first, the lowest id among equals
    weights = exp(x)
    whole = total(weights)
    entropy = ln(whole) - total(x * weights) / whole
    if name == "top_k":
        return order[:s["top_k"] or None]
    if name == "top_p" and s["top_p"] < 1:
        return order[:np.searchsorted(np.cumsum(weights[order]), s["top_p"] * whole, side="left") + 1]
    if name == "min_p" and s["min_p"] > 0:
        return np.flatnonzero(x >= ln(s["min_p"]))
    if name == "typ_p" and s["typical_p"] < 1:
        order = np.argsort(np.abs((ln(whole) - x) - entropy), kind="stable")
        return order[:np.searchsorted(np.cumsum(weights[order]), s["typical_p"] * whole, side="right") + 1]
    if name == "tfs_z" and s["tfs_z"] < 1 and count > 2:
        bend = np.abs(np.diff(np.diff(weights[order] / whole)))
        bent = np.cumsum(bend)[-1]
        bend = bend / bent if bent > 1e-6 else np.full(count - 2, 1 / (count - 2))
        place = int(np.searchsorted(np.cumsum(bend), s["tfs_z"], side="right"))
        return order if place == count - 2 else order[:max(place, 1)]
    if name == "top_n_sigma" and s["top_n_sigma"] > 0:
        some = x[x > -1000]
        mean = total(some) / len(some)
        return np.flatnonzero(x >= -s["top_n_sigma"] * math.sqrt(total((some - mean) ** 2) / len(some)))
    if name == "xtc" and 0 < s["xtc_probability"] >= chance:
        top = np.count_nonzero((weights >= s["xtc_threshold"] * whole) & (weights > 0))
        return order[max(top - 1, 0):]
    epsilon = s["epsilon_cutoff"] * 1e-4
    if name == "eta_cutoff":
        epsilon = s["eta_cutoff"] * 1e-4
        epsilon = min(epsilon, math.sqrt(epsilon) * float(exp(-entropy)))
    if name in ("epsilon_cutoff", "eta_cutoff"):
        return np.flatnonzero(weights >= min(epsilon * whole, 1.0))
    return order


def cooled(s: Mapping[str, Any], x: Array) -> float:
    """The temperature for candidates that are x relative to the highest."""
    t, spread = s["temperature"], s["dynatemp_range"]
    if t == 0 or spread == 0:
        return float(t)
    if len(x) == 1:
        return 1.0
    weights = exp(x)
    share = (ln(total(weights)) - total(x * weights) / total(weights)) / ln(len(x))
    power = float(exp(s["dynatemp_exponent"] * ln(share))) if share > 0 else float(s["dynatemp_exponent"] == 0)
    return float(max(0.0, t - spread) + (t + spread - max(0.0, t - spread)) * power)


def mirostat(s: Mapping[str, Any], most: float, logits: Array, x: Array, vocabulary: int) -> Array:
    """Places of the candidates whose surprise keeps below `most`, or so many of the best."""
    order = np.argsort(-logits, kind="stable")
    if s["mirostat"] == 2:
        floor = ln(total(exp(x))) - most * LN2
        return np.flatnonzero(x >= floor) if floor < 0 else order[:1]
    if len(x) == 1:
        return order
    steps = np.array([ln((i + 2) / (i + 1)) for i in range(min(len(x), 100) - 1)])
    slope = np.cumsum(-np.diff(x[order[:100]]) * steps)[-1] / np.cumsum(steps * steps)[-1]
    excess, names = float(slope) - 1, ln(vocabulary)
    spread = names if excess == 0 else (1 - float(exp(-excess * names))) / excess
    if slope <= 0 or spread <= 0:
        return order
    size = (most * LN2 - ln(spread)) / float(slope)
    return order if size >= ln(len(x)) else order[:max(math.floor(exp(size)), 1)]


def guided(logits: Array, negative: Array, scale: float) -> Array:
    """Logits that go away from those after the negative prompt."""
    own, other = (np.maximum(row.astype(F64) - float(row.max()), -1000.0) for row in (logits, negative))
    own, other = own - ln(total(exp(own))), other - ln(total(exp(other)))
    return np.asarray((own - other) * scale + other, F32)


def masked(mask: str, count: int) -> Array:
    """The tokens, of `count`, whose bit is set in a mask (base64)."""
    return np.flatnonzero(np.unpackbits(np.frombuffer(base64.b64decode(mask), np.uint8), bitorder="little")[:count])


def choose(logits: Array, settings: Mapping[str, Any], seed: int, prompt: Sequence[int], answer: Sequence[int],
           state: dict[str, float] | None = None, mask: str | None = None, negative: Array | None = None,
           suppressed: Sequence[int] = ()) -> int:
    """The next token of an answer. `state` is kept from token to token, and empty at first.
    `mask`: bits, in base64, of the tokens that its constraint allows. `negative`: the logits after
    its negative prompt. `suppressed`: tokens that the model's file keeps out of answers."""
    s: dict[str, Any] = {**SETTINGS, **settings}
    state = {} if state is None else state
    all_logits, ids, t = logits.copy(), np.arange(len(logits)), 1.0
    if mask is not None:
        ids = masked(mask, len(logits))
    if len(suppressed):
        ids = np.setdiff1d(ids, suppressed)
    if negative is not None and s["guidance_scale"] != 1:
        all_logits = guided(logits, negative, s["guidance_scale"])
    for token, bias in s["logit_bias"].items():
        all_logits[int(token)] += F32(bias)
    bound(all_logits)

    def below() -> Array:
        x = all_logits[ids].astype(F64) - float(all_logits[ids].max())
        with np.errstate(over="ignore"):
            return np.maximum(x / t, -1000.0)

    for name in [*s["samplers"], *(["mirostat"] if s["mirostat"] else ())]:
        kept = np.arange(len(ids))
        if name in ("penalties", "dry"):
            if t != 1:
                with np.errstate(over="ignore"):
                    all_logits = np.clip(all_logits.astype(F64) / t, np.finfo(F32).min, np.finfo(F32).max).astype(F32)
                t = 1.0
            penalise(all_logits, s, prompt, answer) if name == "penalties" else dry(all_logits, s, [*prompt, *answer])
            bound(all_logits)
        elif name == "temperature":
            factor = cooled(s, below())
            t, kept = (t * factor, kept) if factor > 0 else (t, np.array([all_logits[ids].argmax()]))
        elif name == "mirostat":
            kept = mirostat(s, state.setdefault("most", 2 * s["mirostat_tau"]), all_logits[ids], below(), len(logits))
        elif not s["mirostat"]:
            kept = narrowed(name, s, all_logits[ids], below(), uniform(seed, len(answer), "xtc"))
        ids = ids[np.sort(kept)]
    weights = exp(below())
    chunks = sums(weights)
    target = uniform(seed, len(answer)) * chunks[-1]
    chunk = passing(chunks, target)
    inner = np.cumsum(weights[256 * chunk:256 * chunk + 256])
    place = 256 * chunk + passing(inner, target - (chunks[chunk - 1] if chunk else 0.0))
    if s["mirostat"]:
        surprise = (ln(float(chunks[-1])) - float(below()[place])) / LN2
        state["most"] -= s["mirostat_eta"] * (surprise - s["mirostat_tau"])
    return int(ids[place])


def passing(running: Array, target: float) -> int:
    """The first place with a sum above `target`, or else the first with the last sum."""
    return int(np.searchsorted(running, min(target, math.nextafter(running[-1], 0.0)), side="right"))


# --- The command ----------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    """Compare an answer. Exit code 0: every token is the model's; 1: one is not; 2: no comparison
    is possible."""
    parser = argparse.ArgumentParser(description="compare the tokens of an answer with what the model says",
                                     epilog="exit codes: 0 they are the same, 1 one is another, 2 cannot be told")
    parser.add_argument("model", metavar="MODEL", type=Path, help="the GGUF file")
    parser.add_argument("answer", metavar="ANSWER", type=Path,
                        help="what `appliance infer POLICY --prompt TEXT --json` printed")
    parser.add_argument("--cache", choices=CACHES, default="f16", help="kv_cache of the policy (f16)")
    parser.add_argument("--context", type=int, help="positions of a slot, which models with long factors depend on")
    args = parser.parse_args(arguments)
    try:
        answer = json.loads(args.answer.read_text())
        prompt, tokens, settings = answer["prompt_tokens"], answer["tokens"], answer["sampling"]
        data = args.model.read_bytes()
        logits, beside = (Model(data, args.cache, args.context, answer.get("rope")).logits(
            [*before, *tokens][:-1], len(tokens)) if before else [None] * len(tokens)
            for before in (prompt, answer.get("negative_tokens")))
        state: dict[str, float] = {}
        masks = answer.get("masks", [None] * len(tokens))  # of an answer with a constraint
        suppressed = Gguf(data).metadata.get("tokenizer.ggml.suppress_tokens", ())
        said = [choose(row, settings, answer["seed"], prompt, tokens[:index], state, masks[index],
                       beside[index], suppressed) for index, row in enumerate(logits)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, struct.error) as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for index, (token, other) in enumerate(zip(tokens, said, strict=True)):
        if token != other:
            print(f"token {index + 1} of {len(tokens)} is {token}; the model says {other}")
            return 1
    print(f"all {len(tokens)} tokens are what the model says")
    return 0


if __name__ == "__main__":
    sys.exit(main())
