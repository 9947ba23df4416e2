"""A draft model changes no answer, and saves passes where it guesses right."""

from __future__ import annotations

from contextlib import closing

import pytest

from appliance.engine.batch.speculate import Pace
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from tests.support.engines import kernels, opened, synthetic_model
from tests.support.streams import stored

PROMPTS = [[1, *range(300 + i, 310 + 3 * i)] for i in range(6)]
MODEL = "Q8_0"

CASES = [
    ("greedy", {}, Sampling(temperature=0)), ("sampled", {}, Sampling(temperature=0.7, seed=3)),
    ("penalties", {}, Sampling(temperature=0.3, seed=9, repeat_penalty=1.2)),
    ("one token", {"max_tokens": 1}, Sampling(temperature=0)), ("two", {"max_tokens": 2}, Sampling(temperature=0)),
    ("stop string", {"stop": ("e", "ab")}, Sampling(temperature=0)),
    ("ends", {"ignore_end": False, "max_tokens": 60}, Sampling(temperature=1.5, seed=5)),
]


class Counted:
    """An engine's passes, counted."""

    def __init__(self, engine: Engine) -> None:
        self.passes, self._run = 0, engine._forward.run
        engine._forward.run = self  # type: ignore[method-assign, assignment]

    def __call__(self, *rows):
        """Run one pass."""
        self.passes += 1
        return self._run(*rows)


def answer(engine, prompt, values, sampling):
    """All advances of an answer."""
    request = GenerationRequest(prompt, **{"max_tokens": 40, "ignore_end": True, **values}, sampling=sampling)
    return [(advance.token, advance.text, advance.finish_reason) for advance in engine.generate(request)]


@pytest.fixture(scope="module", params=["Q8_0", "Q4_K", "Q2_K"])
def pair(request):
    """The model with and without a draft: itself (always right), and itself with coarser weights."""
    with (opened(synthetic_model(MODEL)) as source, opened(synthetic_model(request.param)) as draft,
          Engine.open(source, EngineOptions(threads=2, slots=6, context_length=160, speculate=False),
                      kernels=kernels()) as plain,
          Engine.open(source, EngineOptions(threads=2, slots=6, context_length=160),
                      kernels=kernels(), draft=draft) as fast):
        fast._helper.cost = 0.05  # as if it were small: so that it is asked
        yield plain, fast, request.param


