"""The scheduler: fair, bounded, cancellable, and without influence on what is answered."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import CapacityError, EngineError
from appliance.models.file import gguf
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.logits import logits_of


@contextlib.contextmanager
def scheduling(*, slots=4, concurrent=None, queue=128, threads=1, **more):
    """A scheduler on a synthetic model."""
    with running("tied", slots=slots, threads=threads, context=256, **more) as engine:
        scheduler = Scheduler(engine, concurrent=concurrent, queue=queue)
        try:
            yield engine, scheduler
        finally:
            scheduler.close()


def request(seed=0, prompt=(1, 300, 301), tokens=12):
    """A request that goes on to its last token."""
    return GenerationRequest(prompt, tokens, Sampling(seed=seed), ignore_end=True)


class Gate:
    """A callback that holds the engine's thread at the first advance until it is opened."""

    def __init__(self):
        self.arrived, self.open = threading.Event(), threading.Event()

    def __call__(self, advance):
        self.arrived.set()
        assert self.open.wait(60)


def test_answers_do_not_depend_on_company():
    """Ten requests of different lengths, over four slots and two threads, each get the answer that they get alone."""
    requests = [request(seed, (1, *range(10, 10 + 17 * seed)), 5 + 3 * seed) for seed in range(10)]
    with running("tied", context=256) as engine:
        alone = [[advance.token for advance in engine.generate(each)] for each in requests]
    with scheduling(threads=2) as (_, scheduler):
        answers = [[] for _ in requests]
        handles = [scheduler.submit(each, "t", answers[index].append) for index, each in enumerate(requests)]
        assert all(handle.wait(60) for handle in handles)
    assert alone == [[advance.token for advance in answer] for answer in answers]
    assert {"length"} == {answer[-1].finish_reason for answer in answers}
    assert [len(each) for each in alone] == [handle.tokens for handle in handles]
    assert all(handle.timings.prompt_seconds > 0 for handle in handles)


def test_tenants_take_turns():
    """Of one tenant's three requests and another's one, the other's comes second."""
    order = []
    with scheduling(slots=1) as (_, scheduler):
        gate = Gate()
        scheduler.submit(request(), "first", gate)
        assert gate.arrived.wait(60)
        handles = [scheduler.submit(request(tokens=1), tenant, lambda advance, name=name: order.append(name))
                   for name, tenant in (("a1", "a"), ("a2", "a"), ("a3", "a"), ("b1", "b"))]
        assert (4, 1) == (scheduler.load.queued, scheduler.load.running)
        gate.open.set()
        assert all(handle.wait(60) for handle in handles)
    assert ["a1", "b1", "a2", "a3"] == order


LONG = (1, *range(10, 210))


@pytest.mark.parametrize(("slots", "many", "prompt"), [(8, 4, LONG), (72, 70, (1, 300))])
def test_tenants_take_turns_where_slots_are_free(slots, many, prompt):
    """Many requests of one tenant, by length or by number more than a pass takes, delay another's by one turn."""
    order = []
    with scheduling(slots=slots, rows=64) as (_, scheduler):
        gate = Gate()
        scheduler.submit(request(tokens=1), "first", gate)
        assert gate.arrived.wait(60)
        last = [scheduler.submit(request(prompt=prompt, tokens=30), "a", lambda advance: order.append("a"))
                for _ in range(many)][-1]
        other = scheduler.submit(request(tokens=1), "b", lambda advance: order.append(last.tokens))
        gate.open.set()
        assert other.wait(60)
        assert last.wait(60)
    assert 0 == next(entry for entry in order if entry != "a")
    assert 30 * many + 1 == len(order)


def test_tenants_take_turns_however_many_slots_there_are():
    """A tenant who has asked for 150 answers, where a pass has 64 rows with logits, lets another wait no longer than
    for the first 64 of them."""
    with scheduling(slots=200, queue=200) as (_, scheduler):
        first, second, ended, before = Gate(), Gate(), [], []

        def count(advance):
            second(advance)
            ended.append(advance.finish_reason)
        handles = [scheduler.submit(request(), "first", first)]
        assert first.arrived.wait(60)
        handles += [scheduler.submit(request(tokens=4), "many", count) for _ in range(150)]
        first.open.set()
        assert second.arrived.wait(60)  # as many of them as can run are running
        handles.append(scheduler.submit(request(tokens=1), "other",
                                        lambda advance: before.append(ended.count("length"))))
        second.open.set()
        assert all(handle.wait(60) for handle in handles)
    assert before[0] <= 64


