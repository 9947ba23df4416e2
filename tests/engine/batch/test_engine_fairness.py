"""How requests share an engine, counted in passes: no clock decides here."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import threading
from dataclasses import dataclass, field

import pytest

from appliance.engine.batch.pass_time import FIRST_ROWS, LONG_ROWS, MANY_PART, MOST_PASSES, OWN_PASSES, PassTime
from appliance.engine.batch.prompt_share import SHORT_ROWS, PromptShare, level
from appliance.engine.batch.speculate import pass_cost
from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.scheduler import Scheduler
from tests.support.engines import running

PROMISED = 5  # passes from the request to the first token of a short prompt
SHORT, LONG = tuple(range(1, 11)), (1, *(10 + index % 200 for index in range(480)))


@dataclass
class Reading:
    """A prompt that is read as its shares say."""

    tenant: str
    length: int
    position: int = 0
    cached: int = 0
    passes: list[int] = field(default_factory=list)

    @property
    def todo(self):
        """Its tokens that are to be read."""
        return range(self.length - self.position)


def read(prompts, room, long_room=None, *, share=None, passes=1):
    """Let prompts be read for some passes."""
    share = share or PromptShare()
    for _ in range(passes):
        left = [each for each in prompts if each.todo]
        given = share.rows(left, room, long_room)
        assert sum(given) <= max(room, 0)
        for each, rows in zip(left, given, strict=True):
            assert 0 <= rows <= len(each.todo)
            each.position += rows
            each.passes.append(rows)
    return share


@contextlib.contextmanager
def held(*, slots=8, rows=64, tenants=None, first="first", context=512, weights=None):
    """A scheduler whose engine waits, so that all that is submitted now is there before the next pass."""
    with running("tied", slots=slots, threads=1, context=context, rows=rows) as engine:
        scheduler = Scheduler(engine, tenants=tenants, weights=weights)
        arrived, opened = threading.Event(), threading.Event()

        def gate(advance):
            arrived.set()
            assert opened.wait(60)
        try:
            scheduler.submit(request((1,), 1), first, gate)
            assert arrived.wait(60)
            yield scheduler, opened.set
        finally:
            opened.set()
            scheduler.close()


def request(prompt, tokens):
    """A request that goes on to its last token."""
    return GenerationRequest(prompt, tokens, Sampling(seed=1), ignore_end=True)


class Passes:
    """Notes at which pass each token came."""

    def __init__(self, scheduler, prompt, tokens, tenant):
        self.at: list[int] = []
        self.start = scheduler.passes
        self.handle = scheduler.submit(request(prompt, tokens), tenant,
                                       lambda advance: self.at.append(scheduler.passes))

    @property
    def first(self):
        """Passes to the first token, the one in which it was chosen included."""
        return self.at[0] - self.start


@pytest.mark.parametrize("tenant", ["busy", "other"])
@pytest.mark.parametrize("rows", [32, 64, 512])
def test_a_short_prompt_is_answered_within_five_passes(rows, tenant):
    """Behind ten long prompts of a tenant, a short one of the same or another tenant has its first token in time."""
    with held(slots=16, rows=rows) as (scheduler, go):
        busy = [Passes(scheduler, LONG, 1, "busy") for _ in range(10)]
        short = Passes(scheduler, SHORT, 4, tenant)
        go()
        assert short.handle.wait(120)
        assert not any(each.at for each in busy)
        for each in busy:
            each.handle.cancel()
    assert short.first <= PROMISED


def test_short_prompts_beside_ten_long_ones_in_flight():
    """Of fifty short prompts beside ten long ones that are replaced as they end, the worst has its first token within
    five passes, and then a token in each pass."""
    short, ends = [], threading.Event()
    with held(slots=16) as (scheduler, go):
        def long(advance=None):
            if (advance is None or advance.finish_reason == "length") and not ends.is_set():
                busy.append(scheduler.submit(request(LONG, 3), "busy", long))

        def next_one(advance=None):
            if advance is not None:
                short[-1][1].append(scheduler.passes)
            if advance is None or advance.finish_reason is not None:
                if len(short) == 50:
                    ends.set()
                    return
                short.append((scheduler.passes, []))
                scheduler.submit(request(SHORT, 6), "other", next_one)
        busy = []
        for _ in range(10):
            long()
        next_one()
        go()
        assert ends.wait(120)
        for each in busy:
            each.cancel()
    assert max(at[0] - asked for asked, at in short) <= PROMISED
    gaps = [late - soon for _, at in short for soon, late in itertools.pairwise(at)]
    assert set(gaps) <= {0, 1}  # 0: guessed right


@pytest.mark.parametrize("slots", [3, 4])
def test_a_short_prompt_finds_a_slot(slots):
    """Where long prompts of a tenant could take all slots that it may have, one stays for its own short prompt, and one
    for another tenant's."""
    with held(slots=slots) as (scheduler, go):
        busy = [Passes(scheduler, LONG, 1, "busy") for _ in range(10)]
        short = [Passes(scheduler, SHORT, 1, tenant) for tenant in ("busy", "other")]
        go()
        assert all(each.handle.wait(120) for each in short)
        for each in busy:
            each.handle.cancel()
    assert max(each.first for each in short) <= PROMISED


