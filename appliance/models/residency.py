"""Which matrices of a model stay decrypted in memory, and which are streamed, when not all of them fit.

Every matrix is read once in each pass, so a byte that is kept saves the same time wherever it is; besides, each tile
costs a fixed time. So matrices with the most tiles for their bytes come first, and what is left is filled up with
whatever still fits: speed rises with memory, without a step.
"""

from __future__ import annotations

from appliance.models.streamed import EMBEDDING
from appliance.models.tiling import Segment, Tiling

OUTPUT = "output.weight"


def packed_nbytes(segment: Segment) -> int:
    """Bytes of a matrix in kernel order."""
    return segment.units * segment.unit_nbytes


def choose(tiling: Tiling, room: int, *, hidden: bool = True) -> frozenset[str]:
    """Names of the matrices to keep in `room` bytes. With `hidden`, embeddings are in memory anyway, encrypted: to keep
    them decrypted instead takes nothing."""
    kept: set[str] = set()
    matrices = [segment for segment in tiling.segments if segment.kind == "matrix" and segment.info is not None]
    for segment in sorted(matrices, key=lambda each: each.tiles / packed_nbytes(each), reverse=True):
        if segment.info is None:
            continue
        name = segment.info.name
        cost = 0 if hidden and name == EMBEDDING else packed_nbytes(segment)
        if cost <= room:
            room -= cost
            kept.add(name)
    return frozenset(kept)


def read_by_a_pass(tiling: Tiling) -> list[Segment]:
    """Matrices that a pass reads whole: all but the embeddings, unless they are the output head, too."""
    tensors = tiling.gguf.tensors
    looked_up = EMBEDDING if OUTPUT in tensors else None
    return [segment for segment in tiling.segments
            if segment.kind == "matrix" and segment.info is not None and segment.info.name != looked_up]


def choose_kept(tiling: Tiling, room: int, resident: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the matrices, other than the `resident` ones, whose records to keep in `room` bytes, encrypted."""
    kept: set[str] = set()
    for segment in read_by_a_pass(tiling):
        if segment.info is not None and segment.info.name not in resident and segment.records_nbytes <= room:
            room -= segment.records_nbytes
            kept.add(segment.info.name)
    return frozenset(kept)
