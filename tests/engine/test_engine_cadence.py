"""A cadence: passes at the multiples of an interval, all of one size. Number, times and reads tell of no answer."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from appliance.engine.beat import Beat
from appliance.engine.decode.events import End, PromptLogprobs, Text
from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.deliveries import Deliveries
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.seats import dummy_seats
from appliance.engine.handle import Handle
from appliance.engine.scheduler import Scheduler
from appliance.errors import CapacityError, EngineError, ModelError
from appliance.models.sources.streamed import StreamedSource
from tests.support.engines import kernels, opened, synthetic_model
from tests.support.streams import stored

ROWS = 12
INTERVAL = 0.005
WAIT = 120


class Passes:
    """What the forward pass of an engine is asked for."""

    def __init__(self, engine: Engine, patch: pytest.MonkeyPatch) -> None:
        self._run, self._change = engine._forward.run, threading.Condition()
        self.shapes: list[tuple[int, int]] = []  # rows and logits of each
        patch.setattr(engine._forward, "run", self)

    def __call__(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int],
                 wanted: Sequence[int]) -> Any:
        with self._change:
            self.shapes.append((len(tokens), len(wanted)))
            self._change.notify_all()
        return self._run(tokens, positions, slots, wanted)

    def wait(self, more: int) -> None:
        """Wait for so many passes from now on."""
        with self._change:
            until = len(self.shapes) + more
            assert self._change.wait_for(lambda: len(self.shapes) >= until, WAIT)


@contextlib.contextmanager
def steady(*, slots: int = 4, rows: int = ROWS, **more: Any) -> Iterator[Engine]:
    """An engine on a synthetic model, all of whose passes have so many rows."""
    with opened(synthetic_model("tied")) as source, Engine.open(source, EngineOptions(
            threads=1, slots=slots, context_length=256, steady=True, **more), kernels=kernels()) as engine:
        engine.fix(rows)
        yield engine


@contextlib.contextmanager
def keeping(engine: Engine, interval: float = INTERVAL, **more: Any) -> Iterator[Scheduler]:
    """A scheduler that keeps a cadence."""
    scheduler = Scheduler(engine, cadence=interval, **more)
    try:
        yield scheduler
    finally:
        scheduler.close()


def request(seed: int = 0, prompt: Sequence[int] = (1, 300, 301), tokens: int = 12, **more: Any) -> GenerationRequest:
    """A request that goes on to its last token."""
    return GenerationRequest(tuple(prompt), tokens, Sampling(seed=seed), ignore_end=True, **more)


REPETITIVE = (1, *range(40, 60), *range(40, 60), *range(40, 60))
REQUESTS = [*(request(seed, (1, *range(10, 10 + 17 * seed)), 5 + 3 * seed) for seed in range(8)),
            GenerationRequest(REPETITIVE, 40, Sampling(temperature=0.0), ignore_end=True)]


def _alone(requests: Sequence[GenerationRequest]) -> list[list[int | None]]:
    """Their answers from an engine without a cadence, one by one."""
    with opened(synthetic_model("tied")) as source, Engine.open(
            source, EngineOptions(threads=1, slots=4, context_length=256), kernels=kernels()) as engine:
        return [[advance.token for advance in engine.generate(each)] for each in requests]


@pytest.mark.parametrize(("hidden", "speculate"), [(False, False), (False, True), (True, True)])
def test_no_bit_of_an_answer_depends_on_it(hidden: bool, speculate: bool) -> None:
    """More answers than slots, with guesses shown, hidden and not made, are those of an engine without a cadence."""
    answers: list[list[int | None]] = [[] for _ in REQUESTS]
    with steady(speculate=speculate) as engine, keeping(engine, hidden=hidden) as scheduler:
        handles = [scheduler.submit(each, "t", lambda advance, to=answers[index]: to.append(advance.token))
                   for index, each in enumerate(REQUESTS)]
        assert all(handle.wait(WAIT) for handle in handles)
    assert _alone(REQUESTS) == answers


def test_passes_are_alike_and_do_not_depend_on_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Idle, with prompts, with answers, with guesses and with log-probabilities of a prompt, each pass has the same
    rows and logits; one begins at each multiple, but for those that a late pass took."""
    with steady() as engine:
        passes = Passes(engine, monkeypatch)
        with keeping(engine) as scheduler:
            passes.wait(3)
            told = GenerationRequest(tuple(range(1, 40)), 3, Sampling(top_logprobs=1), prompt_logprobs=True)
            events: list[Any] = []
            handles = [*(scheduler.submit(each, "t", lambda advance: None) for each in REQUESTS),
                       scheduler.submit(told, "t", lambda advance: events.extend(advance.events))]
            assert all(handle.wait(WAIT) for handle in handles)
            passes.wait(3)
        assert {(ROWS, engine.concurrent)} == set(passes.shapes)
    assert isinstance(events[-1], End)
    assert 38 == sum(isinstance(event, PromptLogprobs) for event in events)


