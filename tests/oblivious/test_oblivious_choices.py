"""Choices by sweeps against those of the plain sampler: the same tokens, bit for bit; and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.engine.decode.chain import exact
from appliance.engine.decode.chain.ordering import highest
from appliance.engine.decode.chain.scratch import Scratch
from appliance.engine.decode.chain.sweeping import MOST
from appliance.engine.decode.sampler import Sampler, Sampling, invert
from appliance.errors import EngineError
from tests.support.extent import examples
from tests.support.oblivious import kernels

SAMPLINGS = (
    Sampling(seed=1), Sampling(seed=2, temperature=0.3), Sampling(temperature=0.0),
    Sampling(seed=3, top_k=40, top_p=0.9), Sampling(seed=4, top_k=MOST, min_p=0.05, temperature=1.7),
    Sampling(seed=5, top_k=1), Sampling(seed=6, top_k=9, top_p=0.5, min_p=0.2, temperature=0.8),
    Sampling(seed=7, top_k=20, dynatemp_range=0.5), Sampling(seed=8, top_k=64, typical_p=0.8, xtc_probability=0.5,
                                                             xtc_threshold=0.1))
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


@pytest.mark.parametrize("size", [2, 300, 5000])
def test_the_highest(size: int) -> None:
    """The short list is that of the plain form: ids ascending, of equal ones the lowest, logits to the bit."""
    plain, swept = Scratch(size, kernels()), Scratch(size, kernels(), sweeps=True)
    assert swept.sweep is not None
    rng = np.random.default_rng(size)
    for number in range(COUNT):
        logits, count = _logits(rng, size, number), min(1 + int(rng.integers(MOST)), size - 1)
        ids, values = swept.sweep.highest(logits, count)
        assert highest(logits, count, plain).tolist() == ids.tolist()
        assert logits[ids].tobytes() == values.tobytes()


def test_the_ends_of_a_draw() -> None:
    """At both ends of what a draw's number can be, the place is the plain form's."""
    plain, swept = Scratch(700, kernels()), Scratch(700, kernels(), sweeps=True)
    for number in range(20):
        logits = _logits(np.random.default_rng(number), 700 - number, number)
        for uniform in (0.0, 2.0**-53, 0.5, 1 - 2.0**-53):
            places = [invert(exact.weights(logits, 1.0, each), uniform, each) for each in (plain, swept)]
            assert places[0] == places[1]


@pytest.mark.parametrize(("sampling", "named"), [
    (Sampling(logit_bias={1: 2.0}), "logit_bias"), (Sampling(top_logprobs=0), "logprobs"),
    (Sampling(repeat_penalty=1.1), "repeat_penalty"), (Sampling(presence_penalty=0.5), "presence_penalty"),
    (Sampling(top_p=0.9), "top_p without top_k"), (Sampling(top_k=MOST + 1), "top_k of 1 to 511"),
    (Sampling(mirostat=2), "mirostat")])
def test_refused(sampling: Sampling, named: str) -> None:
    """What indexes by a token is refused by name."""
    with pytest.raises(EngineError, match=named) as caught:
        Sampler(sampling, (1,), 300, Scratch(300, kernels(), sweeps=True))
    assert "memory-access" == caught.value.code


def test_wiped() -> None:
    """The short list goes with the rest of the memory."""
    scratch = Scratch(300, kernels(), sweeps=True)
    assert scratch.sweep is not None
    Sampler(Sampling(top_k=5), (1,), 300, scratch).choose(np.arange(300, dtype=np.float32))
    scratch.release()
    assert not any(scratch.sweep._pages.view)
