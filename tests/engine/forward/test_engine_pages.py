"""Pages of keys and values: promised, taken, and given back; wherever they lie, the bits are the same."""

from __future__ import annotations

import functools
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.forward import kvcache
from appliance.engine.forward.kvcache import NOWHERE, KVCache
from appliance.engine.kernels.layouts.attention import CACHE_FORMATS, PAGE
from appliance.errors import CapacityError, EngineError
from tests.support import synthetic
from tests.support.engines import running
from tests.support.logits import logits_of

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 399).tolist()]
SLOTS, PAGES, CONTEXT = 4, 12, 6 * PAGE - 5


@functools.cache
def shape():
    """A small architecture."""
    with running("tied", slots=1, context=64) as engine:
        return engine.architecture


def offsets(cache, slot):
    """The pages of a slot, by its row."""
    row = cache.rows.view("i8").reshape(cache.slots, -1)[slot]
    return [int(offset) // cache.page_stride for offset in row if offset != NOWHERE]


def content(cache, page):
    """The bytes of a page's keys and of its values."""
    whole = cache._memory.view("u1").reshape(2, cache.pages, cache.page_stride)
    return whole[:, page]


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("threads", [1, 3])
def test_bits_do_not_depend_on_where_pages_lie(kind, threads):
    """Four sequences that grow in turn have pages in each other's midst, and the logits of one that has them in a row.
    """
    with running("mixed", kv_cache=kind, threads=threads) as engine:
        expected, forward = logits_of(engine, IDS), engine._forward
        found = np.empty_like(expected)
        for first in range(0, len(IDS), 50):
            part = IDS[first:first + 50]
            for slot in (2, 0, 3, 1):
                logits = forward.run(part, range(first, first + 50), [slot] * 50, range(50))
            found[first:first + 50] = logits
        pages = offsets(engine._cache, 1)
        assert max(abs(a - b) for a, b in itertools.pairwise(pages)) > 1
        assert np.array_equal(expected, found)
        for slot in range(4):
            forward.boundary.forget(slot)
            engine._cache.give_back(slot)
        assert not engine._cache._memory.view(np.uint64).any()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_promised_is_there(data):
    """Of any course of claims, growth and ends: no page has two owners, nobody gets more than there is, whoever has a
    claim gets its pages, and a free page is zero."""
    cache, filled, claims = KVCache(shape(), SLOTS, CONTEXT, pages=PAGES), [0] * SLOTS, [0] * SLOTS
    for _ in range(data.draw(st.integers(1, 25))):
        slot, positions = data.draw(st.integers(0, SLOTS - 1)), data.draw(st.integers(1, CONTEXT))
        pages = kvcache.pages_of(positions)
        fits = pages - claims[slot] <= PAGES - sum(claims)
        match data.draw(st.sampled_from(["claim", "cover", "give back"])):
            case "claim" if not fits:
                with pytest.raises(CapacityError, match="pages of keys and values"):
                    cache.claim(slot, positions)
            case "claim":
                cache.claim(slot, positions)
                claims[slot] = max(claims[slot], pages)
            case "cover" if not fits:
                with pytest.raises(CapacityError):
                    cache.cover(slot, 0, positions)
            case "cover":
                cache.cover(slot, 0, positions)
                claims[slot], filled[slot] = max(claims[slot], pages), max(filled[slot], pages)
                content(cache, offsets(cache, slot)[-1])[:] = 7
            case _:
                cache.give_back(slot)
                filled[slot] = claims[slot] = 0
        owned = [offsets(cache, each) for each in range(SLOTS)]
        assert filled == [len(each) for each in owned]
        every = list(itertools.chain(*owned))
        assert len(set(every)) == len(every) == cache.in_use
        assert cache.unclaimed == PAGES - sum(claims)
        assert not any(content(cache, page).any() for page in set(range(PAGES)) - set(every))
    cache.release()


def test_what_is_not_there_is_refused():
    """Slots and positions beyond, and an arena that holds no whole context."""
    cache = KVCache(shape(), SLOTS, CONTEXT)
    assert cache.pages == SLOTS * 6
    for slot, first, count in ((SLOTS, 0, 1), (-1, 0, 1), (0, 0, CONTEXT + 1)):
        with pytest.raises(EngineError, match=r"there are 4 slots of 379"):
            cache.cover(slot, first, count)
    with pytest.raises(EngineError, match="a KV cache of 5 pages; one context takes 6"):
        KVCache(shape(), SLOTS, CONTEXT, pages=5)


def test_an_answer_claims_its_longest_course():
    """Prompt and `max_tokens` are promised when it begins, none is taken before it is needed, and all go back."""
    request = GenerationRequest(IDS[:70], 100, Sampling(seed=1), ignore_end=True)
    with running("tied", slots=2, context=512) as engine:
        cache, batcher = engine._cache, engine.acquire()
        running_one = batcher.add(engine.generation(request))
        assert (16 - 3, 0) == (cache.unclaimed, cache.in_use)
        taken = []
        while not running_one.generation.finished:
            batcher.run()
            taken.append(cache.in_use)
        assert (2, 3) == (taken[0], taken[-1])
        batcher.remove(running_one)
        assert (16, 0) == (cache.unclaimed, cache.in_use)
        engine.release()