def test_what_a_pass_gives_comes_at_a_later_multiple() -> None:
    """Between two advances of an answer there is a multiple of the interval, however well it was guessed; without
    hiding, tokens that were guessed come together."""
    together = {}
    for hidden in (True, False):
        times: list[float] = []
        with steady() as engine, keeping(engine, 0.01, hidden=hidden) as scheduler:
            first = scheduler.passes
            handle = scheduler.submit(REQUESTS[-1], "t", lambda advance, to=times: to.append(time.monotonic()))
            assert handle.wait(WAIT)
            assert scheduler.passes > first
        intervals = [int(each // 0.01) for each in times]
        together[hidden] = len(intervals) - len(set(intervals))
    assert 0 == together[True]
    assert together[False] > 5


def test_hidden_guesses_free_a_slot_early() -> None:
    """The next answer of another request begins while tokens of the one before are held; each of them still comes at
    a multiple of its own, and an answer of the same request not before the one ahead of it has left."""
    order: list[tuple[str, int | None]] = []
    started = threading.Event()
    with steady(slots=1, rows=ROWS) as engine, keeping(engine, 0.01, hidden=True) as scheduler:
        two = [GenerationRequest(REPETITIVE, 30, Sampling(temperature=0.0), ignore_end=True, choice=choice)
               for choice in (0, 1)]
        handle = scheduler.submit(two[0], "t", lambda advance: order.append(("a", advance.events[-1].choice)),
                                  more=two[1:])
        other = scheduler.submit(request(), "t", lambda advance: order.append(("b", None)),
                                 on_start=lambda: (order.append(("b begins", None)), started.set()))
        assert handle.wait(WAIT)
        assert other.wait(WAIT)
    own = [choice for name, choice in order if name == "a"]
    assert sorted(own) == own  # the second answer's tokens come after all of the first one's
    begun = order.index(("b begins", None))
    assert any(name == "a" for name, _ in order[begun:])


def test_errors_and_ends_wait_for_the_multiple(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that fails is told at a multiple after it, and the cadence goes on."""
    with steady() as engine:
        passes = Passes(engine, monkeypatch)
        with keeping(engine, 0.05) as scheduler:
            failed: list[float] = []
            errors: list[tuple[float, str]] = []

            def fail(*_arguments: object) -> None:
                failed.append(time.monotonic())
                raise EngineError("the disk is gone")

            passes._run = fail
            handle = scheduler.submit(request(), "t", lambda advance: None,
                                      lambda error: errors.append((time.monotonic(), error.summary)))
            assert handle.wait(WAIT)
            passes.wait(2)
    assert ["the disk is gone"] == [words for _, words in errors]
    assert int(errors[0][0] / 0.05) > int(failed[0] / 0.05)


def test_an_end_of_a_request_that_waits_comes_at_a_multiple() -> None:
    """Whoever left the queue gives its room to another at once, and hears of its end not before the multiple: here a
    minute away, or the scheduler's end."""
    with steady(slots=1) as engine:
        scheduler, begun, ends = Scheduler(engine, cadence=60.0, queue=1), threading.Event(), list[Advance]()
        scheduler.submit(request(), "t", lambda advance: None, on_start=begun.set)
        assert begun.wait(WAIT)
        waits = scheduler.submit(request(), "t", ends.append)
        with pytest.raises(CapacityError):
            scheduler.submit(request(), "t", lambda advance: None)
        waits.cancel()
        scheduler.submit(request(), "t", lambda advance: None)
        assert not waits.wait(0.3)
        assert [] == ends
        assert scheduler.close(WAIT)
        assert waits.wait(0)
    assert ["cancelled"] == [each.finish_reason for each in ends]


@pytest.mark.parametrize("error", [EngineError("no memory is left", code="engine-memory"), ModelError("a tile is bad")])
def test_a_pass_that_cannot_be_planned_is_told_by_its_name(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answers end with the error itself, and the multiple has its pass as any other."""
    with steady() as engine:
        passes = Passes(engine, monkeypatch)
        with keeping(engine) as scheduler:
            planner, told = scheduler._batcher.planner, list[Exception]()
            plan = planner.plan

            def fail(running: Any) -> Any:
                if running:
                    raise error
                return plan(running)

            monkeypatch.setattr(planner, "plan", fail)
            assert scheduler.submit(request(), "t", lambda advance: None, told.append).wait(WAIT)
            passes.wait(3)
        assert [error] == told
        assert {(ROWS, engine.concurrent)} == set(passes.shapes)


def test_a_long_interval_delays_no_end() -> None:
    """A scheduler that waits for a multiple a minute away is closed at once, and those who wait hear of it."""
    with steady() as engine:
        scheduler = Scheduler(engine, cadence=60.0)
        ends: list[Advance] = []
        handle = scheduler.submit(request(), "t", ends.append)
        begun = time.monotonic()
        assert scheduler.close(30)
        assert time.monotonic() - begun < 30
        assert handle.wait(0)
    assert "cancelled" == ends[-1].finish_reason


def test_dummy_rows_have_nothing_of_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pages of dummy rows are nobody's, and hold the same bytes after each pass, whoever was answered."""
    with steady() as engine:
        seats, cache, passes = engine._seats, engine._cache, Passes(engine, monkeypatch)

        def content() -> list[bytes]:
            return [bytes(half) for slot in seats.dummies for page in cache._taken[slot] for half in cache.views(page)]

        found = []
        with keeping(engine) as scheduler:
            for each in (REQUESTS[7], REQUESTS[8]):
                assert scheduler.submit(each, "t", lambda advance: None).wait(WAIT)
                passes.wait(2)
                found.append(content())
        assert any(any(half) for half in found[0])
        assert found[0] == found[1]
        assert set(seats.dummies).isdisjoint(range(engine.slots))
        assert cache.in_use == sum(len(cache._taken[slot]) for slot in seats.dummies)


@pytest.mark.parametrize(("rows", "context", "expected"), [
    (512, 4096, (512,)), (512, 200, (200, 200, 112)), (32, 32, (32,)), (33, 32, (32, 1))])
def test_seats_for_dummy_rows(rows: int, context: int, expected: tuple[int, ...]) -> None:
    """As many as hold all rows, of a context each."""
    assert expected == dummy_seats(rows, context)


@pytest.mark.parametrize("rows", [4, 513])
def test_passes_of_a_size_that_cannot_be(rows: int) -> None:
    """A row for each answer and one for a prompt, at least; the engine's rows at most."""
    with steady() as engine, pytest.raises(EngineError, match=rf"passes of {rows} rows each; allowed: 5\.\.512"):
        engine.fix(rows)


def test_an_engine_without_seats_keeps_no_cadence() -> None:
    """One size of passes, and a cadence, need an engine that was opened for them."""
    with opened(synthetic_model("tied")) as source, Engine.open(
            source, EngineOptions(threads=1, slots=2), kernels=kernels()) as engine:
        with pytest.raises(EngineError, match="of a steady engine"):
            engine.fix(ROWS)
        for how in ({"cadence": 0.1}, {"hidden": True}):
            with pytest.raises(EngineError, match="a cadence is above 0 s"):
                Scheduler(engine, **how)


def test_timing_a_pass_leaves_nothing() -> None:
    """The dearest pass is timed on slots that are empty before and after; more rows than contexts hold are dummies."""
    with steady() as engine:
        dummies = engine._cache.in_use
        assert engine.pass_seconds(5) > 0
        assert engine.pass_seconds(200) > 0
        assert engine._cache.in_use - len(engine._cache._taken[engine._seats.dummies[0]]) == dummies == 0
        assert engine.slots == engine._seats.free
        assert engine._cache.unclaimed == engine.pages


def test_the_disk_sees_the_same_in_each_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A streamed model is read from its first tile to its last in each pass, idle or not."""
    reads: list[int] = []
    preadv = os.preadv

    def read(descriptor: int, buffers: list[Any], offset: int, flags: int = 0) -> int:
        reads.append(offset)
        return preadv(descriptor, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", read)
    _, make = stored("sealed", tmp_path, synthetic_model("tied"), 32768)
    with closing(make()) as source, Engine.open(source, EngineOptions(
            threads=1, slots=4, context_length=256, steady=True), kernels=kernels()) as engine:
        assert isinstance(source, StreamedSource)
        engine.fix(ROWS)
        passes, found = Passes(engine, monkeypatch), []
        run = passes._run

        def observed(*arguments: Any) -> Any:
            reads.clear()
            logits = run(*arguments)
            found.append(tuple(reads))
            return logits

        passes._run = observed
        with keeping(engine, hidden=True) as scheduler:
            passes.wait(3)
            handles = [scheduler.submit(each, "t", lambda advance: None) for each in REQUESTS]
            assert all(handle.wait(WAIT) for handle in handles)
            passes.wait(3)
    assert len(found[0]) > 10
    assert 1 == len(set(found[1:]))


# --- the multiples ----------------------------------------------------------------------------------------------------
class Clock:
    """A clock that moves only on command."""

    def __init__(self) -> None:
        self.now = 100.25

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize(("pass_seconds", "late", "lateness", "left"), [
    (0.3, 0, 0, 0.7),   # it ends before the next multiple, which is waited for
    (0.99, 0, 0, 0.01),
    (1.25, 1, 1, 0.75),  # the multiple that has come is left out, and none is made up
    (3.5, 1, 3, 0.5),
])
def test_multiples(pass_seconds: float, late: int, lateness: int, left: float) -> None:
    """Passes begin at multiples of the monotonic clock; one that ends after its interval is counted."""
    clock, counted = Clock(), []
    beat = Beat(1.0, clock, lambda: counted.append(clock.now))
    beat.settle()
    assert pytest.approx(0.75) == beat.left
    clock.now = 101.0
    beat.begin()
    clock.now += pass_seconds
    beat.settle()
    assert (late, lateness, late) == (beat.late, beat.lateness, len(counted))
    assert pytest.approx(left) == beat.left


def test_a_stopped_thread_is_late() -> None:
    """A host that stops the machine while a multiple is waited for makes a pass late; the next is at a multiple."""
    clock = Clock()
    beat = Beat(1.0, clock)
    clock.now = 104.5  # the multiple was 101
    beat.begin()
    assert (1, 3.5, 0.5) == (beat.late, beat.deviation, beat.left)


# --- what is held -----------------------------------------------------------------------------------------------------
class Heard:
    """A request's callbacks, and what they heard."""

    def __init__(self, engine: Engine) -> None:
        self.said: list[object] = []
        self.handle = Handle([engine.generation(request())], "t", lambda advance: self.said.append(advance.token),
                             lambda error: self.said.append(error.summary), lambda: None)


def _end() -> Advance:
    return Advance(None, (End(0, "length", None),))


def test_what_is_held_leaves_in_order() -> None:
    """One token of each answer at a multiple where guesses are hidden; an end after the last of them; an error in the
    place of what is left; all at once for a request that nobody waits for."""
    with steady() as engine:
        first, second, third = (Heard(engine) for _ in range(3))
        deliveries = Deliveries(held=True, singly=True)
        for each in (first, second, third):
            for token in (7, 8, 9):
                deliveries.put(each.handle, 0, Advance(token, (Text(0, "x", 1),)))
        deliveries.put(first.handle, 0, _end())
        deliveries.end(first.handle)
        assert [] == first.said
        deliveries.release()
        assert [7] == first.said == second.said == third.said
        deliveries.fail(second.handle, EngineError("gone"))
        third.handle.cancel()
        deliveries.release()
        assert ([7, 8], [7, "gone"], [7, 8, 9]) == (first.said, second.said, third.said)
        assert (False, True) == (first.handle.wait(0), second.handle.wait(0))
        deliveries.release()
        deliveries.release()
        assert [7, 8, 9, None] == first.said
        assert first.handle.wait(0)
