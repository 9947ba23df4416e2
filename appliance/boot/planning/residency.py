"""Which matrices of a model stay decrypted in memory, and which are streamed, when not all of them
fit.

A byte of attention, of shared parts and of the output is used in each pass, a byte of an expert in
some of them. So those are kept first, and what is left is for experts. Within each kind, a byte
saves the same time wherever it is. Kept tensors lie evenly among the others, so that a disk goes on
reading while threads are busy with what is in memory, and each layer has as many. The rest is
filled up with whatever still fits. So speed rises with memory, without a step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from appliance.models.file.roles import Role, by_rank
from appliance.models.file.tiling import Segment, Tiling
from appliance.models.sources.streamed import EMBEDDING

OUTPUT = "output.weight"


Roles = Mapping[str, Role] | None
"""The role of each tensor by its name; None where only their rank tells."""


def packed_nbytes(segment: Segment) -> int:
    """Bytes of a matrix, or of a run of them, in kernel order."""
    return segment.nbytes


def matrices(tiling: Tiling, roles: Roles = None) -> list[Segment]:
    """The matrices and runs of a model that may be streamed. A matrix of one row is tiled as a
    vector, and is always kept as one."""
    known = by_rank(tiling.gguf) if roles is None else roles
    return [segment for segment in tiling.segments if segment.kind == "matrix" and segment.info is not None
            and known.get(segment.info.name, "vector") != "vector"]


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


def is_expert(segment: Segment) -> bool:
    """Whether a row uses some matrices of a tensor only: it is a run of them."""
    return segment.info is not None and len(segment.info.shape) > 2


def choose(tiling: Tiling, room: int, roles: Roles = None, *, hidden: bool = True) -> frozenset[str]:
    """Names of the matrices to keep in `room` bytes, experts last. With `hidden`, embeddings are in
    memory anyway, encrypted: to keep them decrypted instead takes nothing."""
    return _in_turn([(segment, 0 if hidden and segment.info is not None and segment.info.name == EMBEDDING else
                      packed_nbytes(segment)) for segment in matrices(tiling, roles)], room)


def _in_turn(costs: Sequence[tuple[Segment, int]], room: int) -> frozenset[str]:
    """Names of what to keep in `room` bytes: of what all rows use, then of experts."""
    kept = frozenset[str]()
    for experts in (False, True):
        each = {segment.info.name: cost for segment, cost in costs
                if segment.info is not None and is_expert(segment) == experts}
        chosen = _named(each, room)
        kept, room = kept | chosen, room - sum(each[name] for name in chosen)
    return kept


def _named(costs: Mapping[str, int], room: int) -> frozenset[str]:
    return frozenset(name for name, chosen in zip(costs, spread(list(costs.values()), room), strict=True) if chosen)


def read_by_a_pass(tiling: Tiling, roles: Roles = None) -> list[Segment]:
    """Matrices that a pass reads whole: all but the embeddings, unless they are the output head,
    too."""
    tensors = tiling.gguf.tensors
    looked_up = EMBEDDING if OUTPUT in tensors else None
    return [segment for segment in matrices(tiling, roles)
            if segment.info is not None and segment.info.name != looked_up]


def choose_kept(tiling: Tiling, room: int, resident: frozenset[str] = frozenset(), roles: Roles = None, *,
                hidden: bool = True) -> frozenset[str]:
    """Names of the matrices, other than the `resident` ones, whose records to keep in `room` bytes,
    encrypted. With `hidden`, each pass reads all records of experts that are not kept, so that they
    are worth as much as others."""
    costs = [(segment, segment.records_nbytes) for segment in read_by_a_pass(tiling, roles)
             if segment.info is not None and segment.info.name not in resident]
    if hidden:
        return _named({segment.info.name: cost for segment, cost in costs if segment.info is not None}, room)
    return _in_turn(costs, room)
