"""The slots of a beam search: one for each place, and the token that each live text goes on with.

Texts that part share their full pages, as all forks do. Each slot has a claim on the pages of the
longest text, so no step lacks any: a fork takes the pages that the slot gave back, or fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.engine.decode.beams.search import Moves
from appliance.engine.forward.seats import Seats


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

    def follow(self, moves: Moves, positions: int, seats: Seats) -> None:
        """Empty some places and fork others, all of which have so many positions."""
        for place in moves.left:
            seats.rewind(self.slots[place], 0)
        for parent, child in moves.copies:
            seats.fork(self.slots[parent], self.slots[child], positions, self.longest)

    def go_on(self, nexts: Sequence[tuple[int, int]], positions: int) -> None:
        """Take the place and the token of each live text, the best first."""
        self.live = [Lane(self.slots[place], positions, token) for place, token in nexts]
