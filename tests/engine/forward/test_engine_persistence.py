"""Pages on a state disk: a new process finds them, with the bits of reading again; nobody else's, none that is torn."""

from __future__ import annotations

import tempfile
from concurrent.futures import Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.engine import PageKind
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.persistence import ShelfPages
from appliance.engine.scheduler import Scheduler
from appliance.kernels.layouts.attention import CACHE_FORMATS, PAGE
from appliance.state import page_format
from tests.engine.forward.test_engine_pages import content, shape
from tests.engine.forward.test_engine_prefixes import IDS, answers, engine_with, ids, request
from tests.support import shelves, waiting

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
        partly = course(engine, shelves.start(disk, page), [requests[1], requests[-1]], tenants=tenants)
        other = course(engine, shelves.start(disk, page), requests[-1:], "two", tenants)
        assert not engine._cache._memory.view("u1").any()
    assert 0 == first[0][0] == other[0][0]
    assert [64, 128, 256, 320, 320] == [cached for cached, _ in hot]
    assert [128, 320] == [cached for cached, _ in partly]  # of the second, two pages are in memory
    assert [logits for _, logits in cold] == [logits for _, logits in hot]
    assert [cold[1][1], cold[-1][1]] == [logits for _, logits in partly]
    assert cold[-1][1] == first[0][1] == other[0][1]


def records(disk, opened, page):
    """Where each record begins on a disk."""
    stride = page_format.content_nbytes(page.halves)
    return [opened.at + place * stride for place in range(page.kept)]


def test_a_torn_page_ends_what_is_restored(tmp_path: Path):
    """The third of five pages is torn: two are restored, the rest is read, and the bits are the same; the page is put
    anew, so that the next process finds all."""
    disk, asked = shelves.blank(tmp_path), [request(IDS[:330])]
    with engine_with(6) as engine:
        engine.acquire()
        cold = answers(engine, asked)
        engine.release()
        opened = shelves.start(disk, engine.page)
        course(engine, opened, asked)
        data = bytearray(disk.read_bytes())
        data[records(disk, opened, engine.page)[2] + 4000] ^= 1
        disk.write_bytes(data)
        torn, whole = (course(engine, shelves.start(disk, engine.page), asked) for _ in range(2))
    assert (128, 320) == (torn[0][0], whole[0][0])
    assert cold[0][1] == torn[0][1] == whole[0][1]


class Stuck:
    """A shelf whose disk answers when it is told to."""

    def __init__(self, shelf):
        self._shelf, self.asked = shelf, []

    def __getattr__(self, name):
        return getattr(self._shelf, name)

    def fetch(self, place):
        """A record that does not come."""
        self.asked.append((place, Future()))
        return self.asked[-1][1]


def test_a_disk_that_hangs_holds_up_nobody_else(tmp_path: Path):
    """One answer waits for pages that do not come; another one goes on beside it; the first is taken out, and nothing
    of it stays. Pages that fail to be read are as good as none."""
    disk, asked = shelves.blank(tmp_path), [request(IDS[:330])]
    with engine_with(6) as engine:
        course(engine, shelves.start(disk, engine.page), asked)
        opened = shelves.start(disk, engine.page)
        stuck, batcher = Stuck(opened.shelf), engine._batcher
        engine.acquire()
        engine.keep_prefixes(("one",), 60.0, stuck)
        one = batcher.add(engine.generation(asked[0]), "one")
        two = batcher.add(engine.generation(request([3, *IDS[1:40]])), "one")
        while not two.generation.finished:
            batcher.run()
        batcher.remove(two)
        assert ([], 0, 0, 2) == (one.generation.tokens, one.position, one.found, len(stuck.asked))
        batcher.remove(one)
        assert all(future.cancelled() for _, future in stuck.asked)
        three = batcher.add(engine.generation(asked[0]), "one")
        batcher.run()
        stuck.asked[-2][1].set_exception(OSError(5, "broken"))
        while not three.generation.finished:
            batcher.run()
        batcher.remove(three)
        assert 0 == three.found
        engine.release()
        assert not engine._cache._memory.view("u1").any()
        opened.close()


def test_a_disk_that_fails_is_done_without(tmp_path: Path):
    """Once the disk has failed nothing is put or found, no key is left, and answers are the same."""
    disk, asked = shelves.blank(tmp_path), [request(IDS[:330])]
    with engine_with(6) as engine:
        [(_, cold)] = course(engine, shelves.start(disk, engine.page), asked)
        opened = shelves.start(disk, engine.page)
        opened.keeper.failed = opened.keys.wipe
        engine.acquire()
        engine.keep_prefixes(("one",), 60.0, opened.shelf)
        opened.keeper.schedule(lambda: (_ for _ in ()).throw(OSError(5, "broken")))
        opened.shelf.flush(30)
        engine._batcher.texts.expire()
        found = answers(engine, asked)
        engine.release()
        opened.kill()
    assert [(0, cold)] == found
    assert {} == opened.keys._live


