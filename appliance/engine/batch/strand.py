"""The text of a slot; and the slots of a beam search, one for each place.

Texts of a search that part share their full pages, as all forks do. Each slot has a claim on the
pages of the longest text, so no step lacks any: a fork takes the pages that the slot gave back, or
fewer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.engine.decode.beam_search import Moves
from appliance.engine.forward.seats import Seats


@dataclass(slots=True)
class Strand:
    """The text of one slot. `todo`: tokens whose keys and values are not in the cache yet; the
    first of them comes at `position`. `cached`: tokens whose were there at the start."""

    slot: int
    todo: list[int]
    position: int = 0
    tenant: str = ""
    cached: int = 0
    stops: list[int] = field(default_factory=list)  # positions at which a pass of the prompt ends: see `stop_after`

    def stop_after(self, positions: int) -> int:
        """How many of the next so many tokens a pass may read: it ends at each stop."""
        return next((stop - self.position for stop in self.stops if 0 < stop - self.position < positions), positions)


@dataclass(slots=True)
class Lanes:
    """All slots of a search, by place; the first one reads the prompt."""

    slots: Sequence[int]
    longest: int  # positions of a text at its longest
    live: list[Strand] = field(default_factory=list)  # each with its next token, the best first; none before a step

    def follow(self, moves: Moves, positions: int, seats: Seats) -> None:
        """Empty some places and fork others, all of which have so many positions."""
        for place in moves.left:
            seats.rewind(self.slots[place], 0)
        for parent, child in moves.copies:
            seats.fork(self.slots[parent], self.slots[child], positions, self.longest)

    def go_on(self, nexts: Sequence[tuple[int, int]], positions: int) -> None:
        """Take the place and the token of each live text, the best first."""
        self.live = [Strand(self.slots[place], [token], positions) for place, token in nexts]
