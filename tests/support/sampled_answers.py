"""Fifty answers of a small model over all samplers: `python -m tests.support.sampled_answers TARGET LIBRARY` prints
their tokens, one answer a line (LIBRARY -: none)."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine
from appliance.kernels.runtime import table
from appliance.policy.schema.sampling import SAMPLERS
from tests.support.engines import running

MODEL = "mixed"
COUNT, TOKENS = 50, 16
BREAKERS = ((5,), (7, 9))
# Values with which each sampler changes something, in its place or another one
VALUES: tuple[dict[str, Any], ...] = (
    {"top_k": 20}, {"top_p": 0.9}, {"min_p": 0.1}, {"typical_p": 0.8}, {"tfs_z": 0.9}, {"top_n_sigma": 1.5},
    {"epsilon_cutoff": 40.0}, {"eta_cutoff": 60.0}, {"temperature": 0.6}, {"temperature": 1.7},
    {"xtc_probability": 0.6, "xtc_threshold": 0.02},
    {"dynatemp_range": 0.7, "dynatemp_exponent": 0.8}, {"mirostat": 1, "mirostat_tau": 4.0}, {"mirostat": 2},
    {"repeat_penalty": 1.3, "repeat_last_n": 10}, {"frequency_penalty": 0.6, "presence_penalty": 0.3},
    {"dry_multiplier": 2.0, "dry_allowed_length": 1, "dry_breakers": BREAKERS}, {"logit_bias": {11: 4.0, 3: -9.0}},
    {"guidance_scale": 1.8}, {"guidance_scale": 0.6, "temperature": 1.3}, {"temperature": 0.0, "guidance_scale": 3.0},
    {"token_healing": 1}, {"token_healing": 3, "temperature": 1.5}, {"temperature": 0.0, "repeat_penalty": 1.2})


def settings(index: int) -> Sampling:
    """The settings of an answer: each sampler alone, then some of them in some order."""
    chance, values = random.Random(index), dict(VALUES[index % len(VALUES)])
    order = list(SAMPLERS)
    if index >= len(VALUES):
        for each in chance.sample(VALUES[:-1], 4):
            values |= each
        chance.shuffle(order)
    return Sampling(**values, samplers=tuple(order), seed=chance.getrandbits(64))


def prompt(index: int) -> list[int]:
    """Tokens that repeat, so that penalties and guesses have something to find."""
    return [1, *random.Random(-1 - index).choices(range(3, 12), k=14), 5, 6, 7, 8, 5, 6, 7]


def negative(index: int) -> list[int]:
    """A negative prompt, where the settings ask for one; the second one is a single token."""
    if not settings(index).guided:
        return []
    return [1, *random.Random(-99 - index).choices(range(3, 12), k=0 if index % 5 == 0 else 9)]


def answers(engine: Engine) -> list[list[int]]:
    """The tokens of all answers."""
    requests = [GenerationRequest(prompt(index), TOKENS, settings(index), ignore_end=True, negative_ids=negative(index))
                for index in range(COUNT)]
    return [[each.token for each in engine.generate(request) if each.token is not None] for request in requests]


if __name__ == "__main__":
    loaded = table.load(sys.argv[1], *([] if sys.argv[2] == "-" else [Path(sys.argv[2])]))
    with running(MODEL, table=loaded) as found:
        print("\n".join(" ".join(map(str, tokens)) for tokens in answers(found)))