def test_long_prompts_wait_for_a_slot_while_others_are_read():
    """Of ten long prompts of a tenant four are read at the same time, and all are answered, the first ones first."""
    with held(slots=16) as (scheduler, go):
        order, most = [], []

        def note(advance, number):
            order.append(number)
            most.append(scheduler.load.running)
        handles = [scheduler.submit(request(LONG, 1), "busy", functools.partial(note, number=number))
                   for number in range(10)]
        go()
        assert all(handle.wait(120) for handle in handles)
    assert list(range(10)) == sorted(order)
    assert 0 == order[0]
    assert max(most) <= 5  # a fifth comes once four no longer fill a pass


def test_answers_go_on_beside_long_prompts():
    """Who has a first token has one more in every pass, while ten long prompts of another tenant are read."""
    with held(slots=16) as (scheduler, go):
        answer = Passes(scheduler, SHORT, 20, "other")
        busy = [Passes(scheduler, LONG, 1, "busy") for _ in range(10)]
        go()
        assert answer.handle.wait(120)
        for each in busy:
            each.handle.cancel()
    assert [1] * 19 == [later - sooner for sooner, later in itertools.pairwise(answer.at)]


@pytest.mark.parametrize(("slots", "tenants", "most"), [
    (4, None, 3), (4, {"a", "b"}, 3), (4, {"a"}, 4), (2, {"a", "b"}, 1), (1, {"a", "b"}, 1)])
def test_a_slot_stays_for_tenants_who_hold_none(slots, tenants, most):
    """One tenant's many answers take all slots but one, where there are others who may ask; another tenant's request
    starts at once."""
    with held(slots=slots, tenants=tenants, first="a") as (scheduler, go):
        many = [Passes(scheduler, (1, 2), 60, "a") for _ in range(8)]
        seen = []
        watch = scheduler.submit(request((1, 2), 1), "a", lambda advance: None)
        watch.cancel()
        def advance(made):
            """What comes in a pass is there before the next one."""
            if not asked:
                seen.append(scheduler.load.running)
            if len(seen) == 30 and not asked:
                asked.append(Passes(scheduler, (1, 2), 1, "b"))

        asked = []
        many[0].handle._on_advance = advance
        go()
        assert many[0].handle.wait(120)
        [other] = asked
        assert other.handle.wait(120)
        assert all(each.handle.wait(120) for each in many)
    assert most == max(seen)
    if slots > 1 and most < slots:
        assert other.first <= 2
    assert all(60 == len(each.at) for each in many[1:])


def several(count, tokens, prompt=(1, 2)):
    """The answers of one request."""
    return [GenerationRequest(prompt, tokens, Sampling(seed=number), ignore_end=True, choice=number)
            for number in range(count)]


@pytest.mark.parametrize("shape", ["answers", "prompts"])
def test_one_request_leaves_the_slots_that_are_kept(shape):
    """The answers of one request, or to many prompts, leave as many slots as are kept for others: a quarter, where
    there are as many tenants. Each of them begins at once."""
    with held(slots=16, tenants=set("abcde"), first="a") as (scheduler, go):
        others, most = [], []

        def note(advance):
            most.append(scheduler.load.running)
            if len(most) == 40:
                others.extend(Passes(scheduler, SHORT, 1, tenant) for tenant in "bcde")
        requests = several(32, 40)
        handles = ([scheduler.submit(requests[0], "a", note, more=requests[1:])] if shape == "answers" else
                   [scheduler.submit(each, "a", note) for each in requests])
        go()
        assert all(each.wait(120) for each in handles)
        assert all(each.handle.wait(120) for each in others)
    assert 12 == max(most[:40])
    assert [True] * 4 == [each.first <= 2 for each in others]