def test_an_idle_engine_lets_go_of_what_is_too_old(tmp_path: Path):
    """A scheduler with nothing to do destroys keys and forgets texts by itself."""
    disk, clock = shelves.blank(tmp_path), shelves.Clock()
    with engine_with(6) as engine:
        opened = shelves.start(disk, engine.page, clock=clock)
        scheduler = Scheduler(engine, tenants=["one"], prefix_lifetime=0.2, shelf=opened.shelf)
        handle = scheduler.submit(request(IDS[:200], 1), "one", lambda advance: None)
        assert handle.wait(60)
        persisted = engine._batcher.texts._persisted
        waiting.until(lambda: persisted.page_count == 3 and not opened.keeper.waiting, "pages on the disk")
        again = scheduler.submit(request(IDS[:200], 1), "one", lambda advance: None)
        assert again.wait(60)
        assert 192 == again.cached_tokens
        waiting.until(lambda: not persisted._waiting and not opened.keeper.waiting, "a text that no new key will seal")
        clock.sleep(shelves.LIFETIME / 1000)
        opened.keys.tend()
        last = scheduler.submit(request([7, *IDS[1:20]], 1), "one", lambda advance: None)
        assert last.wait(60)
        waiting.until(lambda: persisted.trees.blank and not persisted.page_count, "token ids that are wiped")
        scheduler.close()
        assert {} == opened.keys._live
        opened.close()


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_course(data):
    """Any course of texts of two tenants, restarts, kills and time: what is restored has the content of its text, is
    the tenant's own, and is all of what was flushed where no share was full and no key too old."""
    clock, kind = shelves.Clock(), None
    with tempfile.TemporaryDirectory() as folder:
        disk = shelves.blank(Path(folder))
        cache = KVCache(shape(), 1, 6 * PAGE, pages=6)
        kind = PageKind(cache.halves, "pages", 8, 6)
        flushed = set[tuple[str, str]]()  # tenant, text
        opened = shelves.start(disk, kind, clock=clock)
        persisted = ShelfPages(cache, ("one", "two"), opened.shelf, clock=lambda: clock.running)
        for _ in range(data.draw(st.integers(1, 12))):
            tenant, text = data.draw(st.sampled_from(["one", "two"])), data.draw(st.text("abc", max_size=5))
            act = data.draw(st.sampled_from(["put", "put", "find", "find", "end", "kill", "sleep"]))
            if act == "put" and text:
                cache.cover(0, 0, len(text) * PAGE)
                for page, letter in zip(cache.pages_below(0, len(text) * PAGE), text, strict=True):
                    content(cache, page)[:] = ord(letter)
                persisted.put(tenant, ids(text), cache.pages_below(0, len(text) * PAGE), 30.0)
                opened.shelf.flush(30.0)
                most = persisted.trees.share_of(tenant)
                flushed |= {(tenant, text[:end]) for end in range(1, min(len(text), most) + 1)}
            elif act == "find":
                wanted, count = persisted.find(tenant, ids(text), 0), 0
                while wanted is not None and not wanted.done:
                    wanted.wait(30.0)
                    cache.cover(0, 0, (count + 1) * PAGE)
                    page = cache.pages_below(0, (count + 1) * PAGE)[-1]
                    if persisted.next_page(wanted, lambda page=page: page, lambda: 0):
                        assert int(content(cache, page)[0]) == ord(text[count])
                        count += 1
                assert all((tenant, text[:end + 1]) in flushed for end in range(count))
                own, most = {one for one in flushed if one[0] == tenant}, persisted.trees.share_of(tenant)
                if len(own) <= most and (tenant, text) in flushed and clock.running < 1000 + 3600:
                    assert count == len(text)
            elif act in ("end", "kill"):
                persisted.close(30.0)
                (opened.close if act == "end" else opened.kill)()
                opened = shelves.start(disk, kind, clock=clock)
                persisted = ShelfPages(cache, ("one", "two"), opened.shelf, clock=lambda: clock.running)
            elif act == "sleep":
                clock.sleep(data.draw(st.sampled_from([10.0, 600.0, shelves.LIFETIME / 1000])))
                opened.keys.tend()
            cache.give_back(0)
            assert persisted.page_count == int((persisted.trees._tokens != 0).any(axis=1).sum())
        persisted.close(30.0)
        opened.close()


def test_places_are_divided_anew(tmp_path: Path):
    """The pages of a tenant that goes are no longer found, nor after a restart; one that stays finds as many as its
    share has; one that comes has places."""
    disk, clock = shelves.blank(tmp_path), shelves.Clock()
    cache = KVCache(shape(), 1, 6 * PAGE, pages=6)
    opened = shelves.start(disk, PageKind(cache.halves, "pages", 8, 6), clock=clock)
    persisted = ShelfPages(cache, ("goes", "stays"), opened.shelf, clock=lambda: clock.running)

    def put(tenant: str, text: str) -> int:
        cache.cover(0, 0, len(text) * PAGE)
        for page, letter in zip(cache.pages_below(0, len(text) * PAGE), text, strict=True):
            content(cache, page)[:] = ord(letter)
        persisted.put(tenant, ids(text), cache.pages_below(0, len(text) * PAGE), 30.0)
        opened.shelf.flush(30.0)
        cache.give_back(0)
        return pages(tenant, text)

    def pages(tenant: str, text: str) -> int:
        wanted = persisted.find(tenant, ids(text), 0)
        return 0 if wanted is None else len(wanted.nodes)

    assert [4, 4] == [put("goes", "abcd"), put("stays", "abcd")]
    persisted.divide(("comes", "new", "stays"), {})
    assert (2, 2) == (persisted.trees.share_of("comes"), persisted.page_count)
    assert [0, 2, 2] == [pages("goes", "abcd"), pages("stays", "abcd"), put("comes", "cba")]
    persisted.divide((), {})
    assert (0, True) == (persisted.page_count, persisted.trees.blank)
    persisted.close(30.0)
    opened.close()