def test_queue_is_bounded():
    """When slots and queue are full a request is refused at once, and one fits again when one has left."""
    with scheduling(slots=2, concurrent=1, queue=1) as (_, scheduler):
        gate = Gate()
        scheduler.submit(request(), "t", gate)
        assert gate.arrived.wait(60)
        waiting = scheduler.submit(request(), "t", lambda advance: None)
        with pytest.raises(CapacityError, match="waiting"):
            scheduler.submit(request(), "t", lambda advance: None)
        waiting.cancel()
        gate.open.set()
        assert waiting.wait(60)
        scheduler.submit(request(), "t", lambda advance: None)


def test_who_left_the_queue_takes_no_room():
    """Requests that are cancelled while they wait make room while the pass goes on: nobody else is refused for them."""
    ends, answers = [], []
    with scheduling(slots=1, queue=2) as (_, scheduler):
        gate = Gate()
        scheduler.submit(request(), "a", gate)
        assert gate.arrived.wait(60)
        for _ in range(3):
            left = [scheduler.submit(request(), "a", ends.append) for _ in range(2)]
            for each in left:
                each.cancel()
        stay = [scheduler.submit(request(), "b", answers.append) for _ in range(2)]
        assert all(each.wait(0) for each in left)
        with pytest.raises(CapacityError, match="2 requests are waiting"):
            scheduler.submit(request(), "b", answers.append)
        gate.open.set()
        assert all(each.wait(60) for each in stay)
    assert ["cancelled"] * 6 == [advance.finish_reason for advance in ends]
    assert ["length"] * 2 == [advance.finish_reason for advance in answers if advance.finish_reason]


def test_cancel_running_and_waiting():
    """Both end with one last advance that says so, and the slot is free for the next request."""
    with scheduling(slots=1) as (_, scheduler):
        gate, advances, queued = Gate(), [], []
        first = scheduler.submit(request(tokens=200), "t", lambda advance: (advances.append(advance), gate(advance)))
        assert gate.arrived.wait(60)
        second = scheduler.submit(request(), "t", queued.append)
        first.cancel()
        second.cancel()
        gate.open.set()
        assert first.wait(60)
        assert second.wait(60)
        assert ["cancelled"] == [advance.finish_reason for advance in queued]
        assert ("cancelled", None) == (advances[-1].finish_reason, advances[-1].token)
        assert len(advances) < 10
        assert scheduler.submit(request(), "t", lambda advance: None).wait(60)


def test_a_broken_callback_ends_only_its_own_answer():
    """An exception in one callback cancels that answer; the others go on."""
    with scheduling() as (_, scheduler):
        good = []

        def broken(advance):
            raise RuntimeError("receiver is gone")
        one = scheduler.submit(request(tokens=200), "t", broken)
        two = scheduler.submit(request(), "t", good.append)
        assert one.wait(60)
        assert two.wait(60)
    assert 12 == len(good)
    assert one.tokens < 200


