"""Each family, by a small model made from its card: the plain engine's bits however it is run, and llama.cpp's choices.

A new family is a row of `family_models.MODELS`.
"""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.errors import FormatError, UnsupportedError
from appliance.families.architecture import HEAD_SIZES
from appliance.families.header import architecture_of
from appliance.families.nearest import keys_of
from appliance.families.table import FAMILIES
from appliance.families.tensors import required_shapes
from appliance.kernels.layouts.attention import CACHE_FORMATS
from examples import plain_engine
from tests.fuzz import driver, families_fuzz
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.extent import examples
from tests.support.llama_models import LlamaModel
from tests.support.logits import logits_of
from tests.support.streams import stored

ROOT = Path(__file__).parents[2]
NAMES = list(family_models.MODELS)
IDS = [1, *np.random.default_rng(5).integers(3, family_models.VOCABULARY, 89).tolist()]


def _logits(source: object, ids: list[int], kind: str = "f16", *, threads: int = 2, chunk: int = 64,
            last: int | None = None) -> np.ndarray:
    options = EngineOptions(threads=threads, slots=1, context_length=family_models.CONTEXT, kv_cache=kind)
    with Engine.open(source, options, kernels=kernels()) as engine:
        return logits_of(engine, ids, last=last, chunk=chunk)


