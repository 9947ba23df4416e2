"""Guesses for models whose layers keep a state: a wrong one leaves the state as if it had never been read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from appliance.engine.batch.speculate import PassCost
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.states import States
from appliance.engine.scheduler import Scheduler
from tests.support import family_models
from tests.support.engines import kernels, opened

KINDS = ("lfm2", "qwen35", "granitehybrid")
PHRASE = np.random.default_rng(1).integers(3, family_models.VOCABULARY, 12).tolist()


@contextmanager
def running(name: str, **options: Any) -> Iterator[Engine]:
    """An engine on a small model with states."""
    given = EngineOptions(**{"threads": 1, "slots": 6, "context_length": 300, **options})
    with opened(family_models.model(name)) as source, Engine.open(source, given, kernels=kernels()) as engine:
        yield engine


def _request(temperature: float, seed: int = 4, tokens: int = 120,
             prompt: list[int] | None = None) -> GenerationRequest:
    """A text that repeats itself, so that guesses are made, and does not always, so that some are wrong."""
    bias = dict.fromkeys(PHRASE[:3], 14.0)
    sampling = Sampling(temperature=temperature, seed=seed, logit_bias=bias, frequency_penalty=0.05)
    return GenerationRequest(prompt or [1, *PHRASE * 4], tokens, sampling, ignore_end=True)


@pytest.mark.parametrize("temperature", [0.0, 0.6])
@pytest.mark.parametrize("name", KINDS)
def test_answers_are_the_same(name: str, temperature: float) -> None:
    """In fewer passes; the state after each pass is that of an engine that reads token by token."""
    answers, passes, wrong = [], [], 0
    for speculate in (False, True):
        with running(name, speculate=speculate) as engine:
            put_back = engine._seats.put_back

            def counted(slot: int, positions: int, put_back: Any = put_back) -> None:
                nonlocal wrong
                wrong += 1
                put_back(slot, positions)
            engine._seats.put_back = counted
            answers.append([advance.token for advance in engine.generate(_request(temperature))])
            passes.append(engine._batcher.passes)
            assert not engine._cache.states._memory.view("u1").any()
    assert answers[0] == answers[1]
    assert passes[1] < passes[0]
    assert wrong


@pytest.mark.parametrize("name", KINDS)
def test_a_state_after_wrong_guesses(name: str) -> None:
    """It has the bits of one that read the same positions, and nothing else."""
    states: list[dict[int, bytes]] = []
    for speculate in (False, True):
        with running(name, speculate=speculate, slots=1) as engine:
            batcher, found = engine.acquire(), dict[int, bytes]()
            one = batcher.add(engine.generation(_request(0.6, tokens=60)))
            own, stride = engine._cache.states, engine._cache.states.stride
            while not one.generation.finished:
                batcher.run()
                first = one.slot * stride
                found[one.position] = own._memory.view("u1")[first:first + stride].tobytes()
            batcher.remove(one)
            engine.release()
            states.append(found)
    assert len(states[0]) > len(states[1])
    assert all(states[0][position] == state for position, state in states[1].items() if position in states[0])


@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_company_changes_nothing(kept: int) -> None:
    """Two answers at a time, with texts that are kept and without; the second turn may begin with a kept state."""
    def answers(speculate: bool) -> tuple[list[list[Any]], int]:
        with running("qwen35", speculate=speculate, prefix_nbytes=kept) as engine:
            if speculate:  # as if the model were large, and its states small beside it
                engine._batcher._guesses._pass_cost = PassCost(state=0.01)
            wrong, put_back = [], engine._seats.put_back
            engine._seats.put_back = lambda *given: (wrong.append(given), put_back(*given))
            scheduler = Scheduler(engine, tenants=["t"], prefix_lifetime=60.0 if kept else None)
            found: list[list[Any]] = []
            for turn in range(2):
                handles = []
                for seed in range(2):
                    prompt = [1, *PHRASE * 4] if not turn else [1, *PHRASE * 4, *found[seed], *PHRASE[:5]]
                    found.append([])
                    handles.append(scheduler.submit(_request(0.5 * (seed % 2), seed, 60, prompt), "t",
                                                    lambda advance, own=found[-1]: own.append(advance.token)))
                assert all(handle.wait(100) for handle in handles)
                found = [[token for token in each if token is not None] for each in found]
            scheduler.close()
            assert not engine._cache.states._memory.view("u1").any()
            return found, len(wrong)
    (with_guesses, wrong), (without, _) = answers(True), answers(False)
    assert with_guesses == without
    assert wrong


def test_rooms_of_states_that_are_set_aside() -> None:
    """A slot that has had one longest gives its room up; all are wiped."""
    with opened(family_models.model("lfm2")):
        states = States(family_models.architecture("lfm2"), 4, aside=2)
    memory = states._memory.view("u1").reshape(-1, states.stride)
    for slot in range(4):
        memory[slot] = slot + 1
    for slot in (0, 1, 0, 2):
        states.set_aside(slot)
    memory[:4] = 9
    for slot in (0, 2):
        states.put_back(slot)
    assert [1, 9, 3, 9] == memory[:4, 0].tolist()
    with pytest.raises(KeyError):
        states.put_back(1)
    for slot in range(4):
        states.wipe(slot)
    assert not memory.any()
    states.release()
