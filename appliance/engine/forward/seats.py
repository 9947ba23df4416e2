"""The seats of texts: each has a slot, the pages of the cache that its positions are in, and how
many positions the kernels may read.

Only this module changes these after a pass, always together: so the kernels never read a position
whose page was given back. `Forward.run` adds to them, as it writes positions.

    claim      a slot, and the promise of all pages of a text at its longest
    begin      kept pages become the first of an empty slot
    fork       an empty slot begins as another one does, whose full pages it shares
    cut        positions from some on are forgotten; their pages stay, and are written again
    commit     positions of wrong guesses are forgotten
    rewind     as cut, and the pages go, too
    restart    as rewind, to nothing: for a text that no longer shares any page
    give back  slot, pages and promise go

Not safe to use from two threads at once.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from appliance.engine.forward.kvcache import KVCache, pages_of
from appliance.engine.forward.states import KeptStates
from appliance.errors import CapacityError, EngineError
from appliance.kernels.layouts.attention import PAGE
from appliance.kernels.runtime.boundary import BatchLimits, Boundary


def dummy_seats(rows: int, context: int) -> tuple[int, ...]:
    """Positions of each seat that dummy rows of a pass of up to so many rows need."""
    return tuple(min(context, rows - first) for first in range(0, rows, context))


class Seats:
    """The slots of one cache."""

    def __init__(self, cache: KVCache, boundary: Boundary, dummies: Sequence[int] = ()) -> None:
        """`dummies`: positions of each seat of dummy rows. These have the last slots."""
        self._cache, self._boundary = cache, boundary
        self.dummies = range(cache.slots - len(dummies), cache.slots)
        """Slots that no text has."""
        for slot, positions in zip(self.dummies, dummies, strict=True):
            cache.claim(slot, positions)
        self._free = list(range(self.dummies.start - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots that nobody uses."""
        return len(self._free)

    @property
    def context(self) -> int:
        """Positions of a slot."""
        return self._cache.context

    @property
    def limits(self) -> BatchLimits:
        """The bounds of a pass."""
        return self._boundary.limits

    def fit(self, longest: Sequence[int]) -> bool:
        """Whether slots and pages are free for texts of so many positions at their longest."""
        pages = [pages_of(each) for each in longest]
        return len(pages) <= len(self._free) and sum(pages) <= self._cache.unclaimed

    def require(self, longest: Sequence[int]) -> None:
        """CapacityError where they are not."""
        pages = [pages_of(each) for each in longest]
        if len(pages) > len(self._free):
            raise CapacityError("all slots are in use", code="slots-in-use")
        if sum(pages) > self._cache.unclaimed:
            raise CapacityError(f"{sum(pages)} pages of keys and values are needed, {self._cache.unclaimed} are free",
                                hint="try again later", code="pages-in-use")

    @contextlib.contextmanager
    def claim(self, longest: Sequence[int], *, promise: bool = True) -> Iterator[list[int]]:
        """Take a slot for each of some texts, with a promise of its pages where `promise`. All go
        back where the block fails. CapacityError where slots or pages are not there."""
        self.require(longest)
        slots = [self._free.pop() for _ in longest]
        try:
            for slot, positions in zip(slots, longest if promise else (), strict=promise):
                self._cache.claim(slot, positions)
            yield slots
        except BaseException:
            for slot in reversed(slots):
                self.give_back(slot)
            raise

    def begin(self, slot: int, pages: Sequence[int], states: KeptStates | None = None) -> None:
        """Let an empty slot begin with pages that are kept, and the state at their end. EngineError
        where layers have states, and there are none."""
        if states is None:
            self._require_no_state(len(pages))
        elif pages:
            states.begin(slot, pages[-1])
        self._cache.begin(slot, pages)
        self._boundary.inherit(slot, len(pages) * PAGE)

    def mark(self, slot: int, positions: int) -> None:
        """Remember the state of a slot, which is that of so many positions, where they fill whole
        pages: for texts that begin with these."""
        if positions % PAGE == 0:
            self._cache.states.mark(slot, positions)

    def page_at(self, slot: int, position: int) -> int:
        """A page of a slot for the positions from `position` on, to be filled from outside: see
        `extend`."""
        self._cache.cover(slot, position, PAGE)
        return self._cache.pages_below(slot, position + PAGE)[-1]

    def mark_of(self, slot: int) -> int:
        """The number of a slot's second state, to be filled from outside: see `extend`."""
        return self._cache.states.mark_of(slot)

    def extend(self, slot: int, positions: int, *, state: bool = False) -> None:
        """Note that the pages of so many positions were filled from outside, and so was the slot's
        second state where `state`. EngineError where layers have states, and there is none."""
        if state:
            self._cache.states.adopt(slot, positions)
        else:
            self._require_no_state(positions)
        self._boundary.forget(slot)
        self._boundary.inherit(slot, positions)

    def pretend(self, slot: int, positions: int) -> None:
        """Let a slot hold so many positions, whatever is there: for a pass that is only timed."""
        self._cache.cover(slot, 0, positions)
        self._boundary.forget(slot)
        self._boundary.inherit(slot, positions)

    def _require_no_state(self, count: int) -> None:
        if count and self.limits.stateful:
            raise EngineError("pages of an earlier text have no state for its layers without keys and values")

    def fork(self, parent: int, child: int, positions: int, longest: int, *, shared: int | None = None) -> None:
        """Let an empty slot begin with the first positions of another one, and promise it its
        pages up to `longest`, but for the `shared` ones: by default as many as these fill.
        EngineError where the other one's state is that of more positions."""
        behind = self._cache.states.logs.behind(parent)
        if self.limits.stateful and (behind or self._boundary.filled(parent) != positions):
            raise EngineError(f"slot {parent} has no state of {positions} positions")
        self._cache.claim(child, longest, positions // PAGE if shared is None else shared)
        self._cache.fork(parent, child, positions)
        self._boundary.inherit(child, positions)

    def cut(self, slot: int, positions: int) -> None:
        """Forget all positions of a slot but the first. Their pages stay."""
        self._boundary.forget(slot, positions)

    def expect_guesses(self, slot: int, count: int) -> None:
        """The last rows of a slot in the next pass, so many, will be guesses. Its state stays that
        of the rows before them until `commit`."""
        self._cache.states.logs.expect(slot, count)

    def commit(self, slot: int, positions: int, right: int) -> None:
        """Keep so many positions of a slot, the last ones of which are the `right` guesses."""
        self._cache.states.logs.commit(slot, right)
        self._boundary.go_back(slot, positions)

    def rewind(self, slot: int, positions: int) -> None:
        """Keep the first positions of a slot, and its promise."""
        self._boundary.forget(slot, positions)  # first: it refuses what a state cannot go back to
        self._cache.rewind(slot, positions)

    def restart(self, slot: int) -> None:
        """Let all pages of a slot go, and promise it a whole context of its own."""
        self._cache.restart(slot)
        self._boundary.forget(slot)

    def pages_below(self, slot: int, positions: int) -> list[int]:
        """The pages of a slot that its first `positions` fill."""
        return self._cache.pages_below(slot, positions)

    def give_back(self, slot: int) -> None:
        """Let a slot go, with its pages and its promise."""
        self._cache.give_back(slot)
        self._boundary.forget(slot)
        self._free.append(slot)
