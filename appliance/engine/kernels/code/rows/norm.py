"""Root-mean-square normalisation of one row."""

from __future__ import annotations

import math

from appliance.engine.kernels.compiler.jit import device
from appliance.engine.kernels.compiler.vector import f32, fma_f32, load_f32, splat_f32, store_f32, sum_f32


@device
def rms_norm(x: int, weight: int, out: int, size: int, epsilon: float) -> None:
    """out[i] = x[i] / sqrt(mean(x²) + epsilon) * weight[i]; `size` floats, a multiple of 32. Two
    chains of sums."""
    even = splat_f32(f32(0.0))
    odd = splat_f32(f32(0.0))
    for i in range(size // 32):
        first, second = load_f32(x + 128 * i), load_f32(x + 128 * i + 64)
        even = fma_f32(first, first, even)
        odd = fma_f32(second, second, odd)
    mean = sum_f32(even + odd) / f32(size)
    scale = splat_f32(f32(1.0) / f32(math.sqrt(mean + epsilon)))
    for i in range(size // 16):
        store_f32(out + 64 * i, load_f32(x + 64 * i) * scale * load_f32(weight + 64 * i))
