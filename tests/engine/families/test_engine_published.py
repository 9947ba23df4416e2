"""Families as their publishers have them: logits of `transformers` in float32, which tests/goldens keeps.

What is between the two is how sums are rounded, and keys and values of 16 bits. A logit is 1/250 of what logits
deviate by away at most; 1/600 was measured.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from tests.goldens.make_transformers_goldens import FORMATS, KEPT, LONG, MODELS, TOKENS
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

GOLDENS = np.load(Path(__file__).parents[2] / "goldens/transformers.npz")
TOLERANCE = 1 / 250


def _found(name: str, context: int = family_models.CONTEXT) -> np.ndarray:
    """The engine's logits at the positions of a golden."""
    data = family_models.model.__wrapped__(name, FORMATS.get(name, ("F32",)))
    tokens = TOKENS if name in LONG else TOKENS[:KEPT[-1] + 1]
    with opened(data) as source, Engine.open(source, EngineOptions(threads=2, slots=1, context_length=context),
                                             kernels=kernels()) as engine:
        rows = logits_of(engine, tokens)
    return rows[[*KEPT, len(tokens) - 1] if name in LONG else list(KEPT)]


@pytest.mark.parametrize("name", MODELS)
def test_the_publishers_logits(name: str) -> None:
    """Within the tolerance at every position, and the same best token. With a window, without, with factors for short
    and for long contexts, and with the dimensions of phi-2 itself."""
    expected, found = GOLDENS[name], _found(name)
    assert np.abs(expected - found).max() <= TOLERANCE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found.argmax(axis=1))


def test_the_factors_are_others() -> None:
    """Factors for long contexts give other logits from the first turn on, so the comparison above tells which were
    taken: the publisher's code chooses them by the length of the text, ours and llama.cpp's by the slot's."""
    short, long = GOLDENS["phi3.short"], GOLDENS["phi3.long"][:len(KEPT)]
    assert np.abs(short - long)[1:].max() > 50 * TOLERANCE * short.std()


def test_the_comparison_sees_a_window() -> None:
    """Models that differ in the window alone are told apart, behind it."""
    with_it, without = GOLDENS["starcoder2.window"], GOLDENS["starcoder2"]
    assert np.abs(with_it - without)[-1].max() > 50 * TOLERANCE * with_it.std()