def test_every_family_has_a_model() -> None:
    """A card without a model would not be tested."""
    assert set(FAMILIES) == {name.partition(".")[0] for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_engines_bits(name: str) -> None:
    """Of all positions, and with one of the formats of the cache."""
    data, kind = family_models.model(name), CACHE_FORMATS[NAMES.index(name) % len(CACHE_FORMATS)]
    with opened(data) as source:
        found = _logits(source, IDS, kind, chunk=17)
    plain = plain_engine.Model(data, kind, family_models.CONTEXT).logits(IDS)
    assert np.array_equal(plain.view(np.uint32), found.view(np.uint32))


@pytest.mark.parametrize("name", NAMES)
def test_same_bits(name: str, tmp_path: Path) -> None:
    """Whatever the threads, the pieces of the prompt, and where weights come from: one result."""
    data, ids = family_models.model(name), [*IDS, *IDS, *IDS, *IDS]
    with opened(data) as source:
        expected = _logits(source, ids, threads=1)
    with opened(data) as source:
        assert np.array_equal(expected[-9:], _logits(source, ids, threads=3, last=9, chunk=1 + NAMES.index(name)))
    for how in ("compiled sealed", "plain"):
        with closing(stored(how, tmp_path, data, 4096)[1]()) as source:
            assert np.array_equal(expected[-9:], _logits(source, ids, threads=2, last=9)), how


@pytest.mark.parametrize("name", NAMES)
def test_guesses_change_no_answer(name: str) -> None:
    """Sampled after a text that repeats: the same tokens and logarithms, in fewer passes where guesses are tried. None
    are where layers keep a state."""
    phrase = IDS[1:13]
    sampling = Sampling(temperature=0.4, seed=4, logit_bias=dict.fromkeys(phrase[:3], 14.0), frequency_penalty=0.05,
                        top_logprobs=2)
    request = GenerationRequest([1, *phrase * 4], 60, sampling, ignore_end=True)
    answers, passes = [], []
    with opened(family_models.model(name)) as source:
        for speculate in (False, True):
            options = EngineOptions(threads=2, slots=1, context_length=200, speculate=speculate)
            with Engine.open(source, options, kernels=kernels()) as engine, patch.object(
                    engine._forward, "run", wraps=engine._forward.run) as run:
                answers.append(list(engine.generate(request)))
                passes.append(run.call_count)
    assert answers[0] == answers[1]
    assert passes[1] < passes[0] or (family_models.architecture(name).stateful and passes[1] == passes[0])


@pytest.mark.parametrize("name", NAMES)
def test_llama_cpps_choices(name: str, tmp_path: Path) -> None:
    """Fed its greedy continuations, the engine's best token is its own wherever its two best are apart, and no logit
    is far from its own: activations are rounded in other places. Where two experts are nearly as good, that may choose
    the other one: mixtures have weights for which none are rounded, and few tokens whose logits are far."""
    mixture = family_models.architecture(name).mixture is not None
    data = family_models.model(name, ("F32",)) if mixture else family_models.model(name)
    (tmp_path / "model.gguf").write_bytes(data)
    with LlamaModel(tmp_path / "model.gguf", family_models.CONTEXT, family_models.VOCABULARY) as peer:
        theirs = [(prompt, *peer.greedy(prompt, 40)) for prompt in family_models.prompts()]
    apart = wrong = wrong_far = 0
    far = []
    with opened(data) as source, Engine.open(
            source, EngineOptions(threads=1, slots=1, context_length=family_models.CONTEXT),
            kernels=kernels()) as engine:
        for prompt, tokens, rows in theirs:
            found = logits_of(engine, [*prompt, *tokens[:-1]], last=len(tokens))
            second, best = np.sort(rows, axis=1)[:, -2:].T
            far += (np.abs(found - rows).max(axis=1) / rows.std()).tolist()
            other = found.argmax(axis=1) != tokens
            apart += int((best - second > 0.5).sum())
            wrong += int((other & (best - second > 0.5)).sum())
            wrong_far += int((other & (best - second > 1.0)).sum())
    assert apart >= 100
    assert np.mean(np.greater(far, 1 / 3)) <= (0.03 if mixture else 0)
    assert np.median(far) <= (0.02 if mixture else 1 / 3)
    assert mixture or (True, 0) == (wrong <= apart / 1000, wrong_far)


@pytest.mark.parametrize("name", ["qwen2vl", "qwen3vl"])
def test_sections_change_no_bit_of_a_text(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its positions in time, height and width are equal, so each pair turns as if there were one kind."""
    found = []
    for sections in (family_models.MODELS[name]["rope.dimension_sections"], [2, 7, 7, 0], None):
        monkeypatch.setitem(family_models.MODELS, name, family_models.MODELS[name] | {
            "rope.dimension_sections": sections})
        with opened(family_models.model.__wrapped__(name)) as source:
            found.append(_logits(source, IDS))
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


def test_llama_cpps_choices_can_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison sees a model whose heads are turned by other pairs."""
    monkeypatch.setitem(family_models.NOT_THERE, "qwen2", ("output.bias",))  # which llama does not have
    data = family_models.model.__wrapped__("qwen2")
    (tmp_path / "model.gguf").write_bytes(data)
    with LlamaModel(tmp_path / "model.gguf", family_models.CONTEXT, family_models.VOCABULARY) as peer:
        tokens, _ = peer.greedy(IDS, 40)
    with opened(data.replace(b"qwen2", b"llama")) as source:
        found = _logits(source, [*IDS, *tokens[:-1]], last=len(tokens))
    assert (found.argmax(axis=1) != tokens).mean() > 0.3


@pytest.mark.parametrize(("name", "other", "words"), [
    ("qwen3", {"blk.0.ffn_gate_inp.weight", "blk.1.ffn_gate_inp.weight"},
     "the nearest family is qwen3 (Qwen3 from 0.6B to 32B); beside it the model has other tensors: ffn_gate_inp.w"),
    ("phi2", {"blk.0.a\x1b[2J"}, "beside it the model has other tensors: one with an odd name"),
    ("gemma3", set(), "beside it the model has no other tensor and no other key, but an unknown order of operations")])
def test_the_nearest_family(name: str, other: set[str], words: str) -> None:
    """Its name, and what differs; names of a stranger are shown only where they are plain."""
    metadata = {key.replace(name, "new"): value for key, value in family_models.metadata(name).items()}
    tensors = dict(required_shapes(family_models.architecture(name))) | dict.fromkeys(other, (4, 4))
    with pytest.raises(UnsupportedError) as caught:
        architecture_of(metadata | {"general.architecture": "new"},
                        {tensor: SimpleNamespace(shape=shape) for tensor, shape in tensors.items()})
    assert words in str(caught.value.hint)
    assert "architecture is new" in caught.value.summary


WORDS = st.sampled_from(["", "yarn", "none", "x"])
VALUES = st.one_of(st.none(), st.booleans(), st.integers(-2, 1 << 20), st.floats(width=32), WORDS,
                   st.lists(st.one_of(st.integers(-1, 9), st.booleans(), st.floats(width=32)), max_size=5))


@pytest.mark.parametrize("family", FAMILIES)
@given(data=st.data())
@settings(deadline=None, max_examples=40)
def test_any_header(family: str, data: st.DataObject) -> None:
    """Whatever a header says, it gives an architecture within the kernels' ranges, or a refusal."""
    metadata = family_models.metadata(family)
    keys = sorted(metadata.keys() | {f"{family}.{key}" for key in keys_of(FAMILIES[family])[1]})
    changed = data.draw(st.dictionaries(st.sampled_from(keys), VALUES, max_size=3))
    try:
        found = architecture_of(metadata | changed | {"general.architecture": family})
    except (FormatError, UnsupportedError):
        return
    for layer in found.every:
        if not layer.kv_heads:
            assert 0 == layer.heads == layer.feed_forward % 32
            assert (layer.recurrence is None) == (FAMILIES[family].single and layer.feed_forward > 0)
            assert layer.recurrence is None or 0 < layer.recurrence.state_floats < 1 << 25
            continue
        assert 0 < layer.kv_heads <= layer.heads
        assert layer.heads % layer.kv_heads == 0
        assert layer.head_size in HEAD_SIZES
        assert 0 == layer.query_width % 32 == layer.feed_forward % 32
        assert layer.rope is None or 0 < (layer.rope.turned or layer.head_size) <= layer.head_size


def test_the_plain_engine_has_the_cards() -> None:
    """Its literal of families is what the cards say today."""
    assert 0 == subprocess.run([sys.executable, "docs/site/families.py", "--check"], cwd=ROOT, check=False).returncode


def test_hostile_headers() -> None:
    """Mutated files are refused or have a program, and nothing else happens. `make soak` goes on for longer."""
    count, finding = driver.run(families_fuzz.fuzz, families_fuzz.seeds(), seconds=examples(1, 2), seed=1, least=30)
    assert (True, None) == (count >= 30, finding)
