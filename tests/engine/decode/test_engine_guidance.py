"""Classifier-free guidance in the engine: two sequences, one answer."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from appliance.engine.decode.generation import Advance, GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine
from appliance.engine.scheduler import Scheduler
from appliance.errors import CapacityError, EngineError
from appliance.kernels.layouts.attention import PAGE
from examples import plain_engine
from tests.support.engines import running, synthetic_model

MODEL = "mixed"
PROMPT, NEGATIVE = [1, 5, 9, 4, 7, 5, 9, 4], [1, 8, 8, 3, 6]
SAMPLING = Sampling(guidance_scale=2.5, temperature=0.9, seed=11)


def _request(prompt: Any = PROMPT, negative: Any = NEGATIVE, tokens: int = 12, **more: Any) -> GenerationRequest:
    return GenerationRequest(prompt, tokens, SAMPLING, ignore_end=True, negative_ids=negative, **more)


def _tokens(engine: Engine, request: GenerationRequest) -> list[int | None]:
    return [advance.token for advance in engine.generate(request)]


@pytest.fixture(scope="module")
def alone() -> list[int | None]:
    """The answer of an engine that does nothing else."""
    with running(MODEL) as engine:
        return _tokens(engine, _request())


def test_it_is_what_two_models_say(alone: list[int]) -> None:
    """One reads the prompt, the other the negative prompt, and both the answer."""
    data = synthetic_model(MODEL)
    own, other = (plain_engine.Model(data).logits([*before, *alone][:-1], last=len(alone))
                  for before in (PROMPT, NEGATIVE))
    assert alone == [plain_engine.choose(row, SAMPLING.as_json(), SAMPLING.seed, PROMPT, alone[:place],
                                         negative=other[place]) for place, row in enumerate(own)]
    with running(MODEL) as engine:
        assert alone != _tokens(engine, _request(negative=[1]))
        assert alone != _tokens(engine, GenerationRequest(PROMPT, 12, Sampling(temperature=0.9, seed=11),
                                                          ignore_end=True))


@pytest.mark.parametrize("rows", [2, 3, 7])
def test_few_rows_change_nothing(alone: list[int], rows: int) -> None:
    """Prompts are read in pieces, whichever is the longer one."""
    with running(MODEL, rows=rows) as engine:
        assert alone == _tokens(engine, _request())
        assert _tokens(engine, _request(NEGATIVE, PROMPT)) == _tokens(engine, _request(NEGATIVE, PROMPT))


def test_others_beside_it_change_nothing(alone: list[int]) -> None:
    """Guided answers and others share passes; all slots are free and empty afterwards."""
    with running(MODEL, slots=5) as engine:
        scheduler, found, done = Scheduler(engine), dict[int, list[int | None]](), threading.Event()

        def submit(index: int) -> None:
            found[index] = []
            more = _request() if index % 2 else GenerationRequest(PROMPT, 20, Sampling(seed=index), ignore_end=True)
            scheduler.submit(more, f"t{index % 3}", lambda advance: found[index].append(advance.token),
                             on_error=lambda _error: done.set())
        for index in range(9):
            submit(index)
        handles = scheduler.submit(_request(), "t0", lambda advance: None)
        assert handles.wait(60)
        scheduler.close()
        for index in (1, 3, 5, 7):
            assert alone == [token for token in found[index] if token is not None][:12]
        assert not done.is_set()
        batcher = engine.acquire()
        assert 5 == batcher.free
        engine.release()


def test_one_that_needs_two_slots_is_not_passed_for_ever() -> None:
    """While another tenant's short answers come and go, a guided one gets both slots."""
    with running(MODEL, slots=2) as engine:
        scheduler, over = Scheduler(engine, tenants=["a", "b"]), threading.Event()
        count = [0]

        def again(*_of_the_last: Any) -> None:
            if not over.is_set() and count[0] < 400:
                count[0] += 1
                scheduler.submit(GenerationRequest(PROMPT, 2, ignore_end=True), "a",
                                 lambda advance: again() if advance.finish_reason else None)
        for _ in range(4):
            again()
        guided = scheduler.submit(_request(tokens=3), "b", lambda advance: None)
        assert guided.wait(60)
        over.set()
        assert count[0] < 300
        scheduler.close()


def test_what_cannot_run_is_refused() -> None:
    """Without a negative prompt, with one that is too long or no tokens, or without a second slot."""
    with running(MODEL) as engine:
        with pytest.raises(EngineError, match="needs a negative prompt"):
            engine.generation(_request(negative=()))
        with pytest.raises(EngineError, match="a token of the negative prompt is outside"):
            engine.generation(_request(negative=(1, -1)))
        with pytest.raises(CapacityError, match="the negative prompt has") as caught:
            engine.generation(_request(negative=[1] * engine.context))
        assert "prompt-too-long" == caught.value.code
        assert engine.context - 40 == engine.generation(_request(negative=[1] * 40, tokens=1 << 20)).left
        scheduler = Scheduler(engine, concurrent=1)
        with pytest.raises(CapacityError, match="takes the places of 2 answers; there is 1"):
            scheduler.submit(_request(), "t", lambda advance: None)
        scheduler.close()
    with running(MODEL, slots=1) as engine, pytest.raises(CapacityError) as caught:
        engine.generation(_request())
    assert "guidance-places" == caught.value.code


def test_a_cancelled_one_gives_both_slots_back() -> None:
    """Also while its prompts are read."""
    with running(MODEL, slots=2) as engine:
        batcher = engine.acquire()
        added = batcher.add(engine.generation(_request()))
        assert 0 == batcher.free
        with pytest.raises(CapacityError, match="all slots are in use"):
            batcher.add(engine.generation(_request()))
        batcher.run()
        batcher.remove(added)
        assert 2 == batcher.free
        engine.release()


@pytest.mark.parametrize("length", [PAGE + 1, PAGE + 2, 2 * PAGE + 1])
@pytest.mark.parametrize("tokens", [3, 40], ids=["short negative", "long negative"])
def test_a_prompt_that_is_kept_changes_nothing(length: int, tokens: int) -> None:
    """All of a prompt but its last token, or two, is there at the start: the negative prompt is read all the same, for
    a second answer, too, and a neighbour's answer does not notice."""
    prompt, negative = _tokens_of(length), _tokens_of(tokens)
    with running(MODEL) as engine:
        cold = _tokens(engine, _request(prompt, negative, 5))
    with running(MODEL, slots=5, context=256, prefix_nbytes=1 << 24) as engine:
        scheduler = Scheduler(engine, tenants=["a", "b"], concurrent=5, prefix_lifetime=60.0)
        try:
            assert scheduler.submit(GenerationRequest(prompt, 2, Sampling(), ignore_end=True), "a",
                                    lambda _: None).wait(60)
            failed: list[object] = []
            beside = scheduler.submit(GenerationRequest([1, 2, 3], 200, Sampling(), ignore_end=True), "b",
                                      lambda _: None, on_error=failed.append)
            answers: dict[int, list[int | None]] = {0: [], 1: []}
            requests = [_request(prompt, negative, 5, choice=choice) for choice in answers]

            def take(advance: Advance) -> None:
                answers[advance.events[0].choice].append(advance.token)

            assert scheduler.submit(requests[0], "a", take, on_error=failed.append, more=requests[1:]).wait(60)
            beside.cancel()
            assert beside.wait(60)
        finally:
            scheduler.close(60)
    assert [] == failed
    assert cold == answers[0] == answers[1]


def _tokens_of(length: int) -> list[int]:
    return [(7 * i * i + 3 * i) % 90 + 1 for i in range(length)]