def test_a_search_that_waits_leaves_slots_to_others():
    """While one waits for six of eight slots, other tenants' short answers begin, and it gets its slots."""
    with held(slots=8, tenants=set("abc"), first="a") as (scheduler, go):
        came, searches, short, begun = [], [], [], threading.Event()

        def search(advance):
            came.append("search")

        def again(advance):
            came.append("short")
            if len(short) < 300 and "search" not in came:
                short.append(scheduler.submit(request(SHORT, 1), "c", again))

        def watch(advance):
            if scheduler.load.running == 4 and not searches:
                searches.append(scheduler.submit(GenerationRequest((1, 2), 3, beam=Beam(6)), "b", search))
                short.append(scheduler.submit(request(SHORT, 1), "c", again))
                begun.set()
        long = [scheduler.submit(request((1, 2), 60), "a", watch) for _ in range(4)]
        go()
        assert begun.wait(120)
        assert all(each.wait(120) for each in (*searches, *long))
        assert all(each.wait(120) for each in list(short))
    assert 20 < came.index("search") < 300  # passes of the long answers, in each of which a short one ends


def test_one_slot_is_taken_in_turns():
    """With one slot, a tenant waits for one answer of another, however many that one asked for."""
    with held(slots=1) as (scheduler, go):
        many = [Passes(scheduler, (1, 2), 5, "a") for _ in range(6)]
        other = Passes(scheduler, (1, 2), 1, "b")
        go()
        assert all(each.handle.wait(120) for each in (*many, other))
    assert 1 == sum(each.at[0] < other.at[0] for each in many)


def test_tenants_share_rows_equally():
    """One long prompt of one tenant gets as many rows as five of another; what one cannot use, the other gets."""
    alone, many = Reading("a", 3000), [Reading("b", 3000) for _ in range(5)]
    read([*many, alone], 100, passes=10)
    assert (500, 500) == (alone.position, sum(each.position for each in many))
    brief, rest = Reading("a", 70), Reading("b", 3000)
    read([rest, brief], 100, passes=3)
    assert (70, 230) == (brief.position, rest.position)


def test_tenants_share_rows_by_weight():
    """A tenant of weight 3 gets three rows for each one of another, also of short prompts, and what it does not want
    goes to others; one that comes later is not owed what was before."""
    heavy, light = Reading("a", 9000), Reading("b", 9000)
    share = PromptShare({"a": 3})
    read([light, heavy], 100, share=share, passes=20)
    assert (1500, 500) == (heavy.position, light.position)
    late = Reading("c", 9000)
    read([light, heavy, late], 100, share=share, passes=10)
    assert (2100, 700, 200) == (heavy.position, light.position, late.position)
    brief = [Reading(tenant, 40) for tenant in "aabb" for _ in range(2)]
    read(brief, 64, share=PromptShare({"a": 3}))
    assert 2 < sum(each.position for each in brief[:4]) / sum(each.position for each in brief[4:]) <= 3.2


def test_turns_by_weight():
    """With one slot, a tenant of weight 3 has three answers for each one of another."""
    with held(slots=1, weights={"a": 3}) as (scheduler, go):
        order, handles = [], []
        for tenant in ("a", "b"):
            for _ in range(6):
                handles.append(scheduler.submit(
                    request((1, 2), 1), tenant, lambda advance, who=tenant: order.append(who)))
        go()
        assert all(each.wait(120) for each in handles)
    assert "aaabaaabbbbb" == "".join(order)


def test_gaps_grow_by_the_share_of_others():
    """An answer has its tokens in as many of the passes that it takes alone as its tenant's share of the time is
    small; a machine that is slower meanwhile leaves prompts less."""
    share = PromptShare({"gold": 3})
    assert OWN_PASSES == share.passes(["a"], ["a"]) == share.passes([], ["a", "b"])
    assert 2 == share.passes(["a"], ["a", "b"]) == share.passes(["a", "b"], ["a"])
    assert 3 == share.passes(["a"], ["b", "c"])
    assert MOST_PASSES == share.passes(["a"], list("abcdef"))
    assert pytest.approx(4 / 3) == share.passes(["gold"], ["a"]) == share.passes(["gold", "a"], ["a"])
    assert MOST_PASSES == share.passes(["a"], ["gold"])
    times = PassTime(False)
    times.record(1, 0, 0.010)
    times.record(1, 10, 0.020)
    assert [3, 10, 20, 30] == [pytest.approx(times.long_rows(1, passes), abs=1) for passes in (4 / 3, 2, 3, 4)]
    assert [16, 25, 49, 74] == [pytest.approx(times.gap_rows(1, passes), abs=1) for passes in (4 / 3, 2, 3, 4)]
    for _ in range(10):
        times.record(1, 0, 0.015)
    assert [7, 29] == [pytest.approx(times.long_rows(1, passes), abs=2) for passes in (2, 4)]


