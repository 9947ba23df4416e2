"""The table of rotations: cosine and sine of every position and pair, with the scalings of long contexts."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from appliance.engine.architecture import Architecture, Rope

_FAST, _SLOW = 32.0, 1.0  # rotations over the original context between which YaRN blends


def turns(architecture: Architecture, context: int, factors: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """(context, head_size): cosine and sine of each pair, interleaved. `factors` divide the frequencies (Llama 3).

    Computed in float64. YaRN (arXiv 2309.00071): pairs that turn often over the original context keep their
    frequency, those that turn less than once are interpolated, the rest blends linearly by pair index.
    """
    rope, pairs = architecture.rope, architecture.head_size // 2
    frequencies = rope.base ** (-np.arange(pairs, dtype=np.float64) / pairs)
    if factors is not None:
        frequencies = frequencies / factors.astype(np.float64)
    scaled = frequencies / rope.factor
    if rope.scaling == "yarn":
        keep = _kept(rope, pairs)
        scaled = scaled * (1.0 - keep) + frequencies * keep
    angles = np.outer(np.arange(context, dtype=np.float64), scaled)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1) * rope.magnitude
    return table.reshape(context, 2 * pairs).astype(np.float32)


def _kept(rope: Rope, pairs: int) -> NDArray[np.float64]:
    """The share (0..1) of each pair's own frequency that YaRN keeps."""
    def pair_of(rotations: float) -> float:
        return pairs * math.log(rope.original_context / (rotations * 2 * math.pi)) / math.log(rope.base)

    low = max(0.0, math.floor(pair_of(_FAST)))
    high = min(2.0 * pairs - 1, math.ceil(pair_of(_SLOW)))
    ramp = (np.arange(pairs) - low) / max(0.001, high - low)
    return np.asarray(1.0 - np.clip(ramp, 0.0, 1.0), np.float64)
