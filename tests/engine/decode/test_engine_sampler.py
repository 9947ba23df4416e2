"""The sampler against a plain twin that follows the documented steps literally."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
import typing
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.decode.chain.narrowings.table import NARROWINGS
from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import ADJUSTMENTS, Sampler, Sampling, invert, log_probabilities
from appliance.errors import EngineError
from appliance.policy.schema.sampling import PARAMETERS, SAMPLERS, SamplingSettings
from examples import plain_engine
from tests.support.engines import kernels
from tests.support.extent import examples

ROOT = Path(__file__).parents[3]
SCRATCH = Scratch(1000, kernels())


CASES = [
    Sampling(temperature=0.0),
    Sampling(seed=7),
    Sampling(temperature=0.7, top_k=5, seed=1),
    Sampling(temperature=1.3, top_p=0.8, seed=2),
    Sampling(temperature=0.9, min_p=0.2, seed=3),
    Sampling(temperature=0.8, top_k=20, top_p=0.9, min_p=0.05, seed=2**64 - 1),
    Sampling(temperature=0.0, repeat_penalty=1.3, repeat_last_n=4),
    Sampling(temperature=1.0, frequency_penalty=0.7, presence_penalty=0.4, seed=5),
    Sampling(temperature=1.0, repeat_penalty=1.1, repeat_last_n=0, logit_bias={3: 5.0, 9: -100.0}, seed=6),
]


@pytest.mark.parametrize("sampling", CASES)
def test_sequences_follow_the_documented_steps(sampling):
    """Forty tokens in a row equal those of the plain engine, state and all."""
    rng = np.random.default_rng(sampling.seed % 1000)
    prompt, generated = [1, 2, 3, 3, 7], []
    sampler = Sampler(sampling, prompt, 50, Scratch(50, kernels()))
    for _ in range(40):
        logits = rng.normal(0, 3, 50).astype(np.float32)
        expected = plain_engine.choose(logits, sampling.as_json(), sampling.seed, prompt, generated)
        assert expected == sampler.choose(logits).token
        generated.append(expected)
        sampler.accept(expected)


@pytest.mark.parametrize("sampling", [
    *(case for case in CASES if case.temperature), Sampling(temperature=2.5, top_p=0.999, seed=8),
    Sampling(temperature=0.6, top_k=40, top_p=0.95, min_p=0.01, repeat_penalty=1.2, frequency_penalty=0.3,
             presence_penalty=-0.2, logit_bias={7: 2.0, 5: -3.0}, seed=9, top_logprobs=5)])
@pytest.mark.parametrize("size", [50, 32_003])
def test_scratch_memory_changes_no_bit(sampling, size):
    """Of a large vocabulary, too, what is drawn has the bits of the formulas written as numpy's expressions; and
    log-probabilities have those of a log-softmax."""
    rng, scratch, prompt = np.random.default_rng(4), Scratch(size, kernels()), [1, 2, 3, 3, 7]
    sampler, generated = Sampler(sampling, prompt, size, scratch), []
    for _ in range(examples(8, 20)):
        logits = rng.normal(0, 3, size).astype(np.float32)
        expected = plain_engine.choose(logits, sampling.as_json(), sampling.seed, prompt, generated)
        before = logits.tobytes()
        choice = sampler.choose(logits)
        assert (expected, before) == (choice.token, logits.tobytes())
        if sampling.top_logprobs is not None:
            values = logits.astype(np.float64)
            whole = values.max() + plain_engine.ln(plain_engine.total(plain_engine.exp(values - values.max())))
            best = np.argsort(-logits, kind="stable")[:sampling.top_logprobs]
            assert [(int(i), float(values[i] - whole)) for i in best] == list(choice.top)
            assert float(values[expected] - whole) == choice.logprob
        sampler.accept(expected)
        generated.append(expected)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([0.0, 0.5, 0.99]), st.integers(0, 2**32 - 1),
       st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])))
def test_inverted_in_blocks_as_in_fractions(size, zeros, seed, uniform):
    """The place found is the one of exact arithmetic, but for shares that rounding cannot tell from a border; a weight
    of 0 is never drawn."""
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(0, 8, size)) * (rng.random(size) >= zeros)
    weights[rng.integers(size)] = 1.0
    at = invert(weights, uniform, Scratch(size, kernels()))
    exact = [Fraction(w) for w in weights.tolist()]
    before, total = sum(exact[:at]), sum(exact)
    assert 0 < exact[at]
    slack = total * Fraction(1, 2**44)
    assert before - slack <= Fraction(uniform) * total < before + exact[at] + slack


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3000), st.floats(0, 1), st.integers(0, 2**32 - 1), st.sampled_from([1, 30, 10**6]))
def test_highest_of_many(size, share, seed, spread):
    """The highest are those that a stable sort puts first, infinite and equal logits and zeros of both signs too."""
    logits = np.random.default_rng(seed).integers(-spread, spread + 1, size).astype(np.float32) / 7
    logits[::5] *= -1
    logits[3::97] = -np.inf
    count = max(1, int(share * size))
    expected = np.sort(np.argsort(-logits, kind="stable")[:count])
    assert expected.tolist() == highest(logits, count, Scratch(size, kernels())).tolist()


def test_frequencies_follow_the_distribution():
    """Over many seeds each token is drawn about as often as its probability says."""
    logits = np.log(np.array([0.5, 0.25, 0.15, 0.1], np.float32))
    counts = Counter(Sampler(Sampling(seed=s), [], 4, SCRATCH).choose(logits).token for s in range(4000))
    for token, share in enumerate([0.5, 0.25, 0.15, 0.1]):
        assert share == pytest.approx(counts[token] / 4000, abs=0.03)


def test_choice_does_not_change_the_state():
    """Choosing twice at one position gives one answer; only accepting moves on."""
    logits = np.zeros(1000, np.float32)
    sampler = Sampler(Sampling(seed=3), [], 1000, SCRATCH)
    first = sampler.choose(logits).token
    assert first == sampler.choose(logits).token
    sampler.accept(first)
    assert first != sampler.choose(logits).token


def test_log_probabilities():
    """Log-probabilities are those of a float64 softmax of the raw logits, best first, lowest id among equals."""
    logits = np.log(np.array([0.1, 0.4, 0.4, 0.1], np.float32)) + np.float32(3)
    chosen, best = log_probabilities(logits, 0, 3, SCRATCH)
    assert math.log(0.1) == pytest.approx(chosen, abs=1e-6)
    assert [1, 2, 0] == [token for token, _ in best]
    choice = Sampler(Sampling(temperature=0.0, top_logprobs=2, logit_bias={3: 9.0}), [], 4, SCRATCH).choose(logits)
    assert (3, 2) == (choice.token, len(choice.top))
    assert math.log(0.1) == pytest.approx(choice.logprob, abs=1e-6)


def test_a_stage_that_is_off_keeps_all():
    """The engine's defaults are the values of the table that change nothing; each sampler is one row."""
    own = {each.name: each.default for each in dataclasses.fields(Sampling)}
    assert own | {each.name: each.off for each in PARAMETERS} == own
    assert {each.parameters[0] for each in NARROWINGS.values()} <= {each.name for each in PARAMETERS}
    assert {*NARROWINGS, *ADJUSTMENTS, "temperature"} == set(SAMPLERS) == {
        each.sampler for each in PARAMETERS if each.sampler}
    logits = np.random.default_rng(1).normal(0, 3, 500).astype(np.float32)
    assert 100 == len({plain_engine.choose(logits[:100] * 0, {}, seed, [], []) for seed in range(1000)})
    assert Sampler(Sampling(seed=2), [], 500, Scratch(500, kernels())).choose(logits).token == plain_engine.choose(
        logits, {}, 2, [], [])


