"""The forward pass: close to the float32 reference, and the same bits whatever the batch, chunks and threads."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.kvcache import KVCache
from appliance.engine.forward.rotations import turns
from appliance.errors import EngineError
from appliance.families import names
from appliance.kernels.compiler.registry import Kernel
from appliance.kernels.layouts.shapes import group_nbytes
from appliance.kernels.layouts.step import Step, Weight
from appliance.kernels.runtime.memory import Memory
from appliance.kernels.runtime.signature import CSignature
from tests.support import synthetic
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.logits import logits_of
from tests.support.reference_model import ReferenceModel

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 399).tolist()]


@pytest.fixture(scope="module")
def expected():
    """Logits of IDS: one thread, chunks of 64."""
    with running("mixed") as engine:
        return logits_of(engine, IDS)


@pytest.mark.parametrize(("threads", "chunk"), [(1, 1), (2, 64), (3, 7), (2, 1), (5, 33)])
def test_bits_do_not_depend_on_threads_and_chunks(expected, threads, chunk):
    """400 positions (two spans of attention) give the same bits for every thread count and prompt chunking."""
    with running("mixed", threads=threads) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS, chunk=chunk))


def test_bits_do_not_depend_on_the_batch(expected):
    """Sequences in several slots, decoded together from different depths, get the bits they get alone."""
    with running("mixed", threads=2, slots=4) as engine:
        forward = engine._forward
        depths = {0: 300, 2: 17, 3: 255}
        for slot, depth in depths.items():
            forward.run(IDS[:depth], range(depth), [slot] * depth, [])
        for _ in range(3):
            tokens = [IDS[depth] for depth in depths.values()]
            found = forward.run(tokens, list(depths.values()), list(depths), range(len(depths)))
            for row, depth in enumerate(depths.values()):
                assert np.array_equal(expected[depth], found[row])
            depths = {slot: depth + 1 for slot, depth in depths.items()}


def test_mixed_prefill_and_decode(expected):
    """One pass that decodes one slot, reads a prompt into another, and skips logits nobody asked for."""
    with running("mixed", threads=2) as engine:
        forward = engine._forward
        forward.run(IDS[:100], range(100), [1] * 100, [])
        tokens, positions = [IDS[100], *IDS[:70]], [100, *range(70)]
        found = forward.run(tokens, positions, [1, *[3] * 70], [0, 70, 35])
        for row, position in enumerate([100, 69, 34]):
            assert np.array_equal(expected[position], found[row])


@pytest.mark.parametrize("name", ["Q8_0", "mixed", "tied", "rope-linear", "rope-yarn", "rope-factors"])
def test_close_to_the_reference(name):
    """Every variant of heads, head size, rope and tied output is as close to float32 as its 8-bit activations allow."""
    ids = IDS[:130]
    reference = ReferenceModel(synthetic_model(name)).logits(ids)
    with running(name, threads=2) as engine:
        found = logits_of(engine, ids)
    error = np.abs(found - reference).mean() / reference.std()
    assert error < 0.04
    assert np.mean(found.argmax(-1) == reference.argmax(-1)) > 0.93


@pytest.mark.parametrize("name", ["F32", "BF16"])
def test_exact_activations(name):
    """Without quantised activations only the half-precision cache and the order of sums are left."""
    reference = ReferenceModel(synthetic_model(name), round_cache=True).logits(IDS[:130])
    with running(name) as engine:
        found = logits_of(engine, IDS[:130])
    assert np.abs(found - reference).max() < 2e-3 * reference.std()


@pytest.mark.parametrize("bad", [0.0, -1.0, 1e-45, 9e-4])
def test_divisors_of_rotations_near_zero(bad):
    """Divisors of the rotations' frequencies that would make them infinite, or close to it, are refused."""
    factors = synthetic.rope_factors(synthetic.VARIANTS["rope-factors"].head_size)
    data = synthetic_model("rope-factors")
    assert 1 == data.count(factors.tobytes())
    broken = data.replace(factors.tobytes(), np.array([*factors[:-1], bad], np.float32).tobytes())
    with opened(broken) as source, pytest.raises(EngineError, match=r"rope_freqs\.weight has values below 0\.001"):
        Engine.open(source, EngineOptions(threads=1, slots=1), kernels=kernels())