def test_prompts_go_on_beside_many_answers():
    """They have a part of the answers' time at least; only who is to keep more than half is spared some of it."""
    times = PassTime(False)
    times.record(1, 0, 0.010)
    times.record(1, 10, 0.020)
    assert int(MANY_PART * 10 * pass_cost(40)) == times.long_rows(40, 2) == times.long_rows(40, 4)
    assert int(MANY_PART * 10 * pass_cost(40) / 3) == pytest.approx(times.long_rows(40, 4 / 3), abs=1)


def test_a_short_prompt_is_soon_read():
    """However dear its rows are."""
    times = PassTime(False)
    assert FIRST_ROWS == times.gap_rows(4)
    times.record(4, 0, 0.010 * pass_cost(4))
    for cost, rows in ((0.0001, 500), (0.001, 50), (0.01, 16)):
        times._row = cost
        assert rows == pytest.approx(times.gap_rows(1), abs=1)


def test_who_comes_later_is_not_owed_what_others_had():
    """A tenant who comes after others have read for long shares with them from there on."""
    early, late = Reading("a", 9000), Reading("b", 9000)
    share = read([early], 100, passes=20)
    read([early, late], 100, share=share, passes=10)
    assert (2500, 500) == (early.position, late.position)


def test_prompts_of_a_tenant_go_on_and_the_oldest_is_done_first():
    """Of equal prompts of one tenant each is read on; the first is done in about twice its own time."""
    prompts = [Reading("a", 1000) for _ in range(4)]
    read(prompts, 100, passes=10)
    assert all(each.position > 0 for each in prompts)
    read(prompts, 100, passes=11)
    assert 0 == len(prompts[0].todo)


def test_short_prompts_do_not_stop_long_ones():
    """A flood of short prompts leaves a long one of another tenant 36 rows of 100, of the same two thirds of that: of
    fewer rows an eighth."""
    for tenant, part in (("a", 24), ("b", 36)):
        long, share = Reading("a", 100_000), PromptShare()
        for _ in range(50):
            read([long, *(Reading(tenant, 10) for _ in range(20))], 100, share=share)
        assert part * 50 == pytest.approx(long.position, abs=100)


def test_a_long_prompt_has_two_thirds_of_the_rows_beside_chats():
    """Of a tenant's rows: chats have the rest, in equal parts."""
    long, chats = Reading("a", 5000), [Reading("a", 200) for _ in range(4)]
    read([*chats, long], 24, passes=30)
    assert 480 == pytest.approx(long.position, abs=12)
    assert 60 == pytest.approx(min(each.position for each in chats), abs=3)
    assert 60 == pytest.approx(max(each.position for each in chats), abs=3)


