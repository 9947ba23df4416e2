"""Pages of keys and values: promised, taken, and given back; wherever they lie, the bits are the same."""

from __future__ import annotations

import contextlib
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
from appliance.errors import CapacityError, EngineError
from appliance.kernels.layouts.attention import CACHE_FORMATS, PAGE
from tests.support import synthetic
from tests.support.engines import running
from tests.support.logits import logits_of

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 399).tolist()]
SLOTS, PAGES, CONTEXT = 4, 12, 6 * PAGE - 5


@functools.cache
def shape():
    """A small architecture."""
    with running("mixed", slots=1, context=64) as engine:
        return engine.architecture


def offsets(cache, slot):
    """The pages of a slot, by its row."""
    row = cache.rows.view("i8").reshape(cache.slots, -1)[slot]
    return [int(offset) // cache.page_stride for offset in row if offset != NOWHERE]


def content(cache, page):
    """The bytes of a page's keys and of its values."""
    return cache._memory.view("u1").reshape(cache.pages, cache.page_stride)[page]


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


class Forks:
    """Slots that grow, fork, begin with held pages and end, beside what each position must hold."""

    def __init__(self):
        self.cache = KVCache(shape(), SLOTS, CONTEXT, pages=PAGES)
        self.cache.set_aside(3)
        self.texts: list[list[int]] = [[] for _ in range(SLOTS)]  # the mark of each page of a slot
        self.held: dict[int, int] = {}  # by page, its mark
        self.marks = itertools.count(1)

    def grow(self, slot, pages):
        """Write so many pages more; what a slot shares stays as it is."""
        first = len(self.texts[slot])
        if first + pages > 6:
            return
        try:
            self.cache.cover(slot, first * PAGE, min(pages * PAGE, CONTEXT - first * PAGE))
        except CapacityError:
            return
        for page in offsets(self.cache, slot)[first:]:
            self.texts[slot].append(next(self.marks) % 251 + 1)
            content(self.cache, page)[:] = self.texts[slot][-1]

    def fork(self, parent, child, more):
        """Begin a slot with whole pages of another, and a part of the next one."""
        whole = max(len(self.texts[parent]) - more, 0)
        if parent == child or self.texts[child] or not whole:
            return
        positions = whole * PAGE - (whole * PAGE > CONTEXT) * 5 - 30 * (more % 2)
        try:
            self.cache.fork(parent, child, positions)
        except CapacityError:
            return
        self.texts[child] = self.texts[parent][:whole]
        for shared, other in zip(offsets(self.cache, parent)[:whole], offsets(self.cache, child), strict=True):
            assert (shared == other) == (positions % PAGE == 0 or shared != offsets(self.cache, parent)[whole - 1])

    def hold(self, slot):
        """Keep up to three whole pages."""
        for page, mark in zip(self.cache.pages_below(slot, min(3, len(self.texts[slot])) * PAGE), self.texts[slot],
                              strict=False):
            if page not in self.held and len(self.held) < 3:
                self.cache.hold(page)
                self.held[page] = mark

    def begin(self, slot):
        """Begin a slot with what is held."""
        if self.texts[slot]:
            return
        with contextlib.suppress(CapacityError):
            self.cache.begin(slot, list(self.held))
            self.texts[slot] = list(self.held.values())

    def let_go(self):
        """Keep one page less."""
        if self.held:
            page = next(iter(self.held))
            del self.held[page]
            self.cache.let_go(page)

    def end(self, slot):
        """Give all back."""
        self.cache.give_back(slot)
        self.texts[slot] = []

    def check(self):
        """Every page has its content, free ones are zero, and no claim is without its page."""
        used = set(self.held)
        for slot, marks in enumerate(self.texts):
            pages = offsets(self.cache, slot)
            assert marks == [int(content(self.cache, page)[0]) for page in pages]
            used |= set(pages)
        assert all(int(content(self.cache, page)[-1]) == mark for page, mark in self.held.items())
        assert len(used) == self.cache.in_use
        assert not any(content(self.cache, page).any() for page in set(range(PAGES)) - used)
        assert 0 <= self.cache.unclaimed <= PAGES - 3
        assert self.cache.unclaimed <= PAGES - len(used)


def test_forks_of_held_pages():
    """A page that one slot wrote, another began with, and each forked: they end in any order."""
    for order in itertools.permutations(range(4)):
        forks = Forks()
        forks.grow(0, 2)
        forks.hold(0)
        forks.begin(1)
        forks.fork(1, 2, 0)
        forks.fork(0, 3, 0)
        assert 4 == sum(map(bool, forks.texts))
        for slot in order:
            forks.end(slot)
            forks.check()
        while forks.held:
            forks.let_go()
        assert (PAGES - 3, 0) == (forks.cache.unclaimed, forks.cache.in_use)


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_forks_and_held_pages(data):
    """Of any course of growth, forks, held pages and ends: each slot reads what it or its parent wrote, and at the end
    all is free, zero, and promised to nobody."""
    forks, slots = Forks(), st.integers(0, SLOTS - 1)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["grow", "grow", "fork", "fork", "hold", "begin", "let go", "end"])):
            case "grow":
                forks.grow(data.draw(slots), data.draw(st.integers(1, 3)))
            case "fork":
                forks.fork(data.draw(slots), data.draw(slots), data.draw(st.integers(0, 3)))
            case "hold":
                forks.hold(data.draw(slots))
            case "begin":
                forks.begin(data.draw(slots))
            case "let go":
                forks.let_go()
            case _:
                forks.end(data.draw(slots))
        forks.check()
    for slot in range(SLOTS):
        forks.end(slot)
    while forks.held:
        forks.let_go()
    assert (PAGES - 3, 0) == (forks.cache.unclaimed, forks.cache.in_use)
    assert not forks.cache._memory.view("u1").any()


@pytest.mark.parametrize("kind", CACHE_FORMATS)
def test_a_fork_goes_on_with_the_bits_of_its_parent(kind):
    """Parent and child read on, each its own text, and both have the logits of their text alone."""
    other = [*IDS[:150], *IDS[200:260]]
    with running("mixed", kv_cache=kind, threads=2) as engine:
        expected = [logits_of(engine, ids)[150:] for ids in (IDS[:210], other)]
        forward, cache = engine._forward, engine._cache
        forward.run(IDS[:160], range(160), [0] * 160, [])
        cache.fork(0, 1, 150)
        forward.boundary.inherit(1, 150)
        assert offsets(cache, 0)[:2] == offsets(cache, 1)[:2]
        assert 4 == cache.in_use
        forward.boundary.forget(0, 150)
        found = forward.run([*IDS[150:180], *other[150:180]], [*range(150, 180)] * 2, [0] * 30 + [1] * 30, range(60))
        assert np.array_equal(np.concatenate([each[:30] for each in expected]), found)
        cache.give_back(0)
        forward.boundary.forget(0)
        assert np.array_equal(expected[1][30:], forward.run(other[180:], range(180, 210), [1] * 30, range(30)))
        cache.hold(offsets(cache, 1)[0])
        forward.boundary.forget(1, 10)
        with pytest.raises(EngineError, match="slot 1 is in a page that others read"):
            forward.run([5], [10], [1], [0])
