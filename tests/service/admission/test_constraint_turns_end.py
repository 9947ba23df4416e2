"""A compilation that takes longer than it may: it loses its turn, and its tenant has no other until it is done."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from appliance.api.offers import Offer
from appliance.api.problems import RequestError
from appliance.api.structure import Structure
from appliance.constraint import spec
from appliance.service.admission import constraints
from appliance.service.admission.constraints import Constraints, Wish
from tests.constraint.bombs import SCHEMAS
from tests.constraint.walks import compiler, words


def _wanted(what: spec.Spec) -> Wish:
    return Wish(None, words(), compiler(), Offer(), (), Structure("structure", what), False)


COSTLY, CHEAP = _wanted(spec.JsonSchema(SCHEMAS["numbers"])), _wanted(spec.TextList(("ab", "cd")))


async def _turn_of(kept: Constraints) -> list[Any]:
    costly = asyncio.ensure_future(kept.ready("a", "m", COSTLY))
    await asyncio.sleep(0)
    behind = asyncio.ensure_future(kept.ready("a", "m", CHEAP))
    found = list(await asyncio.gather(costly, kept.ready("b", "m", CHEAP), behind, return_exceptions=True))
    while kept._late:
        await asyncio.sleep(0.01)
    return [*found, await kept.ready("a", "m", CHEAP)]


def test_a_late_compilation_loses_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its request is refused; another tenant goes on at once; its own waits until it is done."""
    monkeypatch.setattr(constraints, "SECONDS", 0.1)
    late, other, behind, after = asyncio.run(_turn_of(Constraints(["a", "b"])))
    assert isinstance(late, RequestError)
    assert (400, "invalid_value") == (late.status, late.code)
    assert isinstance(behind, RequestError)
    assert (503, "overloaded") == (behind.status, behind.code)
    assert not other.begin().may_end
    assert not after.begin().may_end


def test_what_is_kept_is_forgotten_a_minute_after_its_last_use(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then the memory is wiped, too."""
    monkeypatch.setattr(constraints, "KEPT_SECONDS", 0.2)

    async def kept_and_gone() -> tuple[bool, int]:
        freed: list[None] = []
        kept = Constraints(["a"], lambda: freed.append(None))
        first = await kept.ready("a", "m", CHEAP)
        same = await kept.ready("a", "m", CHEAP) is first
        while kept._kept:
            await asyncio.sleep(0.05)
        assert await kept.ready("a", "m", CHEAP) is not first
        return same, len(freed)

    same, freed = asyncio.run(asyncio.wait_for(kept_and_gone(), 60))
    assert same
    assert freed >= 1
