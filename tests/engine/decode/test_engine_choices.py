"""Several answers to one prompt: each as it is alone, and the prompt is read once."""

from __future__ import annotations

import math
import struct
import threading
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest

from appliance.engine.decode.events import ENTRY, End, Logprobs, PromptLogprobs
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.kvcache import page_nbytes
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from appliance.families.header import architecture_of
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.logits import logits_of

PROMPT = (1, *range(10, 209))
CONTEXT = 256


def choice(number, prompt=PROMPT, tokens=12, **more):
    """One of the answers to a prompt, which goes on to its last token."""
    sampling = Sampling(seed=100 + number, temperature=1.5, **more)
    return GenerationRequest(prompt, tokens - number % 3, sampling, ignore_end=True, choice=number)


def alone(requests, **engine):
    """The tokens and log-probabilities of each answer, asked for by itself."""
    with running("tied", context=CONTEXT, **engine) as one:
        return [[(advance.token, _logprobs(advance)) for advance in one.generate(each)] for each in requests]


def _logprobs(advance):
    return [event.packed for event in advance.events if isinstance(event, Logprobs)]


def together(scheduler, requests, tenant="t"):
    """The same, asked for as one request."""
    found = defaultdict(list)

    def note(advance):
        for each in {event.choice for event in advance.events}:
            found[each].append((advance.token, _logprobs(advance)))

    handle = scheduler.submit(requests[0], tenant, note, more=requests[1:])
    return handle, lambda: [found[each.choice] for each in requests]


@pytest.mark.parametrize(("slots", "prompt"), [(1, PROMPT), (3, PROMPT), (12, PROMPT), (3, (7,)), (2, (1, 300))])
def test_each_choice_is_what_it_is_alone(slots, prompt):
    """Whatever slots there are, whole prompts or short ones: the same tokens and log-probabilities, bit for bit."""
    requests = [choice(number, prompt, top_logprobs=2) for number in range(8)]
    expected = alone(requests)
    assert len({tuple(token for token, _ in each) for each in expected}) > 4  # the seeds do tell them apart
    with running("tied", slots=slots, context=CONTEXT, threads=2) as engine:
        scheduler = Scheduler(engine)
        handle, answers = together(scheduler, requests)
        assert handle.wait(60)
        assert sum(map(len, expected)) == handle.tokens
        scheduler.close()
    assert expected == answers()


@pytest.mark.parametrize("kind", ["q8", "q4"])
def test_forks_of_small_caches(kind):
    """Keys and values of 8 and 4 bits are copied as they are, also within a page."""
    requests = [choice(number) for number in range(4)]
    with running("tied", slots=4, context=CONTEXT, kv_cache=kind) as engine:
        scheduler = Scheduler(engine)
        handle, answers = together(scheduler, requests)
        assert handle.wait(60)
        scheduler.close()
    assert alone(requests, kv_cache=kind) == answers()


def test_eight_choices_cost_one_prompt():
    """A prompt of 200 tokens takes many passes of 32 rows: eight answers to it take no more of them than one."""
    passes = {}
    for count in (1, 8):
        with running("tied", slots=9, context=CONTEXT, rows=32, speculate=False) as engine:
            scheduler = Scheduler(engine)
            handle, _ = together(scheduler, [choice(number) for number in range(count)])
            assert handle.wait(60)
            passes[count] = scheduler.passes
            scheduler.close()
    assert passes[8] <= passes[1] + 1


def test_two_requests_share_slots():
    """Forks take turns with another tenant's requests, and nobody's answer changes."""
    requests, others = [choice(number) for number in range(6)], [choice(number, (5, 6, 7)) for number in range(3)]
    with running("tied", slots=3, context=CONTEXT) as engine:
        scheduler = Scheduler(engine, tenants=["a", "b"])
        first = together(scheduler, requests, "a")
        second = together(scheduler, others, "b")
        assert all(handle.wait(60) for handle, _ in (first, second))
        assert (0, 0) == (scheduler.load.queued, scheduler.load.running)
        scheduler.close()
    assert (alone(requests), alone(others)) == (first[1](), second[1]())


