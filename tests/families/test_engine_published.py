"""Families as their publishers have them: logits of `transformers` in float32, which tests/goldens keeps.

What is between the two is how sums are rounded, and keys and values of 16 bits. A logit is 1/250 of what logits
deviate by away at most; 1/530 was measured. For mixtures, the publisher's code rounds keys and values to 16 bits, so
that no expert is chosen by it: there a logit is 1/1000 away at most; 1/1390 was measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.families import header
from appliance.families.table import FAMILIES
from examples import plain_engine
from tests.goldens.make_transformers_goldens import FORMATS, KEPT, LONG, MODELS, TOKENS
from tests.support import family_models, lfm2_models, mixture_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

GOLDENS = np.load(Path(__file__).parents[1] / "goldens/transformers.npz")
MIXTURES = np.load(Path(__file__).parents[1] / "goldens/mixtures.npz")
CONVOLVED = np.load(Path(__file__).parents[1] / "goldens/lfm2.npz")
TOLERANCE, CLOSE = 1 / 250, 1 / 1000
SHORT = TOKENS[:KEPT[-1] + 1]
# Keys that an option of a mixture stands for, as another model of its family has them.
OTHERS = {"qwen2moe": ("expert_weights_norm", True), "qwen3moe": ("expert_weights_norm", False),
          "glm4moe.groups": ("expert_group_used_count", 4), "glm4moe.sums": ("expert_weights_scale", 1.0)}


def _logits(data: bytes, tokens: list[int]) -> np.ndarray:
    """The engine's logits of all positions."""
    options = EngineOptions(threads=2, slots=1, context_length=family_models.CONTEXT)
    with opened(data) as source, Engine.open(source, options, kernels=kernels()) as engine:
        return logits_of(engine, tokens)


def _found(name: str) -> np.ndarray:
    """The engine's logits at the positions of a golden."""
    data = family_models.model.__wrapped__(name, FORMATS.get(name, ("F32",)))
    tokens = TOKENS if name in LONG else SHORT
    return _logits(data, tokens)[[*KEPT, len(tokens) - 1] if name in LONG else list(KEPT)]


@pytest.mark.parametrize("name", MODELS)
def test_the_publishers_logits(name: str) -> None:
    """Within the tolerance at every position, and the same best token. With a window, without, with factors for short
    and for long contexts, and with the dimensions of phi-2 itself."""
    expected, found = GOLDENS[name], _found(name)
    assert np.abs(expected - found).max() <= TOLERANCE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("name", mixture_models.MODELS)
def test_the_publishers_mixtures(name: str) -> None:
    """Within the tolerance, and the plain engine's bits. No choice of experts is so close that rounding decides it: the
    script that makes the goldens checks that."""
    data, expected = mixture_models.model(name), MIXTURES[name]
    found = _logits(data, SHORT)
    assert np.array_equal(plain_engine.Model(data, "f16", family_models.CONTEXT).logits(SHORT).view(np.uint32),
                          found.view(np.uint32))
    assert np.abs(expected - found[list(KEPT)]).max() <= CLOSE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found[list(KEPT)].argmax(axis=1))


@pytest.mark.parametrize("name", lfm2_models.MODELS)
def test_the_publishers_convolutions(name: str) -> None:
    """Within the tolerance of mixtures, and the plain engine's bits."""
    data, expected = lfm2_models.model(name), CONVOLVED[name]
    found = _logits(data, SHORT)
    assert np.array_equal(plain_engine.Model(data, "f16", family_models.CONTEXT).logits(SHORT).view(np.uint32),
                          found.view(np.uint32))
    assert np.abs(expected - found[list(KEPT)]).max() <= CLOSE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found[list(KEPT)].argmax(axis=1))


@pytest.mark.parametrize("name", ["lfm2", "lfm2moe.sums", "lfm2moe.improbable"])
def test_the_comparison_sees_a_convolution(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model with another option is far from the golden: weights in the order of time, weights of experts that are
    not normalised, and a sum to which nothing is added."""
    row = lfm2_models.MODELS[name]
    if name == "lfm2":
        values = lfm2_models.values
        monkeypatch.setattr(lfm2_models, "values", lambda of, tensor, shape: values(of, tensor, shape)[
            ..., ::-1 if "conv.weight" in tensor else 1])
    elif name == "lfm2moe.sums":
        monkeypatch.setitem(lfm2_models.MODELS, name, replace(row, header={**row.header, "expert_weights_norm": True}))
    else:
        card = FAMILIES["lfm2moe"]
        monkeypatch.setattr(header, "FAMILIES", {**FAMILIES, "lfm2moe": replace(
            card, experts=replace(card.experts, added=0.0))})
    found = _logits(lfm2_models.model.__wrapped__(name), SHORT)[list(KEPT)]
    assert np.abs(CONVOLVED[name] - found).max() > 10 * TOLERANCE * found.std()


@pytest.mark.parametrize("name", OTHERS)
def test_the_comparison_sees_an_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mixture whose header says another option is far from the golden."""
    row, (key, value) = mixture_models.MODELS[name], OTHERS[name]
    monkeypatch.setitem(mixture_models.MODELS, name, replace(row, header={**row.header, key: value}))
    found = _logits(mixture_models.model.__wrapped__(name), SHORT)[list(KEPT)]
    assert np.abs(MIXTURES[name] - found).max() > 10 * TOLERANCE * found.std()


def test_the_factors_are_others() -> None:
    """Factors for long contexts give other logits from the first turn on, so the comparison above tells which were
    taken: the publisher's code chooses them by the length of the text, ours and llama.cpp's by the slot's."""
    short, long = GOLDENS["phi3.short"], GOLDENS["phi3.long"][:len(KEPT)]
    assert np.abs(short - long)[1:].max() > 50 * TOLERANCE * short.std()


def test_the_comparison_sees_a_window() -> None:
    """Models that differ in the window alone are told apart, behind it."""
    with_it, without = GOLDENS["starcoder2.window"], GOLDENS["starcoder2"]
    assert np.abs(with_it - without)[-1].max() > 50 * TOLERANCE * with_it.std()
