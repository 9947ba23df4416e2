"""The layer of a model that guesses: its logits, and answers with it and without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from appliance.engine.batch import head as heads
from appliance.engine.batch.draft import GuessRequest
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from examples import plain_engine
from tests.support import delta_models, guess_models, mixture_models
from tests.support.engines import kernels, opened

CONTEXT = 200
MODELS = {"qwen35.guessing": delta_models.model, "qwen35moe.guessing": delta_models.model,
          "glm4moe": mixture_models.model, "agreeing": guess_models.model}
IDS = [1, *np.random.default_rng(3).integers(3, 300, 59).tolist()]


@contextmanager
def running(name: str, **options: Any) -> Iterator[Engine]:
    """An engine on a small model whose last layer guesses."""
    given = EngineOptions(**{"threads": 1, "slots": 4, "context_length": CONTEXT, "heads": True, **options})
    with opened(MODELS[name](name), guesses=True) as source, Engine.open(source, given, kernels=kernels()) as engine:
        yield engine


@pytest.mark.parametrize("kind", ["f16", "q8"])
@pytest.mark.parametrize("name", list(MODELS))
def test_the_plain_engines_bits(name: str, kind: str) -> None:
    """Logits of the first guess, after rows of the model, and of the second, after a row of its own."""
    plain = plain_engine.Model(MODELS[name](name), kind, CONTEXT)
    rows, first = plain.guessed(plain.rows(IDS[:30]), IDS[1:31])
    plain.position += 1
    _, second = plain.guessed(rows[-1:], [int(first[-1].argmax())])
    with running(name, kv_cache=kind) as engine:
        head, seen = engine._helper, []
        run = head._forward.run
        head._forward.run = lambda *given: (seen.append(run(*given).copy()), seen[-1])[1]
        engine._forward.run(IDS[:30], range(30), [0] * 30, [])
        head.note(0, 0, IDS[1:31])
        [guesses] = head.guess([GuessRequest(0, (), 2)])
        assert [int(first[-1].argmax()), int(second[-1].argmax())] == guesses
        for theirs, own in zip((first[-1], second[-1]), seen, strict=True):
            assert np.array_equal(theirs, own[0])
        head.forget_all()


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.parametrize("name", list(MODELS))
def test_answers_are_the_same(name: str, temperature: float) -> None:
    """Five answers over four slots, with guesses and without."""
    requests = [GenerationRequest(IDS[:9 + 7 * seed], 30 + seed, Sampling(seed=seed, temperature=temperature),
                                  ignore_end=True) for seed in range(5)]
    answers = []
    for guessing in (False, True):
        with running(name, heads=guessing, speculate=guessing) as engine:
            scheduler, found = Scheduler(engine), [[] for _ in requests]
            handles = [scheduler.submit(each, "t", found[index].append) for index, each in enumerate(requests)]
            assert all(handle.wait(60) for handle in handles)
            scheduler.close()
            answers.append([[advance.token for advance in each] for each in found])
            assert not any(engine._cache.states._memory.view("u1"))
            if guessing:
                assert engine._helper._cache.in_use == 0
    assert answers[0] == answers[1]


def test_a_text_that_outgrows_its_pages_begins_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The head keeps a few positions only: guesses stay right."""
    monkeypatch.setattr(heads, "HEAD_CONTEXT", 64)
    with running("agreeing") as engine:
        request = GenerationRequest(IDS[:20], 150, Sampling(temperature=0.0), ignore_end=True)
        assert 150 == sum(advance.token is not None for advance in engine.generate(request))
        assert engine._batcher.passes < 75


def test_guesses_are_of_the_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of others are not computed, and cost nothing."""
    with running("agreeing") as engine:
        whole = engine._helper.cost
    monkeypatch.setattr(heads, "TOKENS", 32)
    with running("agreeing") as engine:
        head = engine._helper
        assert head.cost < whole
        for first in range(0, 40, 8):
            engine._forward.run(IDS[first:first + 8], range(first, first + 8), [0] * 8, [])
            head.note(0, 0, IDS[first + 1:first + 9])
            [guesses] = head.guess([GuessRequest(0, (), 5)])
            assert len(guesses) == 5
            assert max(guesses) < 32
        head.forget_all()


def test_a_file_without_a_head_is_refused() -> None:
    """The error names the fix."""
    with pytest.raises(EngineError, match="no layer that guesses") as caught, running("qwen35"):
        pass
    assert 'speculation = "on"' in caught.value.hint


MODELS["qwen35"] = delta_models.model
