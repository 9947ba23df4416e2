"""Experts beyond what each family's model shows: ties, other rows in a pass, routers that give no numbers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.kernels.layouts.step import Step
from appliance.models.file import gguf
from examples import plain_engine
from tests.support import family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

IDS = [1, *np.random.default_rng(8).integers(3, family_models.VOCABULARY, 59).tolist()]
FLOATS = ("F32",)  # of routers, too: their rows can be set


@contextmanager
def _engine(data: bytes, *, slots: int = 1, threads: int = 2) -> Iterator[Engine]:
    with opened(data) as source, Engine.open(
            source, EngineOptions(threads=threads, slots=slots, context_length=128), kernels=kernels()) as engine:
        yield engine


class _Watched(plain_engine.Model):
    """The plain engine, which keeps the experts that rows chose."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data, "f16", 128)
        self.seen: list[np.ndarray] = []

    def chosen(self, layer: int, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As it chooses them."""
        ids, weights = super().chosen(layer, x)
        self.seen.append(ids)
        return ids, weights


def _routed(name: str, number: float | None) -> bytes:
    """A model whose routers are one number, or else have each row twice."""
    data = bytearray(family_models.model(name, FLOATS))
    for info in gguf.parse(bytes(data)).tensors.values():
        if "ffn_gate_inp.weight" in info.name:
            rows = np.frombuffer(data, np.float32, info.nbytes // 4, info.offset).reshape(info.shape)
            rows[:] = rows[:len(rows) // 2].repeat(2, axis=0) if number is None else number
    return bytes(data)


@pytest.mark.parametrize("name", ["qwen3moe", "bailingmoe2"])
def test_ties_go_to_the_lowest_number(name: str) -> None:
    """Experts 2i and 2i + 1 have the same row of the router, and so the same score, unless biases differ."""
    data = _routed(name, None)
    model = _Watched(data)
    plain = model.logits(IDS)
    ids = np.concatenate(model.seen)
    assert np.all(np.diff(ids, axis=1) > 0)
    if name == "qwen3moe":  # three of them: whole pairs, and the lower one of a pair
        alone = [number for row in ids.tolist() for number in row if number ^ 1 not in row]
        assert (len(ids), 0) == (len(alone), sum(number % 2 for number in alone))
    with _engine(data) as engine:
        assert np.array_equal(plain.view(np.uint32), logits_of(engine, IDS, chunk=13).view(np.uint32))


@pytest.mark.parametrize("name", ["qwen3moe", "qwen2moe"])
def test_other_rows_of_a_pass_change_no_bit(name: str) -> None:
    """Whoever else chose its experts: rows of six texts in one pass have the bits that each has by itself."""
    data, slots = family_models.model(name), 6
    texts = [IDS[slot:] + IDS[:slot] for slot in range(slots)]
    with _engine(data) as engine:
        alone = []
        for text in texts:
            engine._forward.boundary.forget(0)
            alone.append(engine._forward.run(text[:21], range(21), [0] * 21, [20])[0].copy())
            alone.append(engine._forward.run([text[21]], [21], [0], [0])[0].copy())
    with _engine(data, slots=slots, threads=3) as engine:
        forward, rows = engine._forward, range(slots)
        for first, last in ((0, 9), (9, 21)):
            count = last - first
            tokens = [token for text in texts for token in text[first:last]]
            found = forward.run(tokens, [*range(first, last)] * slots, [slot for slot in rows for _ in range(count)],
                                [count * slot + count - 1 for slot in rows]).copy()
        after = forward.run([text[21] for text in texts], [21] * slots, list(rows), list(rows)).copy()
    assert np.array_equal(np.array(alone[::2]), found)
    assert np.array_equal(np.array(alone[1::2]), after)


@pytest.mark.parametrize("number", [np.nan, np.inf, 0.0])
def test_a_router_that_gives_no_numbers(number: float) -> None:
    """As many experts as ever are chosen, each once, and nothing is touched that is not theirs; with a router of zeros
    all experts are equal."""
    data = _routed("glm4moe", number)
    with _engine(data) as engine:
        found = logits_of(engine, IDS, chunk=17)
        choices, used = Step(engine._forward._step.address).CHOICES, engine.architecture.mixture.used
        ids = np.array([choices[index].EXPERT for index in range(9 * used)]).reshape(9, used)  # of the last pass
        assert 0 <= ids.min()
        assert ids.max() < engine.architecture.mixture.count
        assert np.all(np.diff(ids, axis=1) > 0)
        assert np.isfinite(engine._forward.run([5], [0], [0], [0])).all() or number != 0.0
    if number == 0.0:
        assert np.array_equal(plain_engine.Model(data, "f16", 128).logits(IDS).view(np.uint32), found.view(np.uint32))
