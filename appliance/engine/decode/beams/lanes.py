"""The slots of a beam search: one for each place, and the token that each live text goes on with.

Texts that part share their full pages, as all forks do. Each slot has a claim on the pages of the
longest text, so no step lacks any: a fork takes the pages that the slot gave back, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.engine.decode.beams.search import Moves
from appliance.engine.forward.kvcache import KVCache
from appliance.kernels.layouts.attention import PAGE
from appliance.kernels.runtime.boundary import Boundary


@dataclass(frozen=True, slots=True)
class Lane:
    """The next row of a live text."""

    slot: int
    position: int
    token: int


@dataclass(slots=True)
class Lanes:
    """All slots of a search, by place; the first is the one that reads the prompt."""

    slots: Sequence[int]
    longest: int  # positions of a text at its longest
    live: list[Lane] = field(default_factory=list)  # the best text first; none before the first step

    def claim(self, cache: KVCache) -> None:
        """Promise each slot its pages; CapacityError where they are not there."""
        for slot in self.slots:
            cache.claim(slot, self.longest)

    def follow(self, moves: Moves, positions: int, cache: KVCache, boundary: Boundary) -> None:
        """Give places back and fork others, all of which have so many positions."""
        for place in moves.left:
            cache.rewind(self.slots[place], 0)
            boundary.forget(self.slots[place])
        for parent, child in moves.copies:
            cache.claim(self.slots[child], self.longest, positions // PAGE)
            cache.fork(self.slots[parent], self.slots[child], positions)
            boundary.inherit(self.slots[child], positions)

    def go_on(self, nexts: Sequence[tuple[int, int]], positions: int) -> None:
        """Take the place and the token of each live text, the best first."""
        self.live = [Lane(self.slots[place], positions, token) for place, token in nexts]
