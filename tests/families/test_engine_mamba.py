"""Families with Mamba-2: logits of `transformers` in float32, which tests/goldens keeps, and the bits of the plain
engine however a text is read.

What is between the publisher's logits and ours is how sums are rounded: the publisher's code reads prompts in chunks of
64 positions, ours goes through them one by one. A logit is 1/5000 of what logits deviate by away at most; 1/11000 was
measured.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.states import state_nbytes
from appliance.errors import EngineError, FormatError, UnsupportedError
from appliance.families.architecture import Mamba
from appliance.families.header import architecture_of
from appliance.kernels.layouts.attention import CACHE_FORMATS
from examples import plain_engine
from tests.goldens.make_mamba_goldens import KEPT
from tests.goldens.make_transformers_goldens import TOKENS
from tests.support import family_models, mamba_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

GOLDENS = np.load(Path(__file__).parents[1] / "goldens/mamba.npz")
CLOSE = 1 / 5000
TEXT = TOKENS[:KEPT[-1] + 1]
NAMES = list(mamba_models.MODELS)
# Keys that make another model of the same tensors.
OTHERS = {"nemotron_h_moe": ("expert_weights_norm", False), "nemotron_h_moe.sums": ("expert_weights_scale", 1.0),
          "granitehybrid.turned": ("rope.scaling.finetuned", False)}


def _engine(source: object, *, threads: int = 2, slots: int = 1, kind: str = "f16") -> Engine:
    options = EngineOptions(threads=threads, slots=slots, context_length=family_models.CONTEXT, kv_cache=kind)
    return Engine.open(source, options, kernels=kernels())


def _found(data: bytes, text: list[int] = TEXT, *, chunk: int = 64, **options: object) -> np.ndarray:
    with opened(data) as source, _engine(source, **options) as engine:
        return logits_of(engine, text, chunk=chunk)


@pytest.mark.parametrize("name", NAMES)
def test_the_publishers_logits(name: str) -> None:
    """Within the tolerance, at the same best token. No choice of experts is so close that rounding decides it: the
    script that makes the goldens checks that."""
    expected, found = GOLDENS[name], _found(mamba_models.model(name))[list(KEPT)]
    assert np.abs(expected - found).max() <= CLOSE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_engines_bits(name: str) -> None:
    """With each kind of cache, in pieces that do not end where the kernel's own do."""
    kind, text = CACHE_FORMATS[NAMES.index(name) % len(CACHE_FORMATS)], TEXT[:40]
    plain = plain_engine.Model(mamba_models.model(name), kind, family_models.CONTEXT)
    expected = np.concatenate([plain.logits(text[:13]), plain.logits(text[13:])])
    for chunk, threads in ((40, 1), (7, 3), (1, 2)):
        found = _found(mamba_models.model(name), text, chunk=chunk, threads=threads, kind=kind)
        assert np.array_equal(expected.view(np.uint32), found.view(np.uint32)), (chunk, threads)