def test_an_answer_that_fails_ends_no_other():
    """A prompt whose logits are not numbers gets an error; who answers in the same passes gets what it gets alone."""
    data = bytearray(synthetic_model("F32"))
    embedding = gguf.parse(bytes(data)).tensors["token_embd.weight"]
    row = embedding.nbytes // embedding.rows
    start = embedding.offset + 7 * row
    data[start:start + row] = np.full(row // 4, np.nan, np.float32).tobytes()
    with opened(bytes(data)) as source, Engine.open(
            source, EngineOptions(threads=1, context_length=64), kernels=kernels()) as engine:
        good = GenerationRequest((1, 300, 301), 30, Sampling(seed=1, logit_bias={7: -100.0}), ignore_end=True)
        alone = [advance.token for advance in engine.generate(good)]
        with pytest.raises(EngineError, match="not numbers"):
            list(engine.generate(GenerationRequest((1, 7), 5)))
        scheduler, gate, answer, errors = Scheduler(engine), Gate(), [], []
        handles = [scheduler.submit(request(tokens=20), "first", gate)]
        assert gate.arrived.wait(60)
        handles += [scheduler.submit(good, "one", answer.append, errors.append),
                    scheduler.submit(GenerationRequest((1, 7), 5), "other", answer.append, errors.append)]
        gate.open.set()
        assert all(handle.wait(60) for handle in handles)
        scheduler.close()
    assert ["not numbers" in str(error) for error in errors] == [True]
    assert alone == [advance.token for advance in answer]


SHORT_OF_MEMORY = """
import os, random, threading
from appliance.boot.planning import machine
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.scheduler import Scheduler
from tests.support.engines import running

with running("tied", slots=64) as engine:
    scheduler, arrived, opened, ended = Scheduler(engine), threading.Event(), threading.Event(), []

    def gate(advance):
        arrived.set()
        opened.wait(60)

    def submit(tokens, on_advance):
        prompt = tuple(random.randrange(3, 500) for _ in range(tokens))
        return scheduler.submit(GenerationRequest(prompt, 2), "t", on_advance, ended.append)
    handles = [submit(3, gate)]
    arrived.wait(60)
    handles += [submit(500, lambda each: ended.append(each) if each.finish_reason else None) for _ in range(63)]
    machine.limit_growth(1 << 20)
    opened.set()
    handles[-1].wait(30)
    print(sum(handle.wait(0.5) for handle in handles), len(ended), submit(3, lambda advance: None).wait(10), flush=True)
    os._exit(0)
"""


def test_want_of_memory_ends_no_service():
    """Where the kernel gives no more memory while 63 prompts wait for a slot, each of them ends, with an answer or an
    error, and the next request is answered."""
    found = subprocess.run([sys.executable, "-c", SHORT_OF_MEMORY], cwd=Path(__file__).parents[2], capture_output=True,
                           text=True, check=False)
    assert "64 63 True\n" == found.stdout, found.stderr


def test_bad_requests_are_refused_when_submitted():
    """A request that can never run does not reach the queue."""
    with scheduling() as (_, scheduler):
        with pytest.raises(EngineError):
            scheduler.submit(request(prompt=()), "t", lambda advance: None)
        with pytest.raises(CapacityError):
            scheduler.submit(request(prompt=(1,) * 256), "t", lambda advance: None)


def test_close_cancels():
    """Answers at hand are cancelled, and the engine can be used again."""
    with running("tied", slots=1, context=256) as engine:
        scheduler = Scheduler(engine)
        gate, ends = Gate(), []
        handles = [scheduler.submit(request(), "t", lambda advance: (gate(advance), ends.append(advance.finish_reason)))
                   for _ in range(2)]
        assert gate.arrived.wait(60)
        closer = threading.Thread(target=scheduler.close)
        closer.start()
        while not scheduler._closing:
            pass
        with pytest.raises(EngineError, match="shutting down"):
            scheduler.submit(request(), "t", lambda advance: None)
        gate.open.set()
        closer.join(60)
        assert all(handle.wait(1) for handle in handles)
        assert ["cancelled"] * 2 == [end for end in ends if end is not None]
        assert len(logits_of(engine, [1, 2, 3])) == 3


def test_cancelled_while_another_is_dropped():
    """Two waiting requests of a tenant, cancelled in one moment: the second while the first is dropped. Both end, the
    running one has its answer, and the next is answered."""
    class Moment(threading.Event):
        """Cancels another request when it is looked at again."""

        looked = 0

        def is_set(self):
            self.looked += super().is_set()
            if self.looked == 2:
                second.cancel()
            return super().is_set()

    with scheduling(slots=1) as (_, scheduler):
        gate, ends, errors = Gate(), ([], []), []
        running = scheduler.submit(request(), "t", gate, errors.append)
        assert gate.arrived.wait(60)
        first, second = (scheduler.submit(request(), "t", lambda advance, own=own: own.append(advance.finish_reason))
                         for own in ends)
        first._cancelled = Moment()
        first.cancel()
        gate.open.set()
        assert running.wait(60)
        assert first.wait(60)
        second.cancel()
        assert second.wait(20)
        assert [] == errors
        assert ["cancelled"] == [end for end in ends[0] if end is not None]
        assert 1 == len([end for end in ends[1] if end is not None])  # it may have been answered before
        assert scheduler.submit(request(), "t", lambda advance: None).wait(60)


def test_engine_errors_reach_the_handle():
    """When a pass fails its answers end with the error, and the scheduler lives on."""
    with scheduling(slots=1) as (engine, scheduler):
        gate, errors = Gate(), []
        handle = scheduler.submit(request(), "t", gate, errors.append)
        assert gate.arrived.wait(60)
        engine._forward.boundary.forget(0)  # the next pass would skip positions
        gate.open.set()
        assert handle.wait(60)
        assert 1 == len(errors)
        assert scheduler.submit(request(), "t", lambda advance: None).wait(60)
