"""Choices by sweeps against those of the plain sampler: the same tokens, bit for bit; and what is refused."""

from __future__ import annotations

import time

import numpy as np
import pytest

from appliance.engine.decode.beam_search import Beam
from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import MOST
from appliance.engine.decode.generation import GenerationRequest, check_sweeping
from appliance.engine.decode.sampler import MOST_LAST, Sampler, Sampling, invert, log_probabilities
from appliance.errors import EngineError
from tests.support.extent import examples
from tests.support.oblivious import kernels

SAMPLINGS = (
    Sampling(seed=1), Sampling(seed=2, temperature=0.3), Sampling(temperature=0.0),
    Sampling(seed=3, top_k=40, top_p=0.9), Sampling(seed=4, top_k=MOST, min_p=0.05, temperature=1.7),
    Sampling(seed=5, top_k=1), Sampling(seed=6, top_k=9, top_p=0.5, min_p=0.2, temperature=0.8),
    Sampling(seed=7, top_k=20, dynatemp_range=0.5), Sampling(seed=8, top_k=64, typical_p=0.8, xtc_probability=0.5,
                                                             xtc_threshold=0.1))
WHOLE = (  # of which a list of the whole vocabulary is left, or no short one
    Sampling(seed=1, top_p=0.9), Sampling(seed=2, top_p=0.5, temperature=0.7), Sampling(seed=3, min_p=0.05),
    Sampling(seed=4, top_k=MOST + 1, top_p=0.99), Sampling(seed=5, tfs_z=0.9), Sampling(seed=6, tfs_z=0.4, top_p=0.9),
    Sampling(seed=7, typical_p=0.7), Sampling(seed=8, typical_p=0.9, temperature=1.4),
    Sampling(seed=9, top_n_sigma=1.5),
    Sampling(seed=10, epsilon_cutoff=20.0), Sampling(seed=11, eta_cutoff=30.0),
    Sampling(seed=12, xtc_probability=1.0, xtc_threshold=0.02), Sampling(seed=13, xtc_probability=0.5, top_p=0.95),
    Sampling(seed=14, mirostat=2), Sampling(seed=15, mirostat=1), Sampling(seed=16, mirostat=2, mirostat_tau=0.5),
    Sampling(seed=17, dynatemp_range=0.6, min_p=0.02), Sampling(seed=18, top_n_sigma=2.0, typical_p=0.9, min_p=0.01),
    Sampling(seed=19, samplers=("min_p", "top_k", "temperature", "typ_p"), min_p=0.01, top_k=30, typical_p=0.9),
    Sampling(seed=20, samplers=("temperature", "top_n_sigma", "top_p"), temperature=0.01, top_n_sigma=50.0, top_p=0.9),
    Sampling(seed=21, samplers=("temperature", "min_p"), temperature=0.0, min_p=0.1), Sampling(seed=22, top_p=1e-9))
ADJUSTED = (
    Sampling(seed=1, logit_bias={0: 4.0, 1: -3.5, 2: 1e30}), Sampling(seed=2, repeat_penalty=1.3),
    Sampling(seed=3, repeat_penalty=0.7, repeat_last_n=3, temperature=0.0),
    Sampling(seed=4, presence_penalty=1.5, frequency_penalty=0.25), Sampling(seed=5, frequency_penalty=-1.0, top_k=40),
    Sampling(seed=6, dry_multiplier=2.0, dry_penalty_last_n=MOST_LAST, dry_breakers=((1,), (2, 1))),
    Sampling(seed=7, dry_multiplier=0.8, dry_allowed_length=0, dry_penalty_last_n=6, dry_breakers=((1, 2),), top_p=0.9),
    Sampling(seed=8, dry_multiplier=5.0, dry_allowed_length=1, dry_base=3.0, dry_penalty_last_n=20,
             repeat_penalty=1.1, presence_penalty=0.5, logit_bias={1: 2.0}, min_p=0.05),
    Sampling(seed=9, samplers=("temperature", "penalties", "top_k"), temperature=0.5, repeat_penalty=1.5, top_k=20),
    Sampling(seed=10, top_logprobs=5), Sampling(seed=11, top_logprobs=0, top_p=0.8))
COUNT = examples(60, 3000)


