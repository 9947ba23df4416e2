"""Which matrices of a model stay decrypted in memory, and which are streamed, when not all of them
fit.

Every matrix is read once in each pass, so a byte that is kept saves the same time wherever it is.
Kept tensors lie evenly among the others, so that a disk goes on reading while threads are busy with
what is in memory. The rest is filled up with whatever still fits. So speed rises with memory,
without a step.
"""

from __future__ import annotations

from collections.abc import Sequence

from appliance.models.file.tiling import Segment, Tiling
from appliance.models.sources.streamed import EMBEDDING

OUTPUT = "output.weight"


def packed_nbytes(segment: Segment) -> int:
    """Bytes of a matrix in kernel order."""
    return segment.units * segment.unit_nbytes


def spread(costs: Sequence[int], room: int) -> list[bool]:
    """Which of things that take so many bytes each to keep in `room` bytes: evenly over their
    order, as many as fit."""
    whole, due, chosen = sum(costs), 0, []
    for cost in costs:
        due += room * cost
        chosen.append(due >= whole * cost and cost <= room)
        if chosen[-1]:
            due -= whole * cost
    left = room - sum(cost for cost, taken in zip(costs, chosen, strict=True) if taken)
    for index, cost in enumerate(costs):
        if not chosen[index] and cost <= left:
            chosen[index], left = True, left - cost
    return chosen


def choose(tiling: Tiling, room: int, *, hidden: bool = True) -> frozenset[str]:
    """Names of the matrices to keep in `room` bytes. With `hidden`, embeddings are in memory
    anyway, encrypted: to keep them decrypted instead takes nothing."""
    costs = {segment.info.name: 0 if hidden and segment.info.name == EMBEDDING else packed_nbytes(segment)
             for segment in tiling.segments if segment.kind == "matrix" and segment.info is not None}
    return _named(costs, room)


def _named(costs: dict[str, int], room: int) -> frozenset[str]:
    return frozenset(name for name, chosen in zip(costs, spread(list(costs.values()), room), strict=True) if chosen)


def read_by_a_pass(tiling: Tiling) -> list[Segment]:
    """Matrices that a pass reads whole: all but the embeddings, unless they are the output head,
    too."""
    tensors = tiling.gguf.tensors
    looked_up = EMBEDDING if OUTPUT in tensors else None
    return [segment for segment in tiling.segments
            if segment.kind == "matrix" and segment.info is not None and segment.info.name != looked_up]


def choose_kept(tiling: Tiling, room: int, resident: frozenset[str] = frozenset()) -> frozenset[str]:
    """Names of the matrices, other than the `resident` ones, whose records to keep in `room` bytes,
    encrypted."""
    return _named({segment.info.name: segment.records_nbytes for segment in read_by_a_pass(tiling)
                   if segment.info is not None and segment.info.name not in resident}, room)
