"""Plain numpy twins of the product kernels: slow, and without any of their tricks.

A twin takes weights as `decoders.dequantise` gives them (float32, exact in float64), quantises
activations as ggml's x86 build does, and multiplies in float64. A kernel and its twin differ only
by the float32 rounding of the kernel's sums. Nothing here knows of 16-row groups, tiles, or the
layout of activations.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from appliance.kernels.layouts.shapes import ACTIVATIONS, SHAPES, activation_kind

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

_LIMIT = np.float32(127.0)


@dataclass(frozen=True)
class Quantised:
    """Activations (tokens, columns) as int8 with a scale for each block, (tokens, blocks); `sums`: ggml's
    binary16 of scale * sum of a block's int8 (q8_32 only, else empty)."""

    values: NDArray[np.int8]
    scales: Floats
    sums: Floats

    def dense(self) -> Doubles:
        """The activations that the products see."""
        tokens, columns = self.values.shape
        blocks = self.values.astype(np.float64).reshape(tokens, self.scales.shape[1], -1)
        return (blocks * self.scales.astype(np.float64)[:, :, None]).reshape(tokens, columns)


def _inverse(numerator: np.float32, extreme: Floats) -> Floats:
    with np.errstate(divide="ignore", over="ignore"):
        return np.where(extreme != 0, numerator / extreme, np.float32(0)).astype(np.float32)


def _rounded(blocks: Floats, inverse: Floats) -> NDArray[np.int8]:
    scaled = blocks * inverse[:, :, None]  # float32; ties go to even
    return np.clip(np.rint(scaled), -127, 127).astype(np.int8)


def quantise_q8_32(x: Floats) -> Quantised:
    """Blocks of 32 as ggml's Q8_0 and Q8_1 on x86: multiplied by 127 / amax, scale kept as binary16."""
    blocks = x.reshape(len(x), -1, 32)
    amax = np.abs(blocks).max(axis=2)
    values = _rounded(blocks, _inverse(_LIMIT, amax))
    exact = amax / _LIMIT
    with np.errstate(over="ignore"):
        sums = (exact * values.sum(axis=2, dtype=np.int32).astype(np.float32)).astype(np.float16)
        return Quantised(values.reshape(x.shape), exact.astype(np.float16).astype(np.float32),
                         sums.astype(np.float32))


def quantise_q8_256(x: Floats) -> Quantised:
    """Blocks of 256 as ggml's Q8_K: multiplied by -127 / (first value of largest magnitude)."""
    blocks = x.reshape(len(x), -1, 256)
    extreme = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    inverse = _inverse(-_LIMIT, extreme)
    return Quantised(_rounded(blocks, inverse).reshape(x.shape), _inverse(np.float32(1.0), inverse),
                     np.empty((len(x), 0), np.float32))


def product(format_name: str, weights: Floats, x: Floats, minima: Floats | None = None) -> Doubles:
    """`x` (tokens, columns) times the transpose of `weights` (rows, columns), with activations quantised for the
    format. `minima` (rows, blocks): the m of Q4_1 and Q5_1, which ggml multiplies with rounded sums; those formats'
    weights are then given without it. Result (tokens, rows)."""
    kind = activation_kind(format_name)
    if kind == "f32":
        return x.astype(np.float64) @ weights.astype(np.float64).T
    quantised = quantise_q8_32(x) if kind == "q8_32" else quantise_q8_256(x)
    result = quantised.dense() @ weights.astype(np.float64).T
    if minima is not None:
        result += quantised.sums.astype(np.float64) @ minima.astype(np.float64).T
    return result


def magnitude(format_name: str, weights: Floats, x: Floats) -> Doubles:
    """Return the sum of the magnitudes of each product's terms, (tokens, rows): the yardstick for
    rounding errors."""
    if x.shape[1] % ACTIVATIONS[SHAPES[format_name].activation].elements:
        raise ValueError(f"{x.shape[1]} columns are not whole blocks")
    return np.abs(x).astype(np.float64) @ np.abs(weights).astype(np.float64).T
