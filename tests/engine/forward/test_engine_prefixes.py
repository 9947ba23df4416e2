"""Pages of earlier texts: what is found, whose it is, when it goes; and the bits are those of reading again."""

from __future__ import annotations

import contextlib
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.kvcache import KVCache, page_nbytes
from appliance.engine.forward.prefixes import Prefixes
from appliance.engine.scheduler import Scheduler
from appliance.kernels.layouts.attention import CACHE_FORMATS, PAGE
from tests.engine.forward.test_engine_pages import content, shape
from tests.support import synthetic, waiting
from tests.support.engines import kernels, opened, synthetic_model
from tests.support.streams import stored

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 399).tolist()]


class Model:
    """The same in plain Python: texts by their tokens, each with the time of its last use."""

    def __init__(self, share, lifetime):
        self.share, self.lifetime, self.kept = share, lifetime, {}

    def expire(self, now):
        """Drop what is too old."""
        self.kept = {text: used for text, used in self.kept.items() if used + self.lifetime > now}

    def find(self, text, now):
        """Pages of the longest beginning."""
        self.expire(now)
        count = 0
        while text[:count + 1] in self.kept and count < len(text):
            count += 1
        self.use(text[:count], now)
        return count

    def use(self, text, now):
        """Beginnings first used are last to go: one is older than what it is the beginning of."""
        for end in range(len(text), 0, -1):
            self.kept.pop(text[:end])
            self.kept[text[:end]] = now

    def keep(self, text, now):
        """Keep a text's beginnings, as many as there is room for."""
        self.expire(now)
        text = text[:self.share]
        for end in range(1, len(text) + 1):
            if text[:end] not in self.kept and len(self.kept) == self.share:
                self.kept.pop(next(each for each in self.kept if each != text[:len(each)]))
            self.kept.pop(text[:end], None)
            self.kept[text[:end]] = now
        self.use(text, now)


def ids(text):
    """Token ids of a text of pages, each a letter."""
    return [ord(letter) + index for letter in text for index in range(PAGE)]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_the_pages_of_each_tenant(data):
    """Of any course of texts, two tenants and time: what is found is what a plain model keeps; it has the content of
    its text; nothing is kept beyond a share or a lifetime, and everything is wiped that is not."""
    clock = [100.0]
    cache = KVCache(shape(), 2, 6 * PAGE, pages=12 + 8)
    prefixes = Prefixes(cache, ["one", "two"], 9, 10.0, lambda: clock[0])
    models, texts = {name: Model(4, 10.0) for name in ("one", "two")}, st.text("abc", max_size=5)
    assert (12, 4) == (cache.unclaimed, prefixes.trees.share_of("one"))
    for _ in range(data.draw(st.integers(1, 25))):
        tenant, text = data.draw(st.sampled_from(["one", "two", "nobody"])), data.draw(texts)
        clock[0] += data.draw(st.sampled_from([0.0, 0.5, 3.0, 11.0]))
        found = prefixes.find(tenant, ids(text))
        assert (models[tenant].find(text, clock[0]) if tenant in models else 0) == len(found)
        assert [ord(letter) for letter in text[:len(found)]] == [int(content(cache, page)[0]) for page in found]
        cache.begin(0, found)
        if text:
            cache.cover(0, len(found) * PAGE, (len(text) - len(found)) * PAGE)
        for page, letter in list(zip(cache.pages_below(0, len(text) * PAGE), text, strict=True))[len(found):]:
            content(cache, page)[:] = ord(letter)
        prefixes.keep(tenant, ids(text), cache.pages_below(0, len(text) * PAGE), 0)
        if tenant in models:
            models[tenant].keep(text, clock[0])
        cache.give_back(0)
        for model in models.values():
            model.expire(clock[0])
        assert prefixes.page_count == sum(len(model.kept) for model in models.values()) == cache.in_use
        assert 12 == cache.unclaimed
        assert prefixes.page_count == int((prefixes.trees._tokens != 0).any(axis=1).sum())
        due = prefixes.next_expiry
        used = [used for model in models.values() for used in model.kept.values()]
        assert (due is None) == (not used) or due == 0.0
    clock[0] += 10.0
    prefixes.expire()
    assert (0, None) == (prefixes.page_count, prefixes.next_expiry)
    assert not cache._memory.view("u1").any()
    assert prefixes.trees.blank
    prefixes.close()
    assert 20 == cache.unclaimed


