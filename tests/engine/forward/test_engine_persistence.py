"""Pages on a state disk: a new process finds them, with the bits of reading again; nobody else's, none that is torn."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.engine.kernels.layouts.attention import CACHE_FORMATS
from tests.engine.forward.test_engine_prefixes import IDS, answers, engine_with, request
from tests.support import shelves

LENGTHS = (65, 130, 320, 321, 330)


def course(engine, opened, requests, tenant="one", tenants=("one",)):
    """What `answers` gives, of a process whose disk is `opened`; then all is on the disk."""
    engine.acquire()
    engine.keep_prefixes(tenants, 60.0, opened.shelf)
    try:
        return answers(engine, requests, tenant)
    finally:
        engine.release()
        opened.close()


@pytest.mark.parametrize(("kind", "streamed"), [*((kind, False) for kind in CACHE_FORMATS), ("q8", True)])
def test_bits_after_a_restart(kind, streamed, tmp_path: Path):
    """A restored beginning gives the logits of reading it, in each format, and with weights that are streamed. Nothing
    is left in the arena, neither tenant finds the other's pages, and the disk shows neither tokens nor keys."""
    disk, requests = shelves.blank(tmp_path), [request(IDS[:length]) for length in LENGTHS]
    with engine_with(12, kind, streamed) as engine:
        engine.acquire()
        cold = answers(engine, requests)
        engine.release()
        page, tenants = engine.page, ("one", "two")
        first = course(engine, shelves.start(disk, page), requests[-1:], tenants=tenants)
        hot = [course(engine, shelves.start(disk, page), [each], tenants=tenants)[0] for each in requests]
        other = course(engine, shelves.start(disk, page), requests[-1:], "two", tenants)
        assert not engine._cache._memory.view("u1").any()
    assert 0 == first[0][0] == other[0][0]
    assert [64, 128, 256, 320, 320] == [cached for cached, _ in hot]
    assert [logits for _, logits in cold] == [logits for _, logits in hot]
    assert cold[-1][1] == first[0][1] == other[0][1]
