"""Models of dimensions drawn from a seed: close to the reference, and the same bits however they are run, which are
the plain engine's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.layouts.attention import CACHE_FORMATS
from appliance.models.sources.streamed import StreamedSource
from examples import plain_engine
from tests.support import any_models, switching
from tests.support.engines import kernels, opened
from tests.support.extent import some
from tests.support.logits import logits_of
from tests.support.reference_model import ReferenceModel, divergence
from tests.support.streams import stored

SEEDS = range(18)
KINDS = ("sealed", "plain", "compiled sealed", "compiled plain")


def _logits(source: object, ids: list[int], kind: str, *, threads: int = 1, last: int | None = None,
            chunk: int = 64) -> np.ndarray:
    with Engine.open(
            source, EngineOptions(threads=threads, slots=1, context_length=any_models.CONTEXT, kv_cache=kind),
            kernels=kernels()) as engine:
        return logits_of(engine, ids, last=last, chunk=chunk)


def _drawn(seed: int) -> tuple[bytes, list[int], str, np.random.Generator]:
    """A model, a prompt of up to 300 tokens, a format of the cache, and what further choices are drawn from."""
    random = np.random.default_rng([9, seed])
    vocabulary = any_models.shape(seed).vocabulary
    ids = [1, *random.integers(3, vocabulary, random.integers(1, 300)).tolist()]
    return any_models.model(seed), ids, CACHE_FORMATS[seed % len(CACHE_FORMATS)], random


@pytest.mark.parametrize("seed", some(SEEDS, 9))
def test_close_to_the_reference(seed: int) -> None:
    """Weights of 16 bits or more leave the order of sums alone, others what rounding activations to 8 bits does.

    (Without a bias, divergence is 0.05 to 2.5, or 0.02 in one of the first.)
    """
    data, ids, kind, _ = _drawn(seed)
    ids, exact = ids[:100], any_models.shape(seed).exact
    kind = "f16" if exact else kind
    reference = ReferenceModel(data, round_cache=kind).logits(ids)
    with opened(data) as source:
        found = _logits(source, ids, kind, threads=2)
    if exact:
        assert np.abs(found - reference).max() < 2e-3 * reference.std()
    assert divergence(reference, found).mean() < (0.02 if kind in ("q4", "q8q4") else 0.005)


@pytest.mark.parametrize("seed", some(SEEDS, 5))
def test_the_plain_engines_bits(seed: int) -> None:
    """Of all positions, for the beginning of the prompt."""
    data, ids, kind, _ = _drawn(seed)
    ids = ids[:24]
    with opened(data) as source:
        found = _logits(source, ids, kind, threads=2)
    plain = plain_engine.Model(data, kind).logits(ids)
    assert np.array_equal(plain.view(np.uint32), found.view(np.uint32))


@pytest.mark.parametrize("seed", some(SEEDS, 9))
def test_same_bits(seed: int, tmp_path: Path) -> None:
    """Whatever the threads, the pieces of the prompt, where weights come from, and who is interrupted: one result."""
    data, ids, kind, random = _drawn(seed)
    with opened(data) as source:
        expected = _logits(source, ids, kind)
    with opened(data) as source:
        last = random.integers(1, len(ids) + 1)
        found = _logits(source, ids, kind, threads=3, last=last, chunk=random.integers(1, 65))
    assert np.array_equal(expected[-last:], found)
    names = any_models.matrices(seed)
    for how in KINDS:
        make = stored(how, tmp_path, data, int(random.choice([4096, 16384, 65536, 1 << 20])))[1]
        some = {"resident": [name for name in names if random.random() < 0.2],
                "kept": [name for name in names if random.random() < 0.4],
                "access": random.choice(("hidden", "oblivious", "leaks")), "drop": bool(random.random() < 0.3)}
        with switching.often(), closing(make(**some)) as source:
            assert isinstance(source, StreamedSource)
            if random.random() < 0.3:
                source.narrow()
            last = random.integers(1, len(ids) + 1)
            found = _logits(source, ids, kind, threads=random.integers(1, 4), last=last)
        assert np.array_equal(expected[-last:], found), (how, some)
