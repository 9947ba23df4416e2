"""Benchmarks with recurrent layers: shapes of models, the bytes of a bound, and small models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from appliance.boot.planning import inspection
from appliance.families.header import architecture_of
from appliance.families.tensors import check_tensors
from benchmarks import hybrids, mixture_models, mixtures, small_hybrids
from benchmarks.own_server import Own
from tests.support import family_models

# As the publishers count them, each with its own layers and vocabulary; a tied output matrix counts once.
PUBLISHED: dict[str, tuple[float, dict[str, Any]]] = {
    "qwen35.4b": (4.206e9, {"block_count": 32, "vocab_size": 248320}),
    "granitehybrid.tiny": (6.939e9, {"block_count": 40, "vocab_size": 100352, "attention.head_count_kv": [
        4 if layer in (5, 15, 25, 35) else 0 for layer in range(40)]}),
    "lfm2.1b": (1.170e9, {"block_count": 16, "vocab_size": 65536, "attention.head_count_kv": [
        8 if layer in (2, 5, 8, 10, 12, 14) else 0 for layer in range(16)]}),
}


@pytest.mark.parametrize("name", hybrids.SHAPES)
def test_shapes_are_the_publishers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all its layers and its whole vocabulary a shape has as many weights as its publisher says."""
    weights, whole = PUBLISHED[name]
    monkeypatch.setitem(family_models.MODELS, name, {**hybrids.SHAPES[name], **whole})
    shapes = family_models._shapes(name)
    assert sum(math.prod(size) for tensor, size in shapes.items() if tensor != "output.weight") == pytest.approx(
        weights, rel=0.001)


def test_the_bytes_of_a_bound(tmp_path: Path) -> None:
    """A bound reads what the file's own types say that a token needs; each token has experts of its own."""
    own = Own(None)
    own.open(str(mixture_models.make("small", 2, tmp_path)), 1, 64, 1)
    first, second = (own._weights(np.random.default_rng(seed)) for seed in (1, 2))
    needed, _ = mixtures.needed(mixture_models.SHAPES["small"], 2)
    assert sum(nbytes for _, nbytes in first) == sum(nbytes for _, nbytes in second) == needed
    assert len(set(first)) == len(first)
    assert first != second


@pytest.mark.parametrize("name", small_hybrids.NAMES)
def test_small_models_have_states_and_the_demo_models_tokenizer(
        name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a whole model whose layers keep states, and reads text as the other does."""
    demo = tmp_path / "demo.gguf"
    demo.write_bytes(family_models.model("llama"))
    monkeypatch.setattr(family_models, "MODELS", dict(family_models.MODELS))
    monkeypatch.setattr(family_models, "VOCABULARY", family_models.VOCABULARY)
    made, read = (inspection.header(each) for each in (small_hybrids.make(name, tmp_path, demo), demo))
    architecture = architecture_of(made.metadata)
    check_tensors(architecture, made.tensors)
    assert architecture.stateful
    assert made.metadata[small_hybrids.TOKENS] == read.metadata[small_hybrids.TOKENS]