def _logits(rng: np.random.Generator, size: int, number: int) -> np.ndarray:
    logits = (rng.standard_normal(size) * 4).astype(np.float32)
    if number % 3 == 0:
        logits = np.round(logits)
    return np.where(logits == 0, np.float32(-0.0), logits) if number % 5 == 0 else logits


@pytest.mark.parametrize("size", [3, 255, 256, 257, 5000])
def test_the_same_tokens(size: int) -> None:
    """Of all lists of samplers that are covered, over vocabularies around the size of a chunk."""
    plain, swept = Scratch(size, kernels()), Scratch(size, kernels(), sweeps=True)
    rng = np.random.default_rng(size)
    for number in range(COUNT):
        logits, sampling = _logits(rng, size, number), SAMPLINGS[number % len(SAMPLINGS)]
        wanted, found = (Sampler(sampling, (1,), size, each).choose(logits) for each in (plain, swept))
        assert wanted == found, sampling


@pytest.mark.parametrize("sampling", WHOLE, ids=lambda sampling: str(sampling.seed))
@pytest.mark.parametrize("size", [3, 257, 2000])
def test_whole_rows(sampling: Sampling, size: int) -> None:
    """So do samplers that leave many candidates, with and without a constraint's mask and suppressed tokens."""
    plain, swept = Scratch(size, kernels()), Scratch(size, kernels(), sweeps=True)
    rng = np.random.default_rng(size)
    for number in range(max(COUNT // 5, 9)):
        logits, suppressed = _logits(rng, size, number), (1,) if number % 4 == 1 else ()
        mask = None if number % 3 else np.packbits(rng.random(size) < 0.4, bitorder="little").tobytes()
        mask = mask if mask is None else bytes([mask[0] | 1]) + mask[1:]
        samplers = [Sampler(sampling, (1,), size, each, suppressed) for each in (plain, swept)]
        for _ in range(3):
            wanted, found = (each.choose(logits, mask) for each in samplers)
            assert wanted == found
            for each in samplers:
                each.accept(wanted.token)


@pytest.mark.parametrize("sampling", ADJUSTED, ids=lambda sampling: str(sampling.seed))
def test_adjusted(sampling: Sampling) -> None:
    """So do biases, penalties and log-probabilities, over an answer that repeats itself."""
    size, rng = 300, np.random.default_rng(sampling.seed)
    scratches = Scratch(size, kernels()), Scratch(size, kernels(), sweeps=True)
    for number in range(max(COUNT // 20, 3)):
        logits = _logits(rng, size, number)
        logits[:5] += 6
        prompt = rng.integers(5, size=30).tolist()
        samplers = [Sampler(sampling, prompt, size, each) for each in scratches]
        for _ in range(25):
            wanted, found = (each.choose(logits) for each in samplers)
            assert wanted == found
            for each in samplers:
                each.accept(wanted.token)


def test_counts_of_a_long_answer_take_no_longer() -> None:
    """What is counted already is not counted again, so a token of a long answer costs what the first one does."""
    sampler = Sampler(Sampling(seed=1, frequency_penalty=0.1), (), 5000, Scratch(5000, kernels(), sweeps=True))
    times = []
    for number in range(2):
        for token in range(50_000 * number):
            sampler.accept(token % 5000)
        sampler.choose(np.zeros(5000, np.float32))
        sampler.accept(7)
        began = time.thread_time()
        for _ in range(9):
            sampler.choose(np.zeros(5000, np.float32))
        times.append(time.thread_time() - began)
    assert times[1] < 3 * times[0]


def test_guidance() -> None:
    """So does guidance, before a mask that bars tokens."""
    size, rng = 500, np.random.default_rng(2)
    for number in range(9):
        logits, negative = _logits(rng, size, 1), _logits(rng, size, 1)
        mask = np.packbits(np.arange(size) % 3 == 0, bitorder="little").tobytes()
        sampling = Sampling(seed=number, guidance_scale=1.5, top_p=0.9, top_k=number % 2 * 40)
        wanted, found = (Sampler(sampling, (1,), size, Scratch(size, kernels(), sweeps=sweeps)).choose(
            logits, mask, negative) for sweeps in (False, True))
        assert wanted == found


@pytest.mark.parametrize("size", [2, 300, 5000])
def test_the_highest(size: int) -> None:
    """The highest are those of the plain form: of equal ones the lowest tokens; and so are log-probabilities."""
    plain, swept = Scratch(size, kernels()), Scratch(size, kernels(), sweeps=True)
    assert swept.sweep is not None
    rng = np.random.default_rng(size)
    for number in range(COUNT):
        logits, count = _logits(rng, size, number), min(1 + int(rng.integers(MOST)), size - 1)
        assert highest(logits, count, plain).tolist() == np.flatnonzero(swept.sweep.highest(logits, count)).tolist()
        token = int(rng.integers(size))
        wanted, found = (log_probabilities(logits, token, number % 21, each) for each in (plain, swept))
        assert wanted == found


def test_the_ends_of_a_draw() -> None:
    """At both ends of what a draw's number can be, the place is the plain form's."""
    plain, swept = Scratch(700, kernels()), Scratch(700, kernels(), sweeps=True)
    for number in range(20):
        logits = _logits(np.random.default_rng(number), 700 - number, number)
        for uniform in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
            places = [invert(exact.weights(logits, 1.0, each), uniform, each) for each in (plain, swept)]
            assert places[0] == places[1]


@pytest.mark.parametrize(("sampling", "named"), [
    (Sampling(samplers=("top_k", "penalties"), top_k=40, presence_penalty=0.5), "no penalties after"),
    (Sampling(samplers=("temperature", "dry"), temperature=0.0, dry_multiplier=1.0, dry_penalty_last_n=9), "no dry"),
    (Sampling(samplers=("min_p", "dry", "penalties"), min_p=0.1, dry_multiplier=1.0, dry_penalty_last_n=9,
              repeat_penalty=2.0), "dry, pen"),
    (Sampling(dry_multiplier=1.0), "no dry_penalty_last_n of -1"),
    (Sampling(dry_multiplier=1.0, dry_penalty_last_n=MOST_LAST + 1), "no dry_penalty_last_n of .* more than 1024"),
    (Sampling(repeat_penalty=1.1, repeat_last_n=8192), "no repeat_last_n of"),
    (Sampling(temperature=1e-39), "no temperature of 1e-39")])
def test_refused(sampling: Sampling, named: str) -> None:
    """A penalty for single tokens of a list is refused by name, and so is a window whose time goes with its square."""
    with pytest.raises(EngineError, match=named) as caught:
        Sampler(sampling, (1,), 300, Scratch(300, kernels(), sweeps=True))
    assert "memory-access" == caught.value.code


@pytest.mark.parametrize("sampling", [
    Sampling(samplers=("top_k", "penalties"), top_k=40, presence_penalty=0.5, mirostat=2),
    Sampling(samplers=("penalties",), dry_multiplier=1.0), Sampling(samplers=("dry",), repeat_last_n=8192),
    Sampling(repeat_penalty=1.1, repeat_last_n=MOST_LAST, dry_multiplier=1.0, dry_penalty_last_n=MOST_LAST)])
def test_taken(sampling: Sampling) -> None:
    """What mirostat replaces, and what is off, is no reason to refuse."""
    Sampler(sampling, (1,) * 2000, 300, Scratch(300, kernels(), sweeps=True))


@pytest.mark.parametrize(("request_", "named"), [
    (GenerationRequest((1,), 4, beam=Beam(2)), "beam search"),
    (GenerationRequest((1,), 4, Sampling(token_healing=2)), "token_healing")], ids=["beam", "healing"])
def test_features_refused(request_: GenerationRequest, named: str) -> None:
    """So are features that look tokens up."""
    with pytest.raises(EngineError, match=f"goes with no {named}"):
        check_sweeping(request_)


def test_no_token_has_a_chance() -> None:
    """A mask without a token is an error in both forms."""
    for sweeps in (False, True):
        with pytest.raises(EngineError, match="no token that the constraint allows"):
            Sampler(Sampling(), (1,), 300, Scratch(300, kernels(), sweeps=sweeps)).choose(
                np.zeros(300, np.float32), bytes(38))


def test_wiped() -> None:
    """The short list goes with the rest of the memory."""
    scratch = Scratch(300, kernels(), sweeps=True)
    assert scratch.sweep is not None
    Sampler(Sampling(top_k=5), (1,), 300, scratch).choose(np.arange(300, dtype=np.float32))
    assert any(scratch.sweep.rows.parts[0].view)
    scratch.release()
    assert not any(any(part.view) for part in scratch.sweep.rows.parts)
