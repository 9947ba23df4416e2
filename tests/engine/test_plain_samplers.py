"""Answers over all samplers: the plain engine replays them bit for bit, and another CPU target gives the same."""

from __future__ import annotations

import base64
import dataclasses
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import Sampler
from appliance.kernels.runtime import targets
from appliance.policy.schema.sampling import PARAMETERS
from appliance.text.tokenizer import load
from examples import plain_engine
from tests.support import libraries, plain_healing, sampled_answers
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.sampled_answers import COUNT, MODEL, TOKENS, negative, prompt, settings


@pytest.fixture(scope="module")
def answered() -> list[list[int]]:
    """The engine's answers, with speculation."""
    with running(MODEL) as engine:
        return sampled_answers.answers(engine)


def test_every_sampler_is_among_them() -> None:
    """Each row of the table is on in some answer, and answers have orders of their own."""
    on = {row.name for row in PARAMETERS for index in range(COUNT) if getattr(settings(index), row.name) != row.off}
    assert on == {row.name for row in PARAMETERS} - {"mirostat_eta", "dry_base", "dry_penalty_last_n"}
    assert len({settings(index).samplers for index in range(COUNT)}) > 20


def test_the_plain_engine_replays_them(answered: list[list[int]]) -> None:
    """From the file, the prompt, settings and seed alone."""
    data = synthetic_model(MODEL)
    assert len(answered) == COUNT
    with opened(data) as source:
        pieces = plain_healing.pieces_of(load(source.metadata))
    for index, tokens in enumerate(answered):
        sampling, state = settings(index), dict[str, float]()
        read, text = plain_healing.taken_back(pieces, prompt(index), sampling.token_healing)
        masks = plain_healing.masks(pieces, text, tokens)
        rows, beside = (plain_engine.Model(data).logits([*before, *tokens][:-1], last=TOKENS) if before else [None] *
                        TOKENS for before in (read, negative(index)))
        said = [plain_engine.choose(row, sampling.as_json(), sampling.seed, read, tokens[:place], state, masks[place],
                                    beside[place]) for place, row in enumerate(rows)]
        assert said == tokens, dataclasses.asdict(sampling)


def test_speculation_changes_none(answered: list[list[int]]) -> None:
    """Guesses are kept only where they would have been chosen: samplers with a state, too."""
    with running(MODEL, speculate=False) as engine:
        assert sampled_answers.answers(engine) == answered


@pytest.mark.guests
@pytest.mark.parametrize("target", ["avx2"])
def test_another_target_gives_the_same(answered: list[list[int]], target: str) -> None:
    """In a process with the kernels of the other target."""
    best = targets.detect().name
    if target == best or target not in [each.name for each in targets.known()]:
        pytest.skip(f"{target} is not another target of this CPU")
    command = [sys.executable, "-m", "tests.support.sampled_answers", target, libraries.library(target)]
    found = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    assert [list(map(int, line.split())) for line in found.stdout.splitlines()] == answered


def test_masks_leave_candidates_alone() -> None:
    """With the mask of a constraint, the engine and the plain engine choose among the tokens that it allows."""
    rng, scratch = np.random.default_rng(3), Scratch(300, kernels())
    for index in range(COUNT):
        sampling, answer, state = settings(index), list[int](), dict[str, float]()
        sampler = Sampler(sampling, prompt(index), 300, scratch)
        for _ in range(8):
            logits = rng.normal(0, 3, 300).astype(np.float32)
            allowed = np.zeros(300, np.uint8)
            allowed[rng.choice(300, rng.choice([1, 2, 20, 299]), replace=False)] = 1
            mask = np.packbits(allowed, bitorder="little").tobytes()
            other = rng.normal(0, 3, 300).astype(np.float32) if sampling.guided else None
            token = sampler.choose(logits, mask, other).token
            assert allowed[token]
            assert token == plain_engine.choose(logits, sampling.as_json(), sampling.seed, prompt(index), answer, state,
                                                base64.b64encode(mask).decode(), other)
            sampler.accept(token)
            answer.append(token)
