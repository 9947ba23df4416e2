"""How much memory a forward pass takes beside weights, keys and values: reckoned from a model's shape alone.

The sizes are those of the buffers that `forward.Forward` makes; a test compares them. Pages that are never touched
are counted, too: a long prompt may touch them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from appliance.engine.architecture import Architecture
from appliance.engine.forward import UNITS_A_THREAD, WANTED, parts_nbytes, stride
from appliance.engine.kernels import step_layout
from appliance.engine.kernels.attention_layout import SCRATCH_NBYTES, state_nbytes, tile_tokens
from appliance.engine.kernels.shapes import ACTIVATIONS, SHAPES, padded_rows, token_nbytes
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


def _token(kind: str, columns: int) -> int:
    block = ACTIVATIONS[kind].elements
    return token_nbytes(kind, -(-columns // block) * block)


def activations_nbytes(a: Architecture, kinds: Mapping[str, int], *, rows: int, threads: int, context: int,
                       wanted: int = WANTED) -> int:
    """Bytes of the buffers of a pass of up to `rows` rows, with logits of `wanted` of them. `kinds` as from
    `widths`; `context`: positions of a slot."""
    group = a.heads // a.kv_heads
    shared = [stride(width) * rows for width in (a.embedding, a.query_width + 2 * a.kv_width, a.query_width,
                                                 2 * a.feed_forward)]
    shared += [_token(kind, columns) * rows for kind, columns in kinds.items()]
    shared.append(stride(padded_rows(a.vocabulary)) * wanted)
    shared.append(4 * context * a.head_size)  # angles of rotation
    query = group * tile_tokens(group)
    private = (4 * max(a.embedding, a.query_width, a.feed_forward) + 4 * a.head_size * query + SCRATCH_NBYTES
               + 2 * state_nbytes(a.head_size) * query + sum(_token(*kind) for kind in kinds.items()))
    private += step_layout.COUNTER_NBYTES * UNITS_A_THREAD
    vectors = 4 * a.embedding * (2 * a.blocks + 1)
    return sum(map(_pages, shared)) + threads * private + _pages(parts_nbytes(a, threads, context)) + vectors
