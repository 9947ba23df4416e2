"""Models whose layers keep a state of a text: it is part of the text, whatever is done with that, and is wiped with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from appliance.engine.decode.beam_search import Beam, BeamSearch
from appliance.engine.decode.events import ENTRY
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.states import state_nbytes
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

MODELS = ("lfm2", "lfm2moe", "qwen35", "qwen3next", "granitehybrid.experts", "nemotron_h_moe")
KINDS = ("lfm2", "qwen35", "granitehybrid")
IDS = [1, *np.random.default_rng(7).integers(3, family_models.VOCABULARY, 139).tolist()]


@contextmanager
def running(name: str = "lfm2", **options: Any) -> Iterator[Engine]:
    """An engine on a small model with states."""
    given = EngineOptions(**{"threads": 2, "slots": 4, "context_length": 200, **options})
    with opened(family_models.model(name)) as source, Engine.open(source, given, kernels=kernels()) as engine:
        yield engine


def _request(seed: int = 1, prompt: list[int] | None = None, tokens: int = 12, **more: Any) -> GenerationRequest:
    return GenerationRequest(prompt or IDS[:70 + 11 * seed], tokens, Sampling(seed=seed, temperature=0.8, **more),
                             ignore_end=True)


def _alone(name: str, requests: list[GenerationRequest]) -> list[list[Any]]:
    with running(name, threads=1) as engine:
        return [[advance.token for advance in engine.generate(each)] for each in requests]


def _states(engine: Engine) -> np.ndarray:
    return engine._cache.states._memory.view("u1")


@pytest.mark.parametrize("name", MODELS)
def test_company_changes_nothing(name: str) -> None:
    """Seven answers over four slots, which pass from one to the next, and pieces of prompts between them."""
    requests = [_request(seed, IDS[:7 + 19 * seed], 5 + 2 * seed) for seed in range(7)]
    with running(name, rows=32) as engine:
        scheduler, answers = Scheduler(engine), [[] for _ in requests]
        handles = [scheduler.submit(each, "t", answers[index].append) for index, each in enumerate(requests)]
        assert all(handle.wait(60) for handle in handles)
        scheduler.close()
        assert not _states(engine).any()
    assert _alone(name, requests) == [[advance.token for advance in answer] for answer in answers]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_several_answers_to_a_prompt(name: str, kept: int) -> None:
    """Each has the tokens that it has alone. Where texts are kept, others than the first read the last page of it."""
    requests = [GenerationRequest(IDS[:80], 12, Sampling(seed=seed, temperature=0.8), ignore_end=True, choice=seed)
                for seed in range(3)]
    with running(name, prefix_nbytes=kept) as engine:
        scheduler, tokens, rows = Scheduler(engine, tenants=["t"], prefix_lifetime=60.0 if kept else None), {}, []
        run = engine._forward.run
        engine._forward.run = lambda *given: (rows.append(len(given[0])), run(*given))[1]

        def note(advance: Any) -> None:
            for choice in {event.choice for event in advance.events}:
                tokens.setdefault(choice, []).append(advance.token)
        assert scheduler.submit(requests[0], "t", note, more=requests[1:]).wait(60)
        scheduler.close()
    assert _alone(name, requests) == [tokens[choice] for choice in range(3)]
    assert 3 * 11 + (80 + 2 * 16 if kept else 3 * 80) == sum(rows)


@pytest.mark.parametrize("name", KINDS)
def test_a_beam_search_copies_states(name: str) -> None:
    """Its texts are those of a search whose texts are each read from their beginning."""
    width, tokens, prompt = 3, 8, tuple(IDS[:70])
    with running(name, slots=6) as engine:
        def best(answer: tuple[int, ...]) -> list[tuple[int, float]]:
            sampling = Sampling(temperature=0.0, top_logprobs=2 * width)
            [advance] = engine.generate(GenerationRequest((*prompt, *answer), 1, sampling, ignore_end=True))
            packed = next(event for event in advance.events if type(event).__name__ == "Logprobs").packed
            return list(ENTRY.iter_unpack(packed))[1:]
        search = BeamSearch(Beam(width), len(prompt), tokens, ())
        while not search.over:
            search.step([best(each.tokens) for each in search.live])
        generation = engine.generation(GenerationRequest(prompt, tokens, beam=Beam(width), ignore_end=True))
        batcher = engine.acquire()
        sequence = batcher.add(generation)
        while not generation.finished:
            batcher.run()
        batcher.remove(sequence)
        engine.release()
        assert [each.tokens for each in search.results()] == [each.tokens for each in generation.search.results()]
        assert not _states(engine).any()


@pytest.mark.parametrize("name", KINDS)
def test_a_context_that_is_full_is_read_again(name: str) -> None:
    """After its older half was dropped, logits are those of a prompt of what stayed."""
    with running(name, slots=1) as engine:
        batcher, rows = engine.acquire(), []
        one = batcher.add(engine.generation(GenerationRequest(IDS, 150, Sampling(seed=3, temperature=0.9),
                                                              ignore_end=True, shift_keep=1)))
        advance = one.generation.advance

        def seen(row: np.ndarray, beside: None = None) -> Any:
            rows.append(row.copy())
            return advance(row, beside)
        one.generation.advance = seen
        while not one.generation.finished:
            batcher.run()
        text, tokens = one.text, one.generation.tokens
        batcher.remove(one)
        engine.release()
        assert len(text) < len(IDS) + len(tokens)
        assert np.array_equal(logits_of(engine, text[:-1], last=1)[0], rows[-1])


def test_a_negative_prompt_has_a_state_of_its_own() -> None:
    """Beside others, a guided answer is what it is alone."""
    requests = [GenerationRequest(IDS[:60], 9, Sampling(seed=2, temperature=0.7, guidance_scale=1.6), ignore_end=True,
                                  negative_ids=IDS[20:90]), _request(4)]
    with running(rows=48) as engine:
        scheduler, answers = Scheduler(engine), [[] for _ in requests]
        handles = [scheduler.submit(each, "t", answers[index].append) for index, each in enumerate(requests)]
        assert all(handle.wait(60) for handle in handles)
        scheduler.close()
    assert _alone("lfm2", requests) == [[advance.token for advance in answer] for answer in answers]


def test_passes_of_one_size() -> None:
    """Dummy rows begin anew in each pass; a timed pass leaves nothing, and answers stay as they are."""
    with running(steady=True, rows=96, slots=2) as engine:
        engine.fix(96)
        assert 0 < engine.pass_seconds(96) < 60
        assert [advance.token for advance in engine.generate(_request())] == _alone("lfm2", [_request()])[0]


@pytest.mark.parametrize("name", KINDS)
def test_a_state_does_not_go_back(name: str) -> None:
    """Positions continue the state, or begin anew, with the bits of an empty slot."""
    with running(name, slots=2) as engine:
        forward, seats = engine._forward, engine._batcher.seats
        with seats.claim([180, 180]) as slots:
            one, other = slots
            first = forward.run(IDS[:40], range(40), [one] * 40, [39]).copy()
            for position in (1, 39, 41):
                with pytest.raises(EngineError):
                    forward.run(IDS[:1], [position], [one], [])
            for refused in (lambda: seats.cut(one, 39), lambda: seats.rewind(one, 20),
                            lambda: seats.fork(one, other, 39, 180)):
                with pytest.raises(EngineError, match="state"):
                    refused()
        assert np.array_equal(first, forward.run(IDS[:40], range(40), [one] * 40, [39]))


@pytest.mark.parametrize("name", KINDS)
def test_a_fork_has_the_state(name: str) -> None:
    """It goes on as the other one does; and each is wiped with its text."""
    with running(name, slots=3) as engine:
        forward, seats = engine._forward, engine._batcher.seats
        states = _states(engine)[:3 * engine._cache.states.stride].reshape(3, -1)  # without logs
        expected = logits_of(engine, IDS[:75], last=1)
        assert not states.any()
        with seats.claim([180]) as [one], seats.claim([180], promise=False) as [other]:
            forward.run(IDS[:70], range(70), [one] * 70, [])
            seats.fork(one, other, 70, 180)
            forward.run(IDS[100:110], range(70, 80), [one] * 10, [])
            found = forward.run(IDS[70:75], range(70, 75), [other] * 5, [4])
            assert np.array_equal(expected, found)
            assert states[one].any()
            assert not np.array_equal(states[one], states[other])
            seats.rewind(one, 0)
            assert (False, True) == (states[one].any(), states[other].any())
            for slot in (one, other):
                seats.give_back(slot)
            assert not states.any()


def _kept(scheduler: Scheduler, prompt: list[int], tokens: int = 40, tenant: str = "a") -> tuple[int, list[int]]:
    """Tokens of a prompt that were not read, and those of its answer."""
    answer: list[int] = []
    handle = scheduler.submit(_request(9, prompt, tokens), tenant, lambda advance: answer.append(advance.token))
    assert handle.wait(60)
    return handle.cached_tokens, answer


@contextmanager
def _keeping(nbytes: int = 1 << 20, tenants: tuple[str, ...] = ("a", "b"), **options: Any) -> Iterator[Any]:
    with running(prefix_nbytes=nbytes, **options) as engine:
        scheduler = Scheduler(engine, tenants=tenants, prefix_lifetime=60.0)
        try:
            yield engine, scheduler
        finally:
            scheduler.close()
        assert not _states(engine).any()
        assert not engine._cache._memory.view("u1").any()


@pytest.mark.parametrize(("name", "rows"), [("lfm2", 512), ("lfm2", 48), ("qwen35", 48)])
def test_a_kept_text_has_its_state(name: str, rows: int) -> None:
    """A chat's next turn begins at the last page of the turn before, answer included. Texts with another end find what
    they share once two parted there. Answers are those of an engine that keeps nothing."""
    turns = [IDS[:75]]
    with _keeping(name=name, rows=rows) as (engine, scheduler):
        for expected in (0, 64, 128):
            found, answer = _kept(scheduler, turns[-1])
            assert expected == found
            assert _alone(name, [_request(9, turns[-1], 40)]) == [answer]
            turns.append([*turns[-1], *answer, *IDS[90:100]])
        assert (128, _alone(name, [_request(9, turns[2][:150], 5)])) == (
            (cached := _kept(scheduler, turns[2][:150], 5))[0], [cached[1]])
        others = [[*turns[0][:70], *IDS[start:start + 50]] for start in (3, 30, 60)]
        found = [_kept(scheduler, each, 3) for each in others]
        assert [64, 64, 64] == [cached for cached, _ in found]
        assert _alone(name, [_request(9, each, 3) for each in others]) == [answer for _, answer in found]
        assert 0 == _kept(scheduler, turns[0], tenant="b")[0]
        assert engine.keeps_prefixes


def test_texts_that_part_within_a_page_apart() -> None:
    """The first text leaves a state at its own end only; the second leaves one where they part, and the third finds it.
    """
    texts = [[*IDS[:130], *IDS[start:start + 9]] for start in (3, 20)]
    with _keeping() as (_, scheduler):
        long = [*IDS, *IDS[:59]]
        assert 0 == _kept(scheduler, long[:195], 1)[0]
        assert [0, 128] == [_kept(scheduler, each, 1)[0] for each in texts]


def test_a_full_share_lets_states_go() -> None:
    """Of many texts only the last ones are found; nothing of another tenant's goes."""
    shape = family_models.architecture("lfm2")
    texts = [[1, *np.random.default_rng(seed).integers(3, family_models.VOCABULARY, 79).tolist()] for seed in range(8)]
    with _keeping(state_nbytes(shape) * 4 + 6 * (16384 + state_nbytes(shape))) as (engine, scheduler):
        snapshots = engine._batcher.texts._prefixes.snapshots
        assert 1 <= min(snapshots.shares.values()) <= max(snapshots.shares.values()) <= 3
        assert 0 == _kept(scheduler, texts[0], 1, "b")[0]
        assert [0] * 7 == [_kept(scheduler, each, 1)[0] for each in texts[1:]]
        assert (64, 0, 64) == (_kept(scheduler, texts[7], 1)[0], _kept(scheduler, texts[1], 1)[0],
                               _kept(scheduler, texts[0], 1, "b")[0])