def answers(engine, requests, tenant="one"):
    """How many tokens of each prompt were found, and all logits of its answer."""
    found = []
    for each in requests:
        batcher, logits = engine._batcher, []
        one = batcher.add(engine.generation(each), tenant)
        advance = one.generation.advance

        def seen(row, beside=None, *, advance=advance, logits=logits):
            logits.append(row.tobytes())
            return advance(row, beside)
        one.generation.advance = seen
        while not one.generation.finished:
            batcher.run()
        batcher.remove(one)
        found.append((one.cached, logits))
    return found


def request(prompt, tokens=12):
    """A request for so many tokens."""
    return GenerationRequest(prompt, tokens, Sampling(seed=1, temperature=0.8), ignore_end=True)


@contextlib.contextmanager
def engine_with(pages, kind="f16", streamed=False, **options):
    """An engine with room for so many pages of prefixes."""
    options = EngineOptions(threads=2, slots=2, context_length=400, kv_cache=kind,
                            prefix_nbytes=pages * page_nbytes(shape(), kind), **options)
    with tempfile.TemporaryDirectory() as folder:
        if streamed:
            _, opener = stored("compiled sealed", Path(folder), synthetic_model("mixed"), 4096)
            source = contextlib.closing(opener())
        else:
            source = opened(synthetic_model("mixed"))
        with source as found, Engine.open(found, options, kernels=kernels()) as engine:
            yield engine


@pytest.mark.parametrize(("kind", "streamed"), [*((kind, False) for kind in CACHE_FORMATS), ("q8", True)])
def test_bits_hot_cold_and_half_evicted(kind, streamed):
    """Answers have the logits of reading again: with all of their prompt kept, or half of it, in each format, and with
    weights that are streamed. Another tenant finds nothing, and gets the same."""
    requests = [request(IDS[:length]) for length in (65, 130, 320, 321, 330)]
    with engine_with(6, kind, streamed) as engine:
        engine.acquire()
        cold = answers(engine, requests)
        engine.keep_prefixes(["one"], 60.0)
        first, hot = answers(engine, requests), answers(engine, requests[::-1])[::-1]
        answers(engine, [request([2, *IDS[1:200]])])  # three pages of another text
        half, other = answers(engine, requests[-1:]), answers(engine, requests, "two")
        engine.release()
        assert not engine._cache._memory.view("u1").any()
    assert [0, 64, 128, 320, 320] == [cached for cached, _ in first]
    assert [64, 128, 256, 320, 320] == [cached for cached, _ in hot]
    assert [0] * 5 == [cached for cached, _ in other]
    assert 0 < half[0][0] < 320
    for found in (first, hot, other):
        assert [logits for _, logits in cold] == [logits for _, logits in found]
    assert cold[-1][1] == half[0][1]


def test_the_second_turn_of_a_chat():
    """What was answered is kept with its prompt: the next turn finds both."""
    with engine_with(6) as engine:
        engine.acquire()
        engine.keep_prefixes(["one"], 60.0)
        one = engine._batcher.add(engine.generation(request(IDS[:100], 60)), "one")
        while not one.generation.finished:
            engine._batcher.run()
        engine._batcher.remove(one)
        text = [*IDS[:100], *one.generation.tokens, 7, 8]
        [(cached, hot)] = answers(engine, [request(text)])
        engine.release()
        engine.acquire()
        [(none, cold)] = answers(engine, [request(text)])
        engine.release()
    assert (128, 0) == (cached, none)
    assert cold == hot


