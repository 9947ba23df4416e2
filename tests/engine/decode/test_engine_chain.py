"""Each sampler, in any order with others, against its plain twin: the same tokens; and over many draws."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter

import numpy as np
import pytest

from appliance.engine.decode.chain.candidates import Candidates
from appliance.engine.decode.chain.guidance import guide
from appliance.engine.decode.chain.narrowings.table import NARROWINGS
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import Sampler, Sampling
from appliance.errors import EngineError
from appliance.policy.schema.sampling import SAMPLERS
from examples import plain_engine
from tests.goldens import make_arithmetic_vectors as vectors
from tests.support.engines import kernels
from tests.support.extent import examples

SCRATCH = Scratch(2000, kernels())
DRAWS = 1000

# For each sampler, its parameters over a grid
GRID = {
    "penalties": {"repeat_penalty": [0.01, 0.8, 1.3], "repeat_last_n": [0, 3, 64], "frequency_penalty": [0.0, 0.4],
                  "presence_penalty": [0.0, -0.7]},
    "dry": {"dry_multiplier": [0.8, 5.0], "dry_base": [1.0, 1.75, 9.0], "dry_allowed_length": [0, 1, 3],
            "dry_penalty_last_n": [-1, 0, 7], "dry_breakers": [(), ((2,), (0, 1), (1, 1, 3))]},
    "temperature": {"temperature": [0.0, 1e-39, 0.01, 0.7, 2.5], "dynatemp_range": [0.0, 0.5, 3.0],
                    "dynatemp_exponent": [0.0, 0.5, 1.0, 2.0]},
    "mirostat": {"mirostat": [1, 2], "mirostat_tau": [0.0, 2.0, 5.0], "mirostat_eta": [0.0, 0.1, 1.0],
                 "temperature": [1.0, 0.5]},
    "top_k": {"top_k": [1, 2, 7, 40, 5000]},
    "top_p": {"top_p": [0.0, 0.05, 0.5, 0.95, 1 - 1e-12]},
    "min_p": {"min_p": [1e-9, 0.05, 0.5, 1.0]},
    "typ_p": {"typical_p": [0.0, 0.05, 0.5, 0.95]},
    "tfs_z": {"tfs_z": [0.0, 0.3, 0.9, 0.99]},
    "top_n_sigma": {"top_n_sigma": [0.01, 0.5, 1.0, 3.0]},
    "epsilon_cutoff": {"epsilon_cutoff": [0.001, 3.0, 900.0, 10_000.0]},
    "eta_cutoff": {"eta_cutoff": [0.001, 3.0, 900.0, 10_000.0]},
    "guidance_scale": {"guidance_scale": [0.0, 0.5, 1.5, 3.0, 20.0, 100.0], "temperature": [1.0, 3.0],
                       "repeat_penalty": [1.0, 1.3]},
    "xtc": {"xtc_probability": [0.3, 1.0], "xtc_threshold": [0.0, 0.05, 0.2, 0.5, 1.0]},
}


def _points(name):
    grid = GRID[name]
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _agree(sampling, vocabulary, tokens, rng):
    """As many tokens as an answer gets are those of the twin, and no logit changes."""
    prompt, answer, state = rng.integers(0, min(vocabulary, 4), 12).tolist(), [], {}
    sampler = Sampler(sampling, prompt, vocabulary, SCRATCH)
    for _ in range(tokens):
        logits = rng.normal(0, rng.choice([0.1, 2, 6]), vocabulary).astype(np.float32)
        if rng.random() < 0.4:
            logits = np.round(logits)  # many equal ones
        negative = np.roll(logits, 1) + rng.normal(0, 1, vocabulary).astype(np.float32) if sampling.guided else None
        before = [None if row is None else row.tobytes() for row in (logits, negative)]
        token = sampler.choose(logits, None, negative).token
        assert token == sampler.choose(logits, None, negative).token
        assert token == plain_engine.choose(logits, sampling.as_json(), sampling.seed, prompt, answer, state,
                                            negative=negative)
        assert before == [None if row is None else row.tobytes() for row in (logits, negative)]
        answer.append(token)
        sampler.accept(token)


def test_the_grid_and_the_twin_have_every_sampler():
    """One that comes must come into both."""
    assert {*GRID} == {*SAMPLERS, "mirostat", "guidance_scale"}
    assert plain_engine.ORDER == SAMPLERS
    assert plain_engine.SETTINGS == {**Sampling().as_json(), "samplers": SAMPLERS, "dry_breakers": ()}


@pytest.mark.parametrize("name", GRID)
def test_each_sampler_is_its_plain_twin(name):
    """Over the grid of its parameters, and vocabularies of one token to some chunks of sums."""
    rng = np.random.default_rng(11)
    for index, point in enumerate(_points(name)):
        for vocabulary in (1, 3, 50, 700):
            _agree(Sampling(**point, seed=index), vocabulary, 6, rng)


@pytest.mark.parametrize("seed", range(8))
def test_any_of_them_in_any_order(seed):
    """Some samplers with some values, in some order, of which some are left out."""
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    for _ in range(examples(30, 60)):
        values = {}
        for name in GRID:
            if chance.random() < (0.15 if name in ("mirostat", "guidance_scale") else 0.35):
                values |= chance.choice(_points(name))
        order = list(SAMPLERS)
        if chance.random() < 0.7:
            chance.shuffle(order)
            del order[chance.randint(0, len(order)):]
        sampling = Sampling(**values, samplers=tuple(order), logit_bias=chance.choice([{}, {0: 3.0}]),
                            seed=chance.getrandbits(64))
        _agree(sampling, chance.choice([1, 2, 5, 50, 300, 2000]), 5, rng)


@pytest.mark.parametrize("key", ["choices", "chains", "guided"])
def test_answers_of_the_specifications_vectors(key):
    """Each of its answers, token by token."""
    logits, negative = (vectors.labelled(label, 40) * np.float32(4) for label in ("choice", "negative"))
    for case in json.loads(vectors.VECTORS.read_text())[key]:
        values = dict(case["settings"])
        values["logit_bias"] = {int(token): bias for token, bias in values["logit_bias"].items()}
        for name in ("samplers", "dry_breakers"):
            values[name] = tuple(tuple(each) if isinstance(each, list) else each
                                 for each in values.get(name, SAMPLERS if name == "samplers" else ()))
        sampler = Sampler(Sampling(**values, seed=case["seed"]), case["prompt"], 40, SCRATCH)
        for token in case["answer"]:
            assert sampler.choose(logits, None, negative if key == "guided" else None).token == token
            sampler.accept(token)


def test_a_temperature_counts_where_it_stands():
    """A high one before `top_p` lets more tokens stay; penalties after it are not divided by it."""
    logits = np.log(np.array([0.6, 0.3, 0.07, 0.03], np.float32))

    def drawn(order):
        sampling = {"temperature": 3.0, "top_p": 0.7, "samplers": order}
        return {Sampler(Sampling(**sampling, seed=seed), [], 4, SCRATCH).choose(logits).token for seed in range(200)}
    assert drawn(("top_p", "temperature")) == {0, 1}
    assert drawn(("temperature", "top_p")) == {0, 1, 2}

    def greedy(order):
        sampler = Sampler(Sampling(temperature=0.2, top_k=1, presence_penalty=1.0, samplers=order), [], 2, SCRATCH)
        sampler.accept(0)
        return sampler.choose(np.array([0.5, 0.0], np.float32)).token
    assert greedy(("penalties", "temperature", "top_k")) == 1
    assert greedy(("temperature", "penalties", "top_k")) == 0


def test_a_sampler_that_is_left_out_is_off():
    """Whatever its parameter says."""
    logits = np.zeros(50, np.float32)
    some = {Sampler(Sampling(top_k=1, temperature=0.0, seed=seed, samplers=("top_p",)), [], 50, SCRATCH)
            .choose(logits).token for seed in range(300)}
    assert len(some) == 50


SHARES = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])


@pytest.mark.parametrize(("values", "expected"), [
    ({"top_k": 3}, SHARES * [1, 1, 1, 0, 0, 0]),
    ({"top_p": 0.7}, SHARES * [1, 1, 1, 0, 0, 0]),
    ({"min_p": 0.3}, SHARES * [1, 1, 1, 0, 0, 0]),
    ({"typical_p": 0.3}, SHARES * [0, 1, 1, 0, 0, 0]),  # surprises of 1.39 and 1.90 nats, around 1.53
    ({"epsilon_cutoff": 700.0}, SHARES * [1, 1, 1, 1, 0, 0]),
    ({"eta_cutoff": 1500.0}, SHARES * [1, 1, 1, 1, 0, 0]),  # the lesser of 0.15 and 0.387 * 0.217
    ({"top_n_sigma": 1.0}, SHARES * [1, 1, 0, 0, 0, 0]),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.09}, SHARES * [0, 0, 0, 1, 1, 1]),
    ({"xtc_probability": 0.25, "xtc_threshold": 0.2},  # 0.4 goes in a quarter of all draws
     0.75 * SHARES + 0.25 * SHARES * [0, 1, 1, 1, 1, 1] / 0.6),
    ({"temperature": 0.5}, SHARES**2),
    ({"temperature": 2.0}, SHARES**0.5),
    ({"temperature": 1.0, "dynatemp_range": 0.5, "dynatemp_exponent": 0.0}, SHARES ** (1 / 1.5)),
    ({"mirostat": 2, "mirostat_tau": 1.0}, SHARES * [1, 1, 0, 0, 0, 0]),  # at first: no more surprise than 2 bits
    ({"mirostat": 1, "mirostat_tau": 0.0}, SHARES * [1, 0, 0, 0, 0, 0]),
    ({"logit_bias": {0: -100.0}}, SHARES * [0, 1, 1, 1, 1, 1]),
])
def test_a_thousand_draws(values, expected):
    """Tokens come about as often as the definition of the sampler says, and others never: chi-squared over seeds."""
    logits = np.log(SHARES).astype(np.float32)
    samplers = (Sampler(Sampling(**values, seed=seed), [], 6, SCRATCH) for seed in range(DRAWS))
    found = Counter(sampler.choose(logits).token for sampler in samplers)
    expected = expected / expected.sum() * DRAWS
    assert {*found} == set(np.flatnonzero(expected).tolist())
    kept = expected > 0
    seen = np.array([found[token] for token in range(6)])
    assert ((seen - expected)[kept] ** 2 / expected[kept]).sum() < 20.5  # p = 0.001 with five degrees of freedom


OTHER = np.array([0.1, 0.3, 0.2, 0.2, 0.15, 0.05])


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 2.0])
def test_guidance_over_a_thousand_draws(scale):
    """Shares are those of the prompt to the power of the scale, times those of the negative prompt to the rest."""
    logits, negative = (np.log(shares).astype(np.float32) + 3 for shares in (SHARES, OTHER))
    found = Counter(Sampler(Sampling(guidance_scale=scale, seed=seed), [], 6, SCRATCH)
                    .choose(logits, None, negative).token for seed in range(DRAWS))
    expected = SHARES**scale * OTHER ** (1 - scale)
    expected = expected / expected.sum() * DRAWS
    assert sum((found[token] - expected[token]) ** 2 / expected[token] for token in range(6)) < 20.5


@pytest.mark.parametrize("size", [1, 40, 2000])
def test_guided_logits_are_those_of_transformers(size):
    """n + scale (l - n) of log-softmaxes, in more precise numbers; a token with no chance stays without one."""
    rng = np.random.default_rng(size)
    for scale in (0.0, 0.7, 1.5, 10.0):
        rows = rng.normal(0, 4, (2, size)).astype(np.float32)
        own, other = (row - np.log(np.exp(row).sum()) for row in (each.astype(np.longdouble) for each in rows))
        candidates = Candidates(rows[0], SCRATCH, lambda _domain: 0.0)
        guide(candidates, rows[1], scale)
        np.testing.assert_allclose(candidates.logits, (other + scale * (own - other)).astype(np.float64), rtol=1e-6,
                                   atol=1e-5)
    rows[0][-1:] = -np.inf
    candidates = Candidates(rows[0], SCRATCH, lambda _domain: 0.0)
    if size > 1:
        guide(candidates, rows[1], 1.5)
        assert -1600 < candidates.logits[-1] < -1400


def test_guidance_without_logits_is_an_error():
    """As are those of another vocabulary, and those that are not numbers."""
    sampler = Sampler(Sampling(guidance_scale=2.0), [], 6, SCRATCH)
    for negative in (None, np.zeros(5, np.float32), np.full(6, np.nan, np.float32)):
        with pytest.raises(EngineError, match="negative prompt"):
            sampler.choose(np.zeros(6, np.float32), None, negative)


def test_penalties_over_a_thousand_draws():
    """A token that the answer has twice is e^-(2 f + p) times as likely; one that would repeat is held back by DRY."""
    logits = np.log(SHARES).astype(np.float32)
    factors = {"frequency_penalty": np.exp(-2 * 0.5), "presence_penalty": np.exp(-0.5)}
    for name, factor in factors.items():
        found = Counter()
        for seed in range(DRAWS):
            sampler = Sampler(Sampling(**{name: 0.5}, seed=seed), [], 6, SCRATCH)
            sampler.accept(0)
            sampler.accept(0)
            found[sampler.choose(logits).token] += 1
        expected = 0.4 * factor / (0.4 * factor + 0.6)
        assert found[0] / DRAWS == pytest.approx(expected, abs=0.05)
    repeating = [5, 4, 3, 0, 2, 5, 4, 3]  # a 0 would go on with 5 4 3
    found = Counter(Sampler(Sampling(dry_multiplier=0.8, dry_base=2.0, dry_allowed_length=1, seed=seed), repeating, 6,
                            SCRATCH).choose(logits).token for seed in range(DRAWS))
    factor = np.exp(-0.8 * 2.0**2)
    assert found[0] / DRAWS == pytest.approx(0.4 * factor / (0.4 * factor + 0.6), abs=0.03)


@pytest.mark.slow
def test_mirostat_holds_the_surprise():
    """Over a thousand tokens of a flat distribution the mean surprise comes near its target, by both versions."""
    rng = np.random.default_rng(2)
    for version, target in itertools.product((1, 2), (2.0, 4.0)):
        sampling, state, answer, surprises = Sampling(mirostat=version, mirostat_tau=target, seed=7), {}, [], []
        sampler = Sampler(sampling, [], 2000, SCRATCH)
        for _ in range(DRAWS):
            logits = rng.normal(0, 1.5, 2000).astype(np.float32)
            before = state.get("most", 2 * target)
            token = sampler.choose(logits).token
            assert plain_engine.choose(logits, sampling.as_json(), 7, [], answer, state) == token
            surprises.append((before - state["most"]) / 0.1 + target)
            sampler.accept(token)
            answer.append(token)
        assert np.mean(surprises[100:]) == pytest.approx(target, abs=0.25)


@pytest.mark.parametrize("name", NARROWINGS)
def test_barred_tokens_do_not_come(name):
    """Where a mask gave tokens the logit -inf, no sampler keeps one of them in the place of another, or fails."""
    rng = np.random.default_rng(5)
    for point in _points(name):
        values = [point.get(each, 0.0) for each in NARROWINGS[name].parameters]
        for allowed in (1, 3, 40):
            logits = rng.normal(0, 3, 300).astype(np.float32)
            logits[allowed:] = -np.inf
            candidates = Candidates(logits, SCRATCH, lambda _domain: 0.0)
            candidates.keep(NARROWINGS[name].keep(candidates, *values))
            weights = candidates.weights()
            ids = np.arange(300) if candidates.ids is None else candidates.ids
            assert ids[weights > 0].size
            assert ids[weights > 0].max() < allowed


@pytest.mark.parametrize("samplers", [("temperature", "penalties"), ("temperature", "dry"), ("temperature", "penalties",
                                                                                         "top_p", "xtc")])
def test_adjustments_that_overflow_stay_numbers(samplers):
    """Logits over a tiny temperature, and then over a penalty: still a choice, and the twin's."""
    sampling = Sampling(temperature=1e-39, repeat_penalty=0.5, repeat_last_n=64, frequency_penalty=-2.0,
                        dry_multiplier=5.0, dry_allowed_length=0, top_p=0.9, xtc_probability=1.0, samplers=samplers,
                        seed=3)
    _agree(sampling, 50, 12, np.random.default_rng(3))