def test_parameters_are_declared():
    """Each has a field of its type, by which a reader and a type checker know it."""
    hints = typing.get_type_hints(SamplingSettings)
    assert {each.name: int if each.whole else float for each in PARAMETERS} == hints
    assert not hasattr(Sampling, "__getattr__")


@pytest.mark.slow
def test_a_misspelt_parameter_is_an_error_of_types(tmp_path):
    """Where it is read, and where it is given."""
    program = tmp_path / "program.py"
    program.write_text("from appliance.engine.decode.sampler import Sampling\n"
                       "Sampling(temperature=1.0).top_k\nSampling().temprature\nSampling(tempeature=1.0)\n")
    done = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", program], cwd=ROOT, capture_output=True,
                          text=True, timeout=900)
    places = [line.split(":")[1] for line in done.stdout.splitlines() if ": error: " in line]
    assert (1, ["3", "4"]) == (done.returncode, places), done.stdout


@pytest.mark.parametrize("values", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 1.1}, {"min_p": -1.0},
    {"mirostat": 3}, {"dry_base": 0.9}, {"samplers": ("top_k", "top_k")}, {"samplers": ("top_a",)},
    {"dry_breakers": ((),)}, {"repeat_penalty": 0.0}, {"seed": -1}, {"seed": 2**64}, {"top_logprobs": 21},
    {"logit_bias": {0: math.inf}},
])
def test_out_of_range_is_refused(values):
    """A parameter out of its range is refused when the sampling is made."""
    with pytest.raises(EngineError):
        Sampling(**values)


def test_bad_logits_and_bias_are_refused():
    """Logits that are not numbers, and a bias on a token that does not exist, are errors, not answers."""
    with pytest.raises(EngineError):
        Sampler(Sampling(), [], 4, SCRATCH).choose(np.array([0, np.nan, 1, 2], np.float32))
    with pytest.raises(EngineError):
        Sampler(Sampling(logit_bias={4: 1.0}), [], 4, SCRATCH)


@pytest.mark.parametrize("seed", [-1, 1 << 64])
def test_seeds_have_64_bits(seed):
    """Another is refused: it could not be drawn from."""
    with pytest.raises(EngineError, match=r"allowed: 0\.\.2\^64-1"):
        Sampling(seed=seed)
