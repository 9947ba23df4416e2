"""Tokens that a model's file keeps out of answers (`tokenizer.ggml.suppress_tokens`), as Gemma 4's does with images.

The judges are the plain engine, and the tokens that the same model chooses where the file keeps none out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.auditor import replay
from appliance.constraint.spec import RegexText
from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from examples import plain_engine
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.ggufs import I32, kv_array

PROMPT = [1, *range(40, 60)]
GREEDY = GenerationRequest(PROMPT, 24, Sampling(temperature=0.0), ignore_end=True)
WARM = GenerationRequest(PROMPT, 24, Sampling(temperature=1.5, top_k=5, seed=3, top_logprobs=1), ignore_end=True)


def _file(suppressed: tuple[int, ...] | None) -> bytes:
    more = () if suppressed is None else (kv_array("tokenizer.ggml.suppress_tokens", I32, list(suppressed)),)
    return family_models.model("gemma4", more=more)


def _tokens(data: bytes, request: GenerationRequest, *, speculate: bool = True) -> list[int]:
    with opened(data) as source, Engine.open(source, EngineOptions(threads=1, slots=4, context_length=128,
                                                                   speculate=speculate), kernels=kernels()) as engine:
        return [advance.token for advance in engine.generate(request) if advance.token is not None]


@pytest.mark.parametrize("request_", [GREEDY, WARM])
def test_they_are_never_chosen(request_: GenerationRequest, tmp_path: Path) -> None:
    """Greedily and by chance, with guesses and without; the plain engine chooses the same, of this file alone."""
    chosen = _tokens(_file(None), request_)
    barred = tuple(sorted(set(chosen)))
    data = _file(barred)
    found = _tokens(data, request_)
    assert len(chosen) == len(found)
    assert not set(found) & set(barred)
    assert found == _tokens(data, request_, speculate=False)
    answer, with_it, without = tmp_path / "answer.json", tmp_path / "with.gguf", tmp_path / "without.gguf"
    answer.write_text(json.dumps({"prompt_tokens": PROMPT, "tokens": found, "seed": request_.sampling.seed,
                                  "sampling": request_.sampling.as_json()}))
    with_it.write_bytes(data)
    without.write_bytes(_file(None))
    assert [0, 1] == [plain_engine.main([str(path), str(answer), "--context", "128"]) for path in (with_it, without)]


def test_a_receipts_replay_knows_them() -> None:
    """An answer is computed again as it was."""
    barred = tuple(sorted(set(_tokens(_file(None), GREEDY))))
    data = _file(barred)
    found = _tokens(data, GREEDY)
    for file, holds in ((data, True), (_file(None), False)):
        with opened(file) as source, Engine.open(source, EngineOptions(threads=1, slots=1, context_length=128),
                                                 kernels=kernels()) as engine:
            assert holds == (replay.check(engine, GREEDY, found, None).wrong is None)


def test_a_constraint_has_what_is_left() -> None:
    """A token must be allowed by both; where none is, the answer fails by name."""
    with opened(_file(None)) as source, Engine.open(source, EngineOptions(threads=1, slots=1, context_length=128),
                                                    kernels=kernels()) as engine:
        first, second = (engine.tokenizer.encode(text)[-1] for text in ("x", "y"))
    for barred, expected in (((first,), "y"), ((second,), "x")):
        with opened(_file(barred)) as source, Engine.open(
                source, EngineOptions(threads=1, slots=1, context_length=128), kernels=kernels()) as engine:
            constraint = engine.constraints.compile(RegexText("x|y"))
            asked = replace(GREEDY, constraint=constraint, ignore_end=False)
            assert expected == "".join(advance.text for advance in engine.generate(asked))


def test_beams_have_none() -> None:
    """The texts of a beam search are made of other tokens."""
    asked = GenerationRequest(PROMPT, 12, Sampling(), beam=Beam(width=3))
    texts = []
    for barred in (None, tuple(sorted(set(_tokens(_file(None), GREEDY))))):
        with opened(_file(barred)) as source, Engine.open(
                source, EngineOptions(threads=1, slots=4, context_length=128), kernels=kernels()) as engine:
            words = engine.tokenizer
            texts.append("".join(advance.text for advance in engine.generate(asked)))
            assert not barred or not any(words.decode([token]).strip() in texts[-1].split() for token in barred
                                         if token > 259)
    assert texts[0] != texts[1]
