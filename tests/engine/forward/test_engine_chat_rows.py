"""A chat of ten turns with a long beginning, by a model whose layers keep states: from the second turn on a page of the
turn before is read again at most, also where each turn has a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.kernels.layouts.attention import PAGE
from tests.support import family_models, shelves
from tests.support.engines import kernels, opened

BEGINNING, TURNS, ANSWER, QUESTION = 4000, 10, 20, 30
CONTEXT = BEGINNING + TURNS * (ANSWER + QUESTION) + ANSWER


def _long(name: str, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setitem(family_models.COMMON, "context_length", 8192)
    return family_models.model.__wrapped__(name)  # what is kept for others has their context


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lfm2", "granitehybrid"])
@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_are_read_again(name: str, restarts: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of each turn are those of its question, of its answer, and of less than a page before; the last answer is
    that of an engine that keeps nothing."""
    disk, random = shelves.blank(tmp_path, 64 << 20), np.random.default_rng(5)
    prompt: list[int] = [1, *random.integers(3, family_models.VOCABULARY, BEGINNING - 1).tolist()]
    options = EngineOptions(threads=2, slots=1, context_length=CONTEXT, rows=256, prefix_nbytes=16 << 20)
    read, asked, answer = list[int](), list[int](), list[int]()
    with opened(_long(name, monkeypatch)) as source, Engine.open(source, options, kernels=kernels()) as engine:
        run = engine._forward.run

        def counted(tokens: Any, *more: Any) -> Any:
            read[-1] += len(tokens)
            return run(tokens, *more)
        engine._forward.run = counted  # type: ignore[method-assign]
        scheduler = None
        for _ in range(TURNS):
            if scheduler is None:
                living = shelves.start(disk, engine.page)
                scheduler = Scheduler(engine, tenants=("a",), prefix_lifetime=600.0, shelf=living.shelf)
            read.append(0)
            asked, answer = prompt, []
            handle = scheduler.submit(_request(asked), "a", lambda advance, answer=answer: answer.append(advance.token))
            assert handle.wait(60)
            prompt = [*asked, *answer, *random.integers(3, family_models.VOCABULARY, QUESTION).tolist()]
            if restarts:
                scheduler.close()
                living.close()
                scheduler = None
        if scheduler is not None:
            scheduler.close()
            living.close()
        assert BEGINNING <= read[0] <= BEGINNING + ANSWER
        assert max(read[1:]) < PAGE + ANSWER + QUESTION + ANSWER
        assert max(read[1:]) <= 0.15 * read[0]
        assert answer == [advance.token for advance in engine.generate(_request(asked))]


def _request(prompt: list[int]) -> GenerationRequest:
    return GenerationRequest(tuple(prompt), ANSWER, Sampling(seed=4, temperature=0.8), ignore_end=True)