@pytest.mark.parametrize("length", [110, 200, 256])
def test_chats_that_begin_together_are_answered_together(length):
    """Of sixteen prompts of a tenant, none of them long, the last is read within 1.3 times the time of the median."""
    chats = [Reading("a", length) for _ in range(16)]
    read(chats, 20, passes=16 * length // 20 + 2)
    assert not any(each.todo for each in chats)
    ends = sorted(len(each.passes) for each in chats)
    assert ends[-1] <= 1.3 * ends[8]


def test_chats_wait_for_no_long_prompt():
    """While long prompts of a tenant fill the passes, its chats begin all the same."""
    with held(slots=16) as (scheduler, go):
        busy = [Passes(scheduler, LONG, 1, "busy") for _ in range(10)]
        chats = [Passes(scheduler, LONG[:100], 1, "busy") for _ in range(4)]
        go()
        assert all(each.handle.wait(120) for each in (*busy, *chats))
    assert max(each.first for each in chats) < sorted(each.first for each in busy)[5]


def test_an_odd_row_goes_round():
    """Where a pass has a single row, every tenant and every prompt of each is read on."""
    prompts = [Reading(tenant, 100) for tenant in "aabbc" for _ in range(2)]
    read(prompts, 1, passes=60)
    assert all(each.position for each in prompts)


@pytest.mark.parametrize("seed", range(20))
def test_no_row_is_left_over(seed):
    """Whatever prompts there are, a pass has as many rows as it may, and none that nobody wants."""
    numbers = random.Random(seed)
    share = PromptShare()
    for _ in range(50):
        prompts = [Reading(numbers.choice("abcd"), length, numbers.randrange(length))
                   for length in (numbers.choice([1, 9, 64, 65, 300, 3000]) for _ in range(numbers.randrange(1, 12)))]
        room = numbers.choice([0, 1, 2, 31, 32, 100, 512])
        given = share.rows(prompts, room)
        assert min(room, sum(len(each.todo) for each in prompts)) == sum(given)
        assert all(0 <= rows <= len(each.todo) for rows, each in zip(given, prompts, strict=True))


@pytest.mark.parametrize("seed", range(40))
def test_no_prompt_gets_more_rows_than_it_has(seed):
    """Prompts of all lengths, at any place of theirs and to their ends: `read` bounds each one's rows by what is left
    of it. A row too many would put an answer's position beyond its prompt, from where it never goes on."""
    draw = random.Random(f"ends-{seed}")
    share = PromptShare({"a": draw.randint(1, 4)})
    for _ in range(20):
        prompts = [Reading(draw.choice("aab"), length, draw.randint(0, length - 1))
                   for length in (draw.choice((20, 200, 257, 300, 2000)) for _ in range(draw.randint(1, 6)))]
        read(prompts, draw.randint(1, 600), draw.choice((None, draw.randint(1, 600))), share=share,
             passes=draw.randint(1, 8))


@pytest.mark.parametrize("long_room", [1, 2, 3])
def test_a_chat_goes_on_beside_long_prompts_without_end(long_room):
    """Long prompts have a row or two of each pass, as on a slow machine beside answers, and new ones come as soon as
    one is read. A third of their rows is still the chat's, which has read less."""
    share, passes = PromptShare(), 0
    long, chat = [Reading("a", 2000) for _ in range(4)], Reading("a", 148, 128, 128)
    while chat.todo:
        read([*long, chat], 16, long_room, share=share)
        long = [each if each.todo else Reading("a", 2000) for each in long]
        passes += 1
        assert passes <= 12 * 20


def test_level():
    """Those who have the least catch up first; a row that cannot be divided goes to the first."""
    assert [10, 0] == level(10, [50, 50], [0, 10])
    assert [15, 5] == level(20, [50, 50], [0, 10])
    assert [3, 17] == level(20, [3, 50], [0, 10])
    assert [1, 1, 0] == level(2, [5, 5, 5], [7, 7, 7])
    assert [5, 5] == level(99, [5, 5], [1, 2])


def test_long_prompts_beside_answers_are_bounded():
    """Long prompts get the rows that they may have beside answers; as many as short ones took where that is more."""
    long = [Reading("a", 3000), Reading("b", 3000)]
    read(long, 128, 6)
    assert [3, 3] == [each.position for each in long]
    short = Reading("b", 40)
    read([*long, short], 128, 6)
    assert (40, 46) == (short.position, sum(each.position for each in long))
    assert SHORT_ROWS >= 40


def test_rows_beside_answers_follow_what_passes_took():
    """As many rows of long prompts go beside an answer as take the time that two of its tokens take."""
    time = PassTime(streamed=False)
    assert 0 == time.long_rows(1)  # what an answer takes alone is measured first
    time.record(1, 0, 0.010)
    assert LONG_ROWS == time.long_rows(1)
    for _ in range(50):
        time.record(1, 0, 0.010)
        time.record(1, 10, 0.020)
    assert 20 == pytest.approx(time.long_rows(1), abs=1)
    for _ in range(50):  # deep in a long prompt: rows take more
        time.record(1, 10, 0.260)
    assert 1 == time.long_rows(1)
    time.record(1, 0, 0.010)
    for _ in range(50):  # a disk bounds the pass: rows take nothing
        time.record(1, 10, 0.010)
    assert 128 == time.long_rows(1)
    for _ in range(20):
        time.record(1, 10, 0.010)
    assert 0 == time.long_rows(1)  # and again from time to time
    time.record(1, 0, 0.010)
    assert 128 == time.long_rows(1)
