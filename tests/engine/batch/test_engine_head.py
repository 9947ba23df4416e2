"""The layer of a model that guesses: its logits, and answers with it and without."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.boot.planning.footprint import known_roles
from appliance.engine.batch import head as heads
from appliance.engine.batch.draft import GuessRequest
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from appliance.models.sources.sealed_resident import open_sealed_resident
from examples import plain_engine
from tests.goldens.make_head_goldens import KEPT
from tests.goldens.make_transformers_goldens import TOKENS
from tests.support import delta_models, guess_models, mixture_models
from tests.support.engines import kernels, opened
from tests.support.sealed_models import KEY, sealed
from tests.support.streams import stored

CONTEXT = 200
MODELS = {"qwen35.guessing": delta_models.model, "qwen35moe.guessing": delta_models.model,
          "glm4moe": mixture_models.model, "agreeing": guess_models.model}
GOLDENS = np.load(Path(__file__).parents[2] / "goldens/heads.npz")
CLOSE = {"glm4moe": 1 / 1000}  # as of mixtures; of others 1/5000, as of delta rules
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


@pytest.mark.parametrize("name", list(GOLDENS))
def test_the_publishers_logits(name: str) -> None:
    """After 32 tokens, and by the plain engine at positions before: within the tolerance, at the same best token."""
    expected, text = GOLDENS[name], TOKENS[:KEPT[-1] + 1]
    after, count = TOKENS[1:len(text) + 1], len(text)
    plain = plain_engine.Model(MODELS[name](name), "f16", CONTEXT)
    _, found = plain.guessed(plain.rows(text), after)
    with running(name) as engine:
        head, seen = engine._helper, []
        run = head._forward.run
        head._forward.run = lambda *given: (seen.append(run(*given).copy()), seen[-1])[1]
        engine._forward.run(text, range(count), [0] * count, [])
        head.note(0, 0, after)
        head.guess([GuessRequest(0, (), 1)])
        head.forget_all()
    for rows in (found[list(KEPT)], np.concatenate([found[list(KEPT[:-1])], seen[0]])):
        assert np.abs(expected - rows).max() <= CLOSE.get(name, 1 / 5000) * expected.std()
        assert np.array_equal(expected.argmax(axis=1), rows.argmax(axis=1))


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


@pytest.mark.parametrize("name", ["qwen35.guessing", "glm4moe"])
def test_a_sealed_model(name: str, tmp_path: Path) -> None:
    """Its layer that guesses has the bits of a plain file's, and answers are the same. Where the model is streamed the
    layer is refused by name, and guesses from the text change no answer."""
    text, request = IDS[:20], GenerationRequest([1, *IDS[1:9] * 4], 40, Sampling(temperature=0.5), ignore_end=True)
    found, answers = list[np.ndarray](), list[list[int | None]]()

    def run(engine: Engine) -> None:
        answers.append([advance.token for advance in engine.generate(request)])
        if engine._helper is None:
            return
        engine._forward.run(text, range(20), [0] * 20, [])
        engine._helper.note(0, 0, IDS[1:21])
        engine._helper.guess([GuessRequest(0, (), 1)])
        forward = engine._helper._forward
        found.append(forward._logits.view(np.float32)[:forward.boundary.limits.vocabulary].copy())
        engine._helper.forget_all()
    with running(name) as engine:
        run(engine)
    path = sealed(tmp_path, MODELS[name](name))
    options = EngineOptions(threads=1, slots=4, context_length=CONTEXT, heads=True)
    roles = functools.partial(known_roles, guesses=True)
    with closing(open_sealed_resident(path, KEY, header_sha256=None, roles=roles)) as source, Engine.open(
            source, options, kernels=kernels()) as engine:
        run(engine)
    assert np.array_equal(*found)
    _, make = stored("compiled sealed", tmp_path, MODELS[name](name), 1 << 14)
    with closing(make()) as source, pytest.raises(EngineError, match="not in memory") as caught:
        Engine.open(source, options, kernels=kernels())
    assert caught.value.code == "guess-head"
    with closing(make()) as source, Engine.open(
            source, EngineOptions(threads=1, slots=4, context_length=CONTEXT), kernels=kernels()) as engine:
        run(engine)
    assert answers[0] == answers[1] == answers[2]


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