@pytest.mark.parametrize("slots", [1, 3])
def test_answers_begin_as_they_may(slots):
    """No more have begun than may, also after all that may have ended; each is what it is alone."""
    requests = [choice(number) for number in range(6)]
    begun, ended = set(), [threading.Semaphore(0) for _ in requests]
    found = defaultdict(list)

    def note(advance):
        for event in advance.events:
            begun.add(event.choice)
            if isinstance(event, End):
                ended[event.choice].release()
        found[advance.events[0].choice].append((advance.token, _logprobs(advance)))

    with running("tied", slots=slots, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        handle = scheduler.submit(requests[0], "t", note, more=requests[1:], allowed=1)
        for first, last in ((0, 1), (1, 3), (3, 6)):
            if first:
                scheduler.allow(handle, last)
            assert all(ended[number].acquire(timeout=60) for number in range(first, last))
            assert set(range(last)) == begun
            assert handle.wait(0.05) is (last == 6)
            scheduler.allow(handle, last - 1)  # changes nothing
        scheduler.close()
    assert alone(requests) == [found[number] for number in range(6)]


@pytest.mark.parametrize("end", ["cancel", "close"])
def test_a_request_at_rest_ends(end):
    """One none of whose answers may begin holds no slot; it ends when it is cancelled, or its scheduler closes."""
    ends, rested = [], threading.Event()

    def note(advance):
        ends.extend(event.choice for event in advance.events if isinstance(event, End))
        if ends:
            rested.set()

    with running("tied", slots=1, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        requests = [choice(number) for number in range(4)]
        handle = scheduler.submit(requests[0], "t", note, more=requests[1:], allowed=1)
        assert rested.wait(60)
        after, answers = together(scheduler, [choice(0)])
        assert after.wait(60)
        if end == "cancel":
            handle.cancel()
            assert together(scheduler, [choice(1)])[0].wait(60)
        scheduler.close()
        assert handle.wait(1)
        scheduler.allow(handle, 4)
        assert (0, 0) == (scheduler.load.queued, scheduler.load.running)
    assert [0, 1, 2, 3] == ends
    assert alone([choice(0)]) == answers()


@pytest.mark.parametrize("slots", [1, 3])
def test_cancelling_ends_every_choice(slots):
    """Each choice ends once, those without a slot, too, and the engine is free for others."""
    ends, begun = [], threading.Event()

    def note(advance):
        begun.set()
        ends.extend(event for event in advance.events if isinstance(event, End))

    with running("tied", slots=slots, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        requests = [GenerationRequest((1, 2), 200, Sampling(seed=number), ignore_end=True, choice=number)
                    for number in range(6)]
        handle = scheduler.submit(requests[0], "t", note, more=requests[1:])
        assert begun.wait(60)
        handle.cancel()
        assert handle.wait(60)
        assert [(number, "cancelled") for number in range(6)] == sorted((end.choice, end.reason) for end in ends)
        after, answers = together(scheduler, [choice(0)])
        assert after.wait(60)
        scheduler.close()
    assert alone([choice(0)]) == answers()


class _Stuck:
    """A constraint that allows nothing."""

    def begin(self):
        return self

    def mask(self):
        raise EngineError("stuck", code="constraint-stuck")

    def ahead(self):
        return self

    def back(self, count):
        assert count == 0

    def forced(self):
        return []


@pytest.mark.parametrize("slots", [1, 3])
def test_an_error_of_one_choice_ends_all(slots):
    """It is told once; the slots are free for others, whose answers do not change."""
    errors, ends = [], []
    requests = [choice(0), replace(choice(1), constraint=_Stuck()), choice(2), choice(3)]
    with running("tied", slots=slots, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        handle = scheduler.submit(requests[0], "t", lambda advance: ends.extend(
            event.choice for event in advance.events if isinstance(event, End)), errors.append, more=requests[1:])
        after, answers = together(scheduler, [choice(2)])
        assert handle.wait(60)
        assert after.wait(60)
        assert (0, 0) == (scheduler.load.queued, scheduler.load.running)
        scheduler.close()
    assert ["constraint-stuck"] == [error.code for error in errors]
    assert {1, 2, 3}.isdisjoint(ends)
    assert alone([choice(2)]) == answers()


def test_one_prompt_only():
    """Answers to different prompts are no one request."""
    with running("tied", context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        with pytest.raises(EngineError, match="different prompts"):
            scheduler.submit(choice(0), "t", lambda advance: None, more=[choice(1, (1, 2))])
        scheduler.close()


@pytest.mark.parametrize(("rows", "length"), [(64, 200), (256, 200), (32, 2), (32, 1)])
def test_prompts_log_probabilities(rows, length):
    """Of each token of a prompt after the first: those of the model, by a log-softmax, whatever a pass holds."""
    prompt = PROMPT[:length]
    request = GenerationRequest(prompt, 0, Sampling(top_logprobs=2), prompt_logprobs=True)
    with running("tied", context=CONTEXT, rows=rows) as engine:
        logits = np.float64(logits_of(engine, list(prompt)))[:, :engine.tokenizer.vocab_size]
        scheduler, events = Scheduler(engine), []
        other = scheduler.submit(choice(1), "u", lambda advance: None)
        handle = scheduler.submit(request, "t", lambda advance: events.extend(advance.events))
        assert handle.wait(60)
        assert other.wait(60)
        scheduler.close()
    assert "length" == events.pop().reason
    assert all(isinstance(event, PromptLogprobs) for event in events)
    assert list(prompt[1:]) == [struct.unpack_from("<i", event.packed)[0] for event in events]
    for row, event in zip(logits, events, strict=False):
        (token, logprob), *best = ENTRY.iter_unpack(event.packed)
        expected = row - row.max() - math.log(np.exp(row - row.max()).sum())
        assert math.isclose(expected[token], logprob, abs_tol=1e-9)
        assert sorted(expected, reverse=True)[:2] == pytest.approx([value for _, value in best], abs=1e-9)


@pytest.mark.parametrize("slots", [1, 2, 4])
@pytest.mark.parametrize("length", [63, 64, 65, 128, 200])
def test_choices_beside_kept_pages(slots: int, length: int) -> None:
    """Where a tenant's pages are kept, an answer neither writes into one nor reads what another wrote, whether its
    prompt ends with a page or within one, and whether it has a slot of its own or that of an answer before it."""
    asked = [replace(choice(number, PROMPT[:length]), max_tokens=70 - number) for number in range(4)]
    expected = alone(asked)
    pages = 8
    with opened(synthetic_model("tied")) as source:
        size = page_nbytes(architecture_of(source.metadata), "f16")
        with Engine.open(source, EngineOptions(threads=1, slots=slots, context_length=CONTEXT,
                                               prefix_nbytes=pages * size), kernels=kernels()) as engine:
            scheduler = Scheduler(engine, tenants=["t"], prefix_lifetime=60.0)
            for _ in range(3):
                handle, answers = together(scheduler, asked)
                assert handle.wait(60)
                assert expected == answers()
            scheduler.close()
            assert not engine._cache._memory.view("u1").any()


@pytest.mark.parametrize("slots", [2, 3, 8])
def test_choices_with_a_negative_prompt(slots: int) -> None:
    """Each has a second sequence, which forks and goes on as the first one does."""
    negative = (1, *range(40, 110))
    asked = [replace(each, negative_ids=negative, sampling=replace(each.sampling, guidance_scale=1.7))
             for each in map(choice, range(4))]
    expected = alone(asked)
    with running("tied", slots=slots, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        handle, answers = together(scheduler, asked)
        assert handle.wait(60)
        assert expected == answers()
        scheduler.close()
        assert not engine._cache._memory.view("u1").any()


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_choices_that_shift(slots: int) -> None:
    """An answer that dropped the prompt leaves it to nobody: the next one reads it again."""
    asked = [replace(choice(number), max_tokens=150 + number, shift_keep=1) for number in range(3)]
    expected = alone(asked)
    with running("tied", slots=slots, context=CONTEXT) as engine:
        scheduler = Scheduler(engine)
        handle, answers = together(scheduler, asked)
        assert handle.wait(60)
        assert expected == answers()
        scheduler.close()
        assert not engine._cache._memory.view("u1").any()
