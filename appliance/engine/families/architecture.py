"""The facts of a model that a forward pass needs: its family, and numbers. How they are read:
`header`."""

from __future__ import annotations

from dataclasses import dataclass

CONTEXT_CAP = 32_768  # positions; the default limit, where the policy names none
HEAD_SIZES = range(32, 257, 16)  # what the attention kernels are built for
LEAST_FACTOR = 1e-3  # of rotary positions, which it divides: near zero they would have no sine


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary position embedding of interleaved pairs, and how positions are scaled."""

    scaling: str  # "none", "linear" or "yarn"
    base: float  # frequency base
    factor: float  # context extension; 1.0 without scaling
    original_context: int  # positions the model was trained on (YaRN)
    magnitude: float  # factor on cosine and sine


@dataclass(frozen=True, slots=True)
class Architecture:
    """The dimensions of one model. All counts are positive and within the ranges that the kernels
    take."""

    family: str  # its row in `table`
    layers: int
    embedding: int  # floats of a residual row
    heads: int  # query heads
    kv_heads: int  # key and value heads; each serves heads // kv_heads query heads
    head_size: int
    feed_forward: int
    vocabulary: int
    context_length: int  # positions that the file promises
    epsilon: float  # of the RMS norms
    rope: Rope

    @property
    def query_width(self) -> int:
        """Floats of all query heads of a row."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Floats of all key (or value) heads of a row."""
        return self.kv_heads * self.head_size

    def context(self, wanted: int | None = None) -> int:
        """Positions to serve: the wanted number (None: CONTEXT_CAP), at most what the file
        promises."""
        return min(self.context_length, CONTEXT_CAP if wanted is None else wanted)