@pytest.mark.parametrize(("values", "sampling"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_answers_are_the_same(pair, values, sampling):
    """Tokens, texts and ends do not depend on the draft, up to the last position of the context."""
    plain, fast, _ = pair
    for prompt in (*PROMPTS[:2], [1, *range(259, 400)]):
        assert answer(plain, prompt, values, sampling) == answer(fast, prompt, values, sampling)


@pytest.mark.parametrize("rows", [1, 3, 9])
def test_guesses_fit_into_narrow_passes(pair, rows):
    """Where passes have fewer rows than guesses would fill, by the text or by a draft, answers are the same."""
    plain, _, name = pair
    prompts = [[1, *[300 + i, 301, 302] * 9] for i in range(4)]
    bias = dict.fromkeys([300, 301, 302], 9.0)  # so that the text goes on as it did
    sampling = Sampling(temperature=0.2, seed=2, logit_bias=bias)
    expected = [[token for token, _, _ in answer(plain, prompt, {}, sampling)] for prompt in prompts]
    found: list[list[int]] = [[] for _ in prompts]
    with (opened(synthetic_model(MODEL)) as source, opened(synthetic_model(name)) as draft,
          Engine.open(source, EngineOptions(threads=2, context_length=160, rows=rows),
                      kernels=kernels(), draft=draft) as fast):
        fast._helper.cost = 0.05
        scheduler = Scheduler(fast)
        handles = [scheduler.submit(GenerationRequest(prompt, 40, sampling, ignore_end=True), "a",
                                    lambda advance, to=to: to.append(advance.token))
                   for prompt, to in zip(prompts, found, strict=True)]
        assert all(handle.wait(60) for handle in handles)
        scheduler.close()
    assert expected == found


def test_right_guesses_save_passes(pair):
    """A draft that is the model itself needs far fewer passes; a coarse one no more than without."""
    plain, fast, name = pair
    counts = []
    for engine in (plain, fast):
        counted = Counted(engine)
        answer(engine, PROMPTS[0], {"max_tokens": 100}, Sampling(temperature=0))
        counts.append(counted.passes)
        engine._forward.run = counted._run
    assert counts[1] <= (counts[0] // 3 if name == MODEL else counts[0])


def test_batches(pair):
    """Six answers that come and go, greedy and sampled, one cancelled: each as it is alone."""
    plain, fast, _ = pair
    samplings = [Sampling(temperature=0.6 * (i % 2), seed=i) for i in range(len(PROMPTS))]
    expected = [[token for token, _, _ in answer(plain, prompt, {"max_tokens": 10 + 5 * i}, samplings[i])]
                for i, prompt in enumerate(PROMPTS)]
    found: list[list[int]] = [[] for _ in PROMPTS]
    scheduler = Scheduler(fast, concurrent=5)
    try:
        handles = []
        for i, prompt in enumerate(PROMPTS):
            request = GenerationRequest(prompt, 10 + 5 * i, samplings[i], ignore_end=True)
            handles.append(scheduler.submit(request, "a", lambda advance, to=found[i]: to.append(advance.token)))
        handles[4].cancel()
        assert all(handle.wait(60) for handle in handles)
    finally:
        scheduler.close()
    shown = [token for token in found.pop(4) if token is not None]
    assert shown == expected.pop(4)[:len(shown)]
    assert expected == found
    assert {} == fast._helper._texts


def test_nothing_stays_in_the_cache(pair):
    """When an answer ends, the draft's keys and values of it are wiped."""
    _, fast, _ = pair
    answer(fast, PROMPTS[3], {}, Sampling(temperature=0))
    assert not fast._helper._cache._memory.view("u1").any()


def test_cancel(pair):
    """A cancelled answer has the tokens that it would have had."""
    plain, fast, _ = pair
    expected = [token for token, _, _ in answer(plain, PROMPTS[0], {}, Sampling(temperature=0))]
    request = GenerationRequest(PROMPTS[0], 40, Sampling(temperature=0), ignore_end=True)
    found: list[int | None] = []
    for advance in fast.generate(request, cancelled=lambda: len(found) > 7):
        found.append(advance.token)
    assert None is found.pop()
    assert expected[:len(found)] == found
    assert 8 <= len(found) < 40


def test_another_vocabulary_is_refused():
    """A draft whose tokens are other ones is refused by the key that differs."""
    data = synthetic_model(MODEL)
    other = data.replace("▁ba".encode(), "▁bA".encode(), 1)
    assert data != other
    with opened(data) as source, opened(other) as draft:
        with pytest.raises(EngineError, match=r"tokenizer\.ggml\.tokens differs") as caught:
            Engine.open(source, EngineOptions(threads=1), kernels=kernels(), draft=draft)
        assert "draft-vocabulary" == caught.value.code


@pytest.mark.parametrize(("cost", "share", "pays"), [(0.05, 1.0, True), (0.2, 0.9, True), (0.2, 0.0, False),
                                                     (1.0, 1.0, False), (0.5, 0.3, False)])
def test_guesses_are_made_where_they_pay(cost, share, pays):
    """A dear draft, or one that is seldom right, is left alone; a cheap good one is asked for more."""
    pace = Pace(cost)
    for _ in range(40):
        pace.record(1, int(_ * share) != int((_ + 1) * share))
    assert pays == (pace.count() > 0)


@pytest.mark.parametrize("kind", ["sealed", "compiled plain"])
def test_a_draft_whose_file_is_altered(kind, tmp_path):
    """It is asked no more: answers go on as they are without it, and nothing that it read of them is left."""
    data, prompt, sampling = synthetic_model(MODEL), PROMPTS[0], Sampling(temperature=0)
    path, make = stored(kind, tmp_path, data, 8192)
    with (opened(data) as source, closing(make()) as draft,
          Engine.open(source, EngineOptions(threads=2, context_length=160), kernels=kernels(), draft=draft) as engine):
        drafter = engine._helper
        assert drafter is not None
        drafter.cost = 0.05
        request = GenerationRequest(prompt, 40, sampling, ignore_end=True)
        advances = engine.generate(request)
        found = [next(advances).token for _ in range(9)]
        assert drafter._texts
        path.write_bytes(bytes(byte ^ 1 for byte in path.read_bytes()))
        found += [advance.token for advance in advances]
        assert "model-tampered" == draft.failure
        assert {} == drafter._texts
        assert not drafter._cache._memory.view("u1").any()
        again = [advance.token for advance in engine.generate(request)]
    with opened(data) as source, Engine.open(
            source, EngineOptions(threads=2, context_length=160, speculate=False), kernels=kernels()) as plain:
        expected = [token for token, _, _ in answer(plain, prompt, {}, sampling)]
    assert expected == found == again