def test_pages_expire_while_nobody_asks():
    """An idle scheduler wipes what is too old by itself; its tenants' answers say what was found before that."""
    with engine_with(6) as engine:
        scheduler = Scheduler(engine, tenants=["one", "two"], prefix_lifetime=0.5)
        try:
            handles = []
            for tenant in ("one", "one", "two"):
                handles.append(scheduler.submit(request(IDS[:200], 1), tenant, lambda advance: None))
                assert handles[-1].wait(60)
            assert [0, 192, 0] == [handle.cached_tokens for handle in handles]
            for _ in range(200):
                if not engine._cache.in_use:
                    break
                time.sleep(0.05)
            assert not engine._cache._memory.view("u1").any()
        finally:
            scheduler.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_room_is_divided_anew(data):
    """Of any course of texts, and of tenants that come and go and have other weights: whoever stays finds the
    beginnings that its new share has, by its part of all weights; nobody finds a text of before it went, nothing else
    is kept or in the memory, and no page is lost."""
    names, clock = ["one", "two", "six"], [100.0]
    cache = KVCache(shape(), 2, 6 * PAGE, pages=12 + 8)
    prefixes, tenants = Prefixes(cache, names[:2], 9, 1e6, lambda: clock[0]), names[:2]
    kept = {name: Model(4, 1e6) for name in tenants}
    for _ in range(data.draw(st.integers(1, 25))):
        clock[0] += 1.0
        if data.draw(st.integers(0, 3)) == 0:
            tenants = data.draw(st.lists(st.sampled_from(names), unique=True))
            weights = {name: data.draw(st.integers(1, 4)) for name in names[:2]}  # the third one has none: 1
            prefixes.divide(tenants, weights)
            whole = sum(weights.get(name, 1) for name in tenants)
            kept = {name: kept.get(name, Model(0, 1e6)) for name in tenants}
            for name, model in kept.items():
                model.share = 9 * weights.get(name, 1) // whole
                while len(model.kept) > model.share:
                    model.kept.pop(next(iter(model.kept)))
        else:
            tenant, text = data.draw(st.sampled_from(names)), data.draw(st.text("abc", max_size=5))
            found = prefixes.find(tenant, ids(text))
            assert (kept[tenant].find(text, clock[0]) if tenant in kept else 0) == len(found)
            assert [ord(letter) for letter in text[:len(found)]] == [int(content(cache, page)[0]) for page in found]
            cache.begin(0, found)
            if text:
                cache.cover(0, len(found) * PAGE, (len(text) - len(found)) * PAGE)
            pages = cache.pages_below(0, len(text) * PAGE)
            for page, letter in list(zip(pages, text, strict=True))[len(found):]:
                content(cache, page)[:] = ord(letter)
            prefixes.keep(tenant, ids(text), pages, 0)
            if tenant in kept:
                kept[tenant].keep(text, clock[0])
            cache.give_back(0)
        assert prefixes.page_count == sum(len(model.kept) for model in kept.values()) == cache.in_use
        assert prefixes.page_count == int((prefixes.trees._tokens != 0).any(axis=1).sum())
    prefixes.close()
    assert 20 == cache.unclaimed
    assert not cache._memory.view("u1").any()


def test_an_idle_scheduler_wipes_the_texts_of_a_tenant_that_goes():
    """At once, and not those of one that stays; one that comes finds its own from then on."""
    with engine_with(9) as engine:
        scheduler = Scheduler(engine, tenants=["goes", "stays"], prefix_lifetime=3600.0)
        try:
            def asked(tenant):
                handle = scheduler.submit(request(IDS[:200], 1), tenant, lambda advance: None)
                assert handle.wait(60)
                return handle.cached_tokens
            assert [0, 0, 192] == [asked(tenant) for tenant in ("goes", "stays", "stays")]
            scheduler.serve(["comes", "stays"], {"stays": 2})
            waiting.until(lambda: engine._cache.in_use == 3, "pages of one tenant")
            assert [192, 0, 192, 0, 0] == [asked(tenant) for tenant in ("stays", "comes", "comes", "goes", "goes")]
            scheduler.serve([], {})
            waiting.until(lambda: not engine._cache._memory.view("u1").any(), "memory that is wiped")
        finally:
            scheduler.close()