@pytest.mark.parametrize("name", OTHERS)
def test_the_comparison_sees_an_option(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose header says another option is far from the golden."""
    row, (key, value) = mamba_models.MODELS[name], OTHERS[name]
    monkeypatch.setitem(mamba_models.MODELS, name, replace(row, header={**row.header, key: value}))
    found = _found(mamba_models.model.__wrapped__(name))[list(KEPT)]
    assert np.abs(GOLDENS[name] - found).max() > 100 * CLOSE * found.std()


@pytest.mark.parametrize("name", ["granitehybrid", "nemotron_h"])
def test_texts_beside_each_other(name: str) -> None:
    """In one pass, in slots that had other texts before: the bits of each one by itself."""
    texts = [TEXT[:50], TEXT[60:97], TEXT[100:101]]
    alone = [_found(mamba_models.model(name), text) for text in texts]
    with opened(mamba_models.model(name)) as source, _engine(source, slots=3) as engine:
        forward, cache = engine._forward, engine._cache
        for slot in range(3):
            forward.run(TEXT[5:25], range(20), [slot] * 20, [])
            cache.give_back(slot)
            forward.boundary.forget(slot)
        done = [0, 0, 0]
        for counts in ((20, 30, 1), (1, 1, 0), (29, 6, 0)):
            rows = [(slot, done[slot] + index) for slot, count in enumerate(counts) for index in range(count)]
            last = [np.cumsum(counts)[slot] - 1 for slot, count in enumerate(counts) if count]
            found = forward.run([texts[slot][at] for slot, at in rows], [at for _, at in rows],
                                [slot for slot, _ in rows], last)
            done = [before + count for before, count in zip(done, counts, strict=True)]
            for row, slot in zip(found, [slot for slot, count in enumerate(counts) if count], strict=True):
                assert np.array_equal(row.view(np.uint32), alone[slot][done[slot] - 1].view(np.uint32))
    assert done == [len(text) for text in texts]


def test_a_state_is_wiped() -> None:
    """With its text, from the memory of its slot."""
    with opened(mamba_models.model("granitehybrid")) as source, _engine(source, slots=2) as engine:
        forward, states = engine._forward, engine._cache.states
        forward.run(TEXT[:30] * 2, [*range(30)] * 2, [0] * 30 + [1] * 30, [])
        memory = states._memory.view(np.uint8)
        own = [memory[slot * states.stride:(slot + 1) * states.stride] for slot in range(2)]
        assert all(each.any() for each in own)
        kept = own[1].copy()
        engine._cache.give_back(0)
        forward.boundary.forget(0)
        assert not own[0].any()
        assert np.array_equal(own[1], kept)
        with pytest.raises(EngineError, match="state of 30 positions"):
            forward.run(TEXT[20:22], [20, 21], [1, 1], [])
        engine._cache.give_back(1)
        forward.boundary.forget(1)


def test_what_a_header_says() -> None:
    """Which layers have which part, and how much a state takes."""
    found = architecture_of(mamba_models.metadata("nemotron_h_moe.sums"))
    assert (found.layers, found.left_out) == (5, 1)
    parts = [("state" if layer.recurrence else "attention" if layer.kv_heads else "network", found.mixes(index))
             for index, layer in enumerate(found.every)]
    assert parts == [("state", False), ("network", True), ("state", False), ("attention", False), ("network", True)]
    own = Mamba(288, 6, 2, 32, 4)
    assert found.layer(0).recurrence == own
    assert (own.columns, own.projected, own.state_floats) == (416, 710, 3 * 416 + 288 * 32)
    assert state_nbytes(found) == 2 * 4 * own.state_floats


@pytest.mark.parametrize(("key", "value", "words"), [
    ("ssm.inner_size", 280, "ssm.inner_size is 280; allowed: a multiple of 96"),
    ("ssm.group_count", 4, "ssm.time_step_rank is 6; allowed: a multiple of 4"),
    ("ssm.state_size", 24, "ssm.state_size is 24; allowed: a multiple of 16"),
    ("ssm.conv_kernel", 1, "ssm.conv_kernel is 1; allowed: an integer in 2..64"),
    ("feed_forward_length", [0, 160, 160, 160, 0, 160], "feed_forward_length is 160 in layer 2, which attends"),
    ("feed_forward_length", [0, 160, 0, 160, 0, 160, 0], "an array that does not fit; allowed: 6 integers"),
    ("moe_latent_size", 64, "moe_latent_size' is not known"),
    ("attention.head_count_kv", None, "attention.head_count_kv is missing")])
def test_headers_that_are_refused(key: str, value: object, words: str) -> None:
    """By their key, with what is allowed."""
    metadata = mamba_models.metadata("nemotron_h") | {f"nemotron_h.{key}": value}
    with pytest.raises((FormatError, UnsupportedError)) as caught:
        architecture_of({name: each for name, each in metadata.items() if each is not None})
    assert words in caught.value.summary
