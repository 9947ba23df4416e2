"""Guessing changes no answer, and guesses only where they are right."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.engine.batch.speculate import DENSE, LONGEST, Pace, PassCost, PromptLookup
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from tests.support.engines import kernels, opened, synthetic_model


def plain_guess(tokens, count):
    """What followed the last earlier occurrence of the last 4 (else 3) tokens."""
    for size in (4, 3):
        for place in range(len(tokens) - 1, size - 1, -1):
            if len(tokens) >= size and tokens[place - size:place] == tokens[-size:]:
                return tokens[place:place + count]
    return []


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(1, LONGEST))
def test_lookup(tokens, count):
    """The guess is what followed the last time."""
    assert plain_guess(tokens, count) == PromptLookup(tokens).guess(count)


def test_lookup_in_a_long_text():
    """Of a long text the last 8192 tokens are searched, and four bytes kept of each."""
    text = [*range(5), *range(1000, 9000), *range(5), *range(1000, 9300), 0, 1, 2, 3]
    for first in (0, 5000, len(text)):
        lookup = PromptLookup(text[:first])
        lookup.extend(text[first:])
        assert [] == lookup.guess(2)  # 8304 tokens back
        lookup.extend([9296, 9297, 9298, 9299])
        assert [0, 1] == lookup.guess(2)
        lookup.extend([1000 + 200, 1000 + 201, 1000 + 202])
        assert [1203, 1204] == lookup.guess(2)
        tracemalloc.start()
        for token in range(10000, 30000):
            lookup.extend([token])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken < 8 * 8192


def test_pace():
    """Right guesses bring more, wrong ones bring a pause, after which one is tried again."""
    pace = Pace()
    for _ in range(30):
        pace.record(pace.count(), pace.count())
    assert LONGEST == pace.count()
    for _ in range(30):
        pace.record(4, 0)
    assert 0 in [pace.count() for _ in range(5)]
    assert any(pace.count() for _ in range(60))


ROWS = (1.0, 1.12, 1.56, 1.48, 1.75, 1.85)
"""Passes of one to six rows of a text, measured with the shape of Qwen3.5-0.8B; a guess costs 0.115."""


@pytest.mark.parametrize(("share", "least", "most"), [
    (0.0, 0.975, 1.0), (0.15, 0.97, 1.0), (0.3, 0.97, 1.05), (0.5, 1.05, 1.25), (0.7, 1.25, 1.4), (0.9, 1.7, 2.0),
    (1.0, 2.1, 2.6)])
def test_guesses_that_are_compared_first(share: float, least: float, most: float) -> None:
    """By the costs that were measured: where guesses are wrong they cost at most 3%, and where they are right they
    bring much. Nothing is tried before six were compared."""
    gains, random = [], np.random.default_rng(5)
    for _ in range(100):
        pace, cost, tokens = Pace(0.09, PassCost(state=0.088), 6), 0.0, 0
        while tokens < 200:
            trial, count = bool(pace.trials), pace.count()
            assert count <= 1 or tokens >= 6
            right = next((number for number in range(count) if random.random() >= share), count)
            cost += ROWS[0 if trial else count] + 0.115 * count
            tokens += 1 + (0 if trial else right)
            if count:
                pace.record(count, right)
        gains.append(tokens / cost)
    assert least <= np.mean(gains) <= most


def test_none_is_compared_where_none_would_pay() -> None:
    """With four answers even right guesses bring little: rows beyond six cost computing. With one or two they bring
    much, later, too."""
    pace = Pace(0.09, PassCost(state=0.088), 6)
    assert [0] * 20 == [pace.count(4) for _ in range(20)]
    assert [1, 1] == [pace.count(answers) for answers in (1, 2)]
    for _ in range(6):
        pace.record(1, 1)
    assert pace.count() > 2
    assert pace.gain(5, 1, 1.0) > 2.5


def test_rows_of_a_mixture_cost_more() -> None:
    """Its rows read experts that others do not: eight rows of the shape of Qwen3-30B-A3B took 5.0 passes of one row
    with random routing (measured), where a dense model's take 2.2. Guesses of an answer pay later."""
    cost = PassCost(0.64, 128, 8)
    assert 1.0 == cost(1) == DENSE(1)
    assert 5.0 == pytest.approx(cost(8), rel=0.05)
    assert 2.24 == pytest.approx(DENSE(8))
    for rows, measured in ((2, 1.52), (3, 2.06), (4, 2.37), (6, 3.24)):  # two layers, resident and sealed, one thread
        assert measured == pytest.approx(PassCost(0.558, 128, 8)(rows), rel=0.1)
    assert 0.95 < cost(4096) / DENSE(4096) < 1.05  # many rows read all experts, and then only computing counts
    pace = Pace(0.0, cost)
    assert 1 <= pace.count() <= 2
    for _ in range(30):
        pace.record(pace.count(), pace.count())
    assert 2 < pace.count() <= LONGEST


@pytest.mark.parametrize("temperature", [0.0, 0.4])
def test_answers_are_the_same(temperature):
    """A repeating text, greedy and sampled, with stop strings and a short context: the same answer with and without."""
    phrase = np.random.default_rng(1).integers(259, 512, 12).tolist()
    answers, passes = [], []
    with opened(synthetic_model("tied")) as source:
        for speculate in (False, True):
            with Engine.open(
                    source, EngineOptions(threads=2, slots=2, context_length=200, speculate=speculate),
                    kernels=kernels()) as engine:
                count = 0
                run = engine._forward.run

                def counted(*arguments, run=run):
                    nonlocal count
                    count += 1
                    return run(*arguments)
                engine._forward.run = counted
                bias = dict.fromkeys(phrase[:3], 14.0)
                sampling = Sampling(temperature=temperature, seed=4, logit_bias=bias, frequency_penalty=0.05)
                request = GenerationRequest([1, *phrase * 4], 120, sampling, ignore_end=True)
                answers.append([(each.token, each.text, each.finish_reason) for each in engine.generate(request)])
                passes.append(count)
    assert answers[0] == answers[1]
    assert passes[1] < passes[0]
