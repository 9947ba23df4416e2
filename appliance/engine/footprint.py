"""How much memory a forward pass takes beside weights, keys and values: reckoned from a model's shape alone.

The sizes are those of the buffers that `forward.Forward` makes; a test compares them. Pages that are never touched
are counted, too: a long prompt may touch them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.engine.architecture import Architecture
from appliance.engine.forward import (
    UNITS_A_THREAD,
    WANTED,
    parts_nbytes,
    private_sizes,
    row_nbytes,
    row_widths,
    stride,
)
from appliance.engine.kernels import step_layout
from appliance.engine.kernels.shapes import SHAPES, padded_rows
from appliance.models.gguf import TensorInfo

_HUGE = 2 << 20  # the kernel may back a buffer with pages of this size


def widths(tensors: Iterable[TensorInfo]) -> dict[str, int]:
    """Most columns of the matrices that take each kind of activations; formats without a kernel are left out."""
    found: dict[str, int] = {}
    for info in tensors:
        if len(info.shape) == 2 and info.format.name in SHAPES:
            kind = SHAPES[info.format.name].activation
            found[kind] = max(found.get(kind, 0), info.columns)
    return found


def _pages(nbytes: int) -> int:
    return -(-nbytes // _HUGE) * _HUGE if nbytes >= _HUGE else nbytes


def activations_nbytes(a: Architecture, kinds: Mapping[str, int], *, rows: int, threads: int, context: int,
                       wanted: int = WANTED) -> int:
    """Bytes of the buffers of a pass of up to `rows` rows, with logits of `wanted` of them. `kinds` as from
    `widths`; `context`: positions of a slot."""
    shared = [stride(width) * rows for width in row_widths(a).values()]
    shared += [row_nbytes(*kind) * rows for kind in kinds.items()]
    shared.append(stride(padded_rows(a.vocabulary)) * wanted)
    shared.append(4 * context * a.head_size)  # angles of rotation
    private = sum(private_sizes(a, kinds).values())
    private += step_layout.COUNTER_NBYTES * UNITS_A_THREAD
    vectors = 4 * a.embedding * (2 * a.blocks + 1)
    return sum(map(_pages, shared)) + threads * private + _pages(parts_nbytes(a, threads, context)) + vectors
