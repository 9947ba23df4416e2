"""The sampler against a plain-Python twin that follows the documented steps literally."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.sampler import NARROWINGS, Sampler, Sampling, candidates, invert, log_probabilities
from appliance.errors import EngineError
from appliance.policy.schema.sampling import PARAMETERS
from examples import plain_engine

SCRATCH = Scratch(1000)


def plain_candidates(logits, sampling):
    """Step 5, with full sorts; ids ascending."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if sampling.top_k:
        order = order[: sampling.top_k]
    if sampling.top_p < 1:
        weights = [math.exp(float(logits[i] - logits[order[0]])) for i in order]
        total, running, kept = sum(weights), 0.0, []
        for i, weight in zip(order, weights, strict=True):
            kept.append(i)
            running += weight
            if running >= sampling.top_p * total:
                break
        order = kept
    if sampling.min_p > 0:
        floor = float(max(logits)) + math.log(sampling.min_p)
        order = [i for i in order if logits[i] >= floor]
    return sorted(order)


def plain_uniform(seed, draw):
    """The documented uniform number."""
    data = b"appliance sampler draw v1\0" + seed.to_bytes(8, "little") + draw.to_bytes(8, "little")
    return (int.from_bytes(hashlib.sha256(data).digest()[:8], "big") >> 11) / 2**53


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
    sampler = Sampler(sampling, prompt, 50, Scratch(50))
    for _ in range(40):
        logits = rng.normal(0, 3, 50).astype(np.float32)
        settings_ = {each.name: getattr(sampling, each.name) for each in dataclasses.fields(sampling)}
        expected = plain_engine.choose(logits, settings_, sampling.seed, prompt, generated)
        assert expected == sampler.choose(logits).token
        generated.append(expected)
        sampler.accept(expected)


def numpy_adjust(logits, s, tail, counts):
    """Steps 1 to 3 as expressions, whose results are numpy's."""
    out = logits.copy()
    out[list(s.logit_bias)] += np.array(list(s.logit_bias.values()), np.float32)
    ids = np.unique(np.array(tail, np.int64))
    out[ids] = np.where(out[ids] > 0, out[ids] / np.float32(s.repeat_penalty), out[ids] * np.float32(s.repeat_penalty))
    for token, times in counts.items():
        out[token] -= np.float32(times * s.frequency_penalty + s.presence_penalty)
    return out


def numpy_draw(logits, s, draw):
    """Steps 5 and 6 as expressions: a token, and the bits of the candidates' weights."""
    ids = np.sort(np.argsort(-logits, kind="stable")[: s.top_k or None])
    if s.top_p < 1:
        weights = np.exp(logits[ids].astype(np.float64) - float(logits.max()))
        order = np.argsort(-logits[ids], kind="stable")
        count = int(np.searchsorted(np.cumsum(weights[order]), s.top_p * weights.sum(), side="left")) + 1
        ids = np.sort(ids[order[:count]])
    if s.min_p > 0:
        ids = ids[logits[ids] >= np.float64(logits.max()) + math.log(s.min_p)]
    chosen = logits[ids]
    weights = np.exp((chosen.astype(np.float64) - float(chosen.max())) / s.temperature)
    cumulative = np.cumsum(weights)
    at = int(np.searchsorted(cumulative, plain_uniform(s.seed, draw) * cumulative[-1], side="right"))
    return int(ids[min(at, len(ids) - 1)]), weights.tobytes()


@pytest.mark.parametrize("sampling", [
    *(case for case in CASES if case.temperature), Sampling(temperature=2.5, top_p=0.999, seed=8),
    Sampling(temperature=0.6, top_k=40, top_p=0.95, min_p=0.01, repeat_penalty=1.2, frequency_penalty=0.3,
             presence_penalty=-0.2, logit_bias={7: 2.0, 5: -3.0}, seed=9, top_logprobs=5)])
@pytest.mark.parametrize("size", [50, 32_003])
def test_scratch_memory_changes_no_bit(sampling, size):
    """What is drawn from, and log-probabilities, have the bits of the formulas written as numpy's expressions."""
    rng, scratch, prompt = np.random.default_rng(4), Scratch(size), [1, 2, 3, 3, 7]
    sampler, generated = Sampler(sampling, prompt, size, scratch), []
    for draw in range(20):
        logits = rng.normal(0, 3, size).astype(np.float32)
        tail = (prompt + generated)[-sampling.repeat_last_n:] if sampling.repeat_last_n else []
        token, bits = numpy_draw(numpy_adjust(logits, sampling, tail, Counter(generated)), sampling, draw)
        before = logits.tobytes()
        choice = sampler.choose(logits)
        if sampling.top_logprobs is None:  # else its weights are no longer there
            assert bits == scratch.powers[:len(bits) // 8].tobytes()
        else:
            values = logits.astype(np.float64)
            total = values.max() + math.log(float(np.exp(values - values.max()).sum()))
            best = np.argsort(-logits, kind="stable")[:sampling.top_logprobs]
            assert [(int(i), float(values[i] - total)) for i in best] == list(choice.top)
            assert float(values[token] - total) == choice.logprob
        assert (token, before) == (choice.token, logits.tobytes())
        sampler.accept(token)
        generated.append(token)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 2000), st.sampled_from([0.0, 0.5, 0.99]), st.integers(0, 2**32 - 1),
       st.one_of(st.floats(0, 1, exclude_max=True), st.sampled_from([0.0, 1 - 2**-53])))
def test_inverted_in_blocks_as_in_fractions(size, zeros, seed, uniform):
    """The place found is the one of exact arithmetic, but for shares that rounding cannot tell from a border; a weight
    of 0 is never drawn."""
    rng = np.random.default_rng(seed)
    weights = np.exp(rng.normal(0, 8, size)) * (rng.random(size) >= zeros)
    weights[rng.integers(size)] = 1.0
    at = invert(weights, uniform, Scratch(size))
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
    assert expected.tolist() == highest(logits, count, Scratch(size)).tolist()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(-8, 8), min_size=1, max_size=600), st.integers(0, 40),
       st.sampled_from([0.05, 0.5, 0.95, 1.0]), st.sampled_from([0.0, 0.1, 1.0]))
def test_candidates_with_ties(values, top_k, top_p, min_p):
    """Among many equal logits the kept ids are those of the plain twin, and never none."""
    logits = np.array(values, np.float32)
    sampling = Sampling(top_k=top_k, top_p=top_p, min_p=min_p)
    found = candidates(logits, sampling, Scratch(logits.size))
    found = list(range(len(values))) if found is None else found.tolist()
    assert plain_candidates(list(logits), sampling) == found
    assert found


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
    """The engine's defaults are the values of the table that change nothing; a stage is one row."""
    own = {each.name: each.default for each in dataclasses.fields(Sampling)}
    assert own | {each.name: each.off for each in PARAMETERS if each.bounded} == own
    assert {each.parameter for each in NARROWINGS} <= {each.name for each in PARAMETERS if each.bounded}
    logits = np.random.default_rng(1).normal(0, 3, 500).astype(np.float32)
    assert candidates(logits, Sampling(), Scratch(500)) is None


@pytest.mark.parametrize("values", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"top_k": -1}, {"top_p": 1.1}, {"min_p": -1.0},
    {"repeat_penalty": 0.0}, {"seed": -1}, {"seed": 2**64}, {"top_logprobs": 21}, {"logit_bias": {0: math.inf}},
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