def test_pages_without_room_for_a_state_are_not_kept() -> None:
    """No text could begin with them."""
    shape = family_models.architecture("lfm2")
    with _keeping(4 * state_nbytes(shape) + 16384, ("a",)) as (_, scheduler):
        assert [0, 0] == [_kept(scheduler, IDS, 3, "a")[0] for _ in range(2)]


def test_a_search_that_ends_in_its_prompt_keeps_whole_pages() -> None:
    """Of a prompt that was read in part no page is kept that is filled in part."""
    with opened(family_models.model("llama")) as source, Engine.open(
            source, EngineOptions(threads=2, slots=4, context_length=200, rows=100, prefix_nbytes=1 << 20),
            kernels=kernels()) as engine:
        batcher = engine.acquire()
        engine.keep_prefixes(("a",), 60.0)
        one = batcher.add(engine.generation(GenerationRequest(IDS, 3, beam=Beam(2), ignore_end=True)), "a")
        while one.position == 0:
            batcher.run()
        read = one.position
        batcher.remove(one)
        again = batcher.add(engine.generation(_request(prompt=IDS)), "a")
        assert read // 64 * 64 == again.cached
        engine.release()


def test_refusals_name_the_state() -> None:
    """A draft model that has one."""
    with (opened(family_models.model("lfm2")) as source, opened(family_models.model("llama")) as other,
          pytest.raises(EngineError, match="the draft model keep a state")):
        Engine.open(other, EngineOptions(context_length=64), kernels=kernels(), draft=source)


def test_layers_with_a_state_have_no_pages() -> None:
    """The bytes of a page are those of the layers that attend; a state has no more than its rows."""
    shape = family_models.architecture("lfm2")
    with running() as engine:
        assert 2 * 2 * 64 * 32 * 2 == engine._cache.page_stride  # two heads of one layer, keys and values
        assert 3 * 2 * 4 * shape.embedding == engine._cache.states.stride == state_nbytes(shape)
