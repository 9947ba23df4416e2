"""Guesses for models whose layers keep a state: a wrong one leaves the state as if it had never been read, and no row
is read twice."""

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
from appliance.engine.forward.states import States, log_nbytes
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from appliance.families.architecture import Delta, Mamba
from tests.support import family_models
from tests.support.engines import kernels, opened

KINDS = ("lfm2", "qwen35", "granitehybrid")
EVERY = (*KINDS, "qwen35moe", "nemotron_h")
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
    answers, passes, commits = [], [], []
    for speculate in (False, True):
        with running(name, speculate=speculate) as engine:
            commits = _watched(engine)
            answers.append([advance.token for advance in engine.generate(_request(temperature))])
            passes.append(engine._batcher.passes)
            assert not engine._cache.states._memory.view("u1").any()
    assert answers[0] == answers[1]
    assert passes[1] < passes[0]
    assert any(right < guesses for guesses, right in commits)
    assert any(right for _, right in commits)


def _watched(engine: Engine) -> list[tuple[int, int]]:
    """A list to which each commit adds how many guesses there were, and how many were right."""
    found, seats, expected = list[tuple[int, int]](), engine._seats, dict[int, int]()
    expect, commit = seats.expect_guesses, seats.commit

    def expecting(slot: int, count: int) -> None:
        expected[slot] = count
        expect(slot, count)

    def committing(slot: int, positions: int, right: int) -> None:
        found.append((expected[slot], right))
        commit(slot, positions, right)
    seats.expect_guesses, seats.commit = expecting, committing
    return found


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", EVERY)
def test_every_number_of_right_guesses(name: str, threads: int) -> None:
    """Logits of guesses, and of rows after as many of them as were right, are those of a text that is read row by row.
    So is the state, once the rows of the log are part of it."""
    ids = [1, *np.random.default_rng(7).integers(3, family_models.VOCABULARY, 89).tolist()]
    with running(name, slots=2, threads=threads) as engine:
        forward, seats, states = engine._forward, engine._seats, engine._cache.states
        memory = states._memory.view("u1")[:2 * states.stride].reshape(2, -1)
        with seats.claim([90, 90]) as [plain, guessing]:
            for slot in (plain, guessing):
                forward.run(ids[:20], range(20), [slot] * 20, [])
            position = 20
            for guesses in range(1, 6):
                for right in range(guesses + 1):
                    rows = 1 + guesses
                    text = [*ids[position:position + 1 + right], *([9] * (guesses - right))]
                    seats.expect_guesses(guessing, guesses)
                    found = forward.run(text, range(position, position + rows), [guessing] * rows, range(rows)).copy()
                    expected = [forward.run([token], [place], [plain], [0])[0].copy()
                                for place, token in enumerate(ids[position:position + 1 + right], position)]
                    assert np.array_equal(expected, found[:1 + right])
                    position += 1 + right
                    seats.commit(guessing, position, right)
                    assert states.logs.behind(guessing) == right
                    if guesses == 5:  # else the next guesses come after rows of the log
                        logits = [forward.run([ids[position]], [position], [slot], [0]).copy()
                                  for slot in (plain, guessing)]
                        assert np.array_equal(*logits)
                        assert np.array_equal(memory[plain], memory[guessing])
                        assert not states.logs.behind(guessing)
                        position += 1
            for slot in (plain, guessing):
                seats.give_back(slot)
            assert not states._memory.view("u1").any()


@pytest.mark.parametrize("name", KINDS)
def test_a_state_after_wrong_guesses(name: str) -> None:
    """It has the bits of one that read the same positions, without the right guesses of the last pass."""
    states: list[dict[int, bytes]] = []
    for speculate in (False, True):
        with running(name, speculate=speculate, slots=1) as engine:
            batcher, found = engine.acquire(), dict[int, bytes]()
            one = batcher.add(engine.generation(_request(0.6, tokens=60)))
            own, stride = engine._cache.states, engine._cache.states.stride
            while not one.generation.finished:
                batcher.run()
                first = one.slot * stride
                found[one.position - own.logs.behind(one.slot)] = own._memory.view("u1")[first:first + stride].tobytes()
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
            commits = _watched(engine)
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
            return found, sum(right < guesses for guesses, right in commits)
    (with_guesses, wrong), (without, _) = answers(True), answers(False)
    assert with_guesses == without
    assert wrong


def test_logs_of_few_slots() -> None:
    """A log that nothing is to be read in goes to another slot, and is wiped before. One that is to be read stays."""
    states = States(family_models.architecture("lfm2"), 4, logs=2)
    logs, memory = states.logs, states._memory.view("u1")
    whole, stride = memory[4 * states.stride:], log_nbytes(family_models.architecture("lfm2"))
    for slot in (0, 1):
        logs.expect(slot, 3)
    whole[:] = 7
    with pytest.raises(EngineError, match="all logs"):
        logs.expect(2, 1)
    logs.commit(0, 0)
    logs.commit(1, 2)
    assert (0, 2) == (logs.behind(0), logs.behind(1))
    logs.expect(2, 1)
    assert [0, 7] == sorted(whole[place * stride + 5].item() for place in range(2))
    assert (0, 0, 0) == logs.words(0, 9, 0)
    assert (2, 0) == logs.words(1, 9, 2)[1:]
    assert (0, 1) == logs.words(2, 2, 0)[1:]
    with pytest.raises(EngineError, match="2 rows of a log before position 0"):
        logs.words(1, 9, 0)
    for rows in (1, 17):
        with pytest.raises(EngineError, match=rf"{rows} rows with 1 guesses; allowed: 2\.\.16"):
            logs.words(2, rows, 0)
    for wrong in (0, 6):
        with pytest.raises(EngineError, match=r"allowed: 1\.\.5"):
            logs.expect(2, wrong)
    logs.done([1, 2])
    with pytest.raises(EngineError, match="which had fewer"):
        logs.commit(2, 2)
    assert not logs.behind(1)
    for slot in range(4):
        states.wipe(slot)
    assert not memory.any()
    states.release()


@pytest.mark.parametrize("name", EVERY)
def test_a_log_has_what_kernels_need(name: str) -> None:
    """Bytes of a row, by hand: what is convolved; of each head of a delta rule a query, a key, 16 numbers and a value;
    of each head of Mamba-2 what it gets, a key and 32 numbers."""
    shape = family_models.architecture(name)
    floats = 0
    for each in (layer.recurrence for layer in shape.every if layer.recurrence is not None):
        floats += each.columns
        floats += each.heads * (3 * each.size + 16) if isinstance(each, Delta) else 0
        floats += each.heads * (each.inner // each.heads + each.size + 32) if isinstance(each, Mamba) else 0
    assert 20 * floats <= log_nbytes(shape) < 20 * floats + 64 * shape.layers


def test_a_fork_needs_the_whole_state() -> None:
    """A text whose last rows are in a log is not forked."""
    with running("lfm2", slots=2) as engine:
        seats = engine._seats
        with seats.claim([60]) as [one], seats.claim([60], promise=False) as [other]:
            engine._forward.run(PHRASE, range(12), [one] * 12, [])
            seats.expect_guesses(one, 2)
            engine._forward.run(PHRASE[:3], range(12, 15), [one] * 3, [])
            seats.commit(one, 14, 1)
            with pytest.raises(EngineError, match="no state of 14 positions"):
                seats.fork(one, other, 14, 60)
            for slot in (one, other):
                seats.give_back(slot)