def test_logits_of_the_last_rows(expected):
    """The last rows alone have the bits that they have among all."""
    with running("mixed") as engine:
        assert np.array_equal(expected[-3:], logits_of(engine, IDS, last=3))


@functools.cache
def fetching():
    """A compiled fetch function: tile n of a matrix lies at n times a stride; context: address of (base, stride)."""
    pytest.importorskip("numba")
    kernels()
    from appliance.kernels.compiler import lower
    from appliance.kernels.compiler.vector import get_i64

    def fetch_tile(context, tile, thread):
        return get_i64(context) + tile * get_i64(context + 8)
    loader = lower.Loader()
    return loader, loader.load(Kernel("fetch_tile", CSignature.parse("i8(i8,i8,i8)"), fetch_tile))


@pytest.mark.parametrize("groups", [1, 3, 100])
def test_weights_tile_by_tile(expected, groups):
    """Weights asked for in tiles of some groups of rows give the same bits as weights at one address."""
    with running("mixed", threads=2) as engine:
        forward, contexts = engine._forward, []
        places = [(forward._program_tables.weights, Weight.nbytes * number)
                  for number in range(synthetic.LAYERS * len(names.MATRICES))]
        places.append((forward._step, Step.offsets["OUTPUT_WEIGHT"]))
        names_ = [names.in_layer(i, part) for i in range(synthetic.LAYERS) for part in names.MATRICES] + [names.OUTPUT]
        for (words, base), name in zip(places, names_, strict=True):
            weight = engine._source.weight(name)
            context = Memory(16)
            context.view(np.int64)[:] = weight.address, groups * group_nbytes(weight.format.name, weight.columns)
            contexts.append(context)
            words.put(Weight, {"ADDRESS": 0, "FETCH": fetching()[1], "FETCH_CONTEXT": context.address,
                               "TILE_GROUPS": groups}, base)
        assert np.array_equal(expected, logits_of(engine, IDS, chunk=64))


def test_wiped_slots_and_release():
    """A finished sequence leaves no key or value behind, and a released cache is all zero before it goes."""
    with running("tied") as engine:
        cache: KVCache = engine._cache
        engine._forward.run(IDS[:80], range(80), [1] * 80, [])
        memory = cache._memory.view(np.uint64)
        assert memory.any()
        cache.give_back(1)
        assert not memory.any()


def test_rope_tables_of_long_positions():
    """The table equals cosine and sine in float64 at the last position, and its first row is no rotation."""
    with running("tied") as engine:
        shape = engine.architecture
    table = turns(shape.rope, shape.head_size, 500, None)
    pair = np.arange(shape.head_size // 2)
    angles = 499 * 10000.0 ** (-pair / len(pair))
    assert np.array_equal(np.cos(angles).astype(np.float32), table[499, ::2])
    assert np.array_equal(np.sin(angles).astype(np.float32), table[499, 1::2])
    assert np.array_equal([1.0, 0.0] * len(pair), table[0])


def test_architecture_of_the_synthetic_model():
    """The dimensions read are those written."""
    with running("mixed") as engine:
        shape = engine.architecture
    assert (synthetic.LAYERS, synthetic.DIM, 8, 2, 32, synthetic.FFN, synthetic.VOCAB, synthetic.CONTEXT) == (
        shape.layers, shape.embedding, shape.heads, shape.kv_heads, shape.head_size, shape.feed_forward,
        shape.vocabulary, shape.context_length)


@pytest.mark.parametrize("change", [{"slots": 0}, {"slots": 10**6}, {"context": 0}])
def test_impossible_engines_are_refused(change):
    """No slots, too many slots, no context."""
    with pytest.raises(EngineError), running("tied", **change):
        pass
