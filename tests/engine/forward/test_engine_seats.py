"""Seats: a slot's pages and what the kernels may read of it change together."""

from __future__ import annotations

import random

import pytest

from appliance.engine.forward.seats import Seats
from appliance.errors import CapacityError, EngineError
from appliance.kernels.layouts.attention import PAGE
from tests.support.engines import running

SLOTS, CONTEXT = 5, 6 * PAGE


def agree(seats: Seats, slots: set[int]) -> None:
    """No slot has a position for the kernels that is in no page of its own; one that is free has neither."""
    cache, boundary = seats._cache, seats._boundary
    for slot in range(SLOTS):
        assert boundary.filled(slot) <= PAGE * len(cache._taken[slot])
        assert slot in slots or (0, []) == (boundary.filled(slot), cache._taken[slot])
    assert SLOTS == seats.free + len(slots)
    assert 0 <= cache.unclaimed


@pytest.mark.parametrize("seed", range(4))
def test_pages_and_positions_agree(seed: int) -> None:
    """Any course of claims, passes, forks, cuts, rewinds, restarts and ends, one that is refused among them."""
    draw = random.Random(seed)
    with running("tied", slots=SLOTS, context=CONTEXT) as engine:
        forward, seats = engine._forward, engine._batcher.seats
        longest: dict[int, int] = {}
        for _ in range(120):
            verb, slot = draw.choice(("claim", "run", "run", "fork", "cut", "rewind", "restart", "give_back")), None
            if longest:
                slot = draw.choice(sorted(longest))
                filled = seats._boundary.filled(slot)
            if verb == "claim" or slot is None:
                positions = draw.randint(1, CONTEXT)
                try:
                    with seats.claim([positions]) as [new]:
                        longest[new] = positions
                except CapacityError:
                    assert not seats.fit([positions])
            elif verb == "run" and filled < longest[slot]:
                count = draw.randint(1, min(longest[slot] - filled, 100))
                forward.run([7] * count, range(filled, filled + count), [slot] * count, [])
            elif verb == "fork" and seats.fit([longest[slot]]):
                with seats.claim([longest[slot]], promise=False) as [new]:
                    seats.fork(slot, new, filled, longest[slot], shared=0)
                longest[new] = longest[slot]
            elif verb == "cut":
                seats.cut(slot, draw.randint(filled - filled % PAGE, filled))  # of a page that no other slot reads
            elif verb == "rewind":
                seats.rewind(slot, draw.randint(0, filled))
            elif verb == "restart" and longest[slot] > CONTEXT - PAGE:
                seats.restart(slot)
            elif verb == "give_back":
                seats.give_back(slot)
                del longest[slot]
            agree(seats, set(longest))
        for slot in longest:
            seats.give_back(slot)
        agree(seats, set())
        assert (0, engine._cache.pages) == (engine._cache.in_use, engine._cache.unclaimed)
        assert not engine._cache._memory.view("u1").any()


def test_a_claim_that_fails_leaves_nothing() -> None:
    """An error within the block gives back slots and pages, and what was written."""
    with running("tied", slots=SLOTS, context=CONTEXT) as engine:
        seats = engine._batcher.seats

        def fail() -> None:
            with seats.claim([100, 200]) as slots:
                engine._forward.run([7] * 10, range(10), [slots[0]] * 10, [])
                raise MemoryError
        with pytest.raises(MemoryError):
            fail()
        agree(seats, set())
        assert (0, engine._cache.pages) == (engine._cache.in_use, engine._cache.unclaimed)


def test_what_is_not_there_is_refused() -> None:
    """Positions that a slot does not have, slots that are all taken, and a fork that needs more pages than are free."""
    with running("tied", slots=SLOTS, context=CONTEXT) as engine:
        seats = engine._batcher.seats
        with seats.claim([CONTEXT] * SLOTS) as slots:
            with pytest.raises(EngineError):
                seats.cut(slots[0], 1)
            with pytest.raises(EngineError):
                seats.rewind(slots[0], 1)
            with pytest.raises(CapacityError, match="all slots are in use"):
                seats.require([1])
            for slot in slots:
                seats.give_back(slot)
