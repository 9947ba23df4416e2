"""Normalisation of one row: by its root mean square, or by its mean and deviation (LayerNorm)."""

from __future__ import annotations

import math

from appliance.kernels.compiler.jit import device
from appliance.kernels.compiler.vector import f32, fma_f32, load_f32, splat_f32, store_f32, sum_f32
from appliance.kernels.layouts.step import LAYER_NORM, Norm


@device
def square_sum(x: int, size: int) -> float:
    """The sum of x[i]²; `size` floats, a multiple of 16. Two chains of sums."""
    even = splat_f32(f32(0.0))
    odd = splat_f32(f32(0.0))
    for i in range(size // 32):
        first, second = load_f32(x + 128 * i), load_f32(x + 128 * i + 64)
        even = fma_f32(first, first, even)
        odd = fma_f32(second, second, odd)
    if size % 32 != 0:
        last = load_f32(x + 4 * size - 64)
        even = fma_f32(last, last, even)
    return sum_f32(even + odd)


@device
def rms_norm(x: int, weight: int, out: int, size: int, epsilon: float) -> None:
    """out[i] = x[i] / sqrt(mean(x²) + epsilon) * weight[i], without weights where `weight` is 0;
    `size` floats, a multiple of 16."""
    mean = square_sum(x, size) / f32(size)
    scale = splat_f32(f32(1.0) / f32(math.sqrt(mean + epsilon)))
    if weight == 0:
        for i in range(size // 16):
            store_f32(out + 64 * i, load_f32(x + 64 * i) * scale)
        return
    for i in range(size // 16):
        store_f32(out + 64 * i, load_f32(x + 64 * i) * scale * load_f32(weight + 64 * i))


@device(inline=False)
def layer_norm(x: int, norm: Norm, out: int, size: int, epsilon: float) -> None:
    """out[i] = (x[i] - mean) / sqrt(mean((x - mean)²) + epsilon) * weight[i] + bias[i]; `size`
    floats, a multiple of 16."""
    even, odd = splat_f32(f32(0.0)), splat_f32(f32(0.0))
    for i in range(size // 32):
        even = even + load_f32(x + 128 * i)
        odd = odd + load_f32(x + 128 * i + 64)
    if size % 32 != 0:
        even = even + load_f32(x + 4 * size - 64)
    mean = splat_f32(sum_f32(even + odd) / f32(size))
    for i in range(size // 16):
        store_f32(out + 64 * i, load_f32(x + 64 * i) - mean)
    spread = square_sum(out, size) / f32(size)
    scale = splat_f32(f32(1.0) / f32(math.sqrt(spread + epsilon)))
    weight, bias = norm.WEIGHT, norm.BIAS
    for i in range(size // 16):
        y = load_f32(out + 64 * i) * scale * load_f32(weight + 64 * i)
        if bias != 0:
            y = y + load_f32(bias + 64 * i)
        store_f32(out + 64 * i, y)


@device(inline=False)
def normalise(x: int, norm: Norm, out: int, size: int, epsilon: float) -> None:
    """A row at `x`, normalised, to `out`, which may be the same place."""
    if norm.KIND == LAYER_NORM:
        layer_norm(x, norm, out, size, epsilon)
    else:
        rms_norm(x, norm.WEIGHT, out, size, epsilon)
