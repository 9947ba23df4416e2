"""Caches of 8 and 4 bits in the whole engine: size, accuracy, and the same bits whatever the batch and the threads."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.kvcache import KVCache, slot_nbytes
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from appliance.kernels.layouts.attention import CACHE_FORMATS
from appliance.models.file import gguf, quants
from tests.support import synthetic
from tests.support.demo_model import demo_model
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.golden_files import load
from tests.support.logits import logits_of
from tests.support.plain import open_resident
from tests.support.reference_model import ReferenceModel, divergence

IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 399).tolist()]
SMALL = ("q8", "q4", "q8q4")


@pytest.fixture(scope="module", params=SMALL)
def cached(request):
    """A format, and logits of IDS with it: one thread, chunks of 64."""
    with running("mixed", kv_cache=request.param) as engine:
        return request.param, logits_of(engine, IDS)


@pytest.mark.parametrize(("threads", "chunk"), [(1, 1), (2, 64), (3, 7), (5, 33)])
def test_bits_do_not_depend_on_threads_and_chunks(cached, threads, chunk):
    """400 positions (two spans of attention) give the same bits for every thread count and prompt chunking."""
    kind, expected = cached
    with running("mixed", threads=threads, kv_cache=kind) as engine:
        assert np.array_equal(expected, logits_of(engine, IDS, chunk=chunk))


def test_bits_do_not_depend_on_the_batch(cached):
    """Slots decoded together from different depths, beside a prompt, get the bits they get alone."""
    kind, expected = cached
    with running("mixed", threads=2, slots=4, kv_cache=kind) as engine:
        forward, depths = engine._forward, {0: 300, 2: 17, 3: 255}
        for slot, depth in depths.items():
            forward.run(IDS[:depth], range(depth), [slot] * depth, [])
        tokens = [*(IDS[depth] for depth in depths.values()), *IDS[:70]]
        found = forward.run(tokens, [*depths.values(), *range(70)], [*depths, *[1] * 70], [0, 1, 2, 72])
        for row, depth in enumerate([*depths.values(), 69]):
            assert np.array_equal(expected[depth], found[row])


@pytest.mark.parametrize("name", ["F32", "BF16"])
@pytest.mark.parametrize("kind", CACHE_FORMATS)
def test_close_to_the_reference(name, kind):
    """With exact activations, a numpy model that rounds its cache the same way differs by rounding's own jumps only."""
    reference = ReferenceModel(synthetic_model(name), round_cache=kind).logits(IDS[:130])
    with running(name, kv_cache=kind) as engine:
        found = logits_of(engine, IDS[:130])
    error = np.abs(found - reference)
    assert np.sqrt((error ** 2).mean()) < {"f16": 2e-3, "q8": 4e-3, "q4": 2e-2, "q8q4": 2e-2}[kind] * reference.std()


@pytest.mark.parametrize("kind", SMALL)
def test_answers_do_not_depend_on_company_and_guesses(kind):
    """Answers of repeating text, sampled: alone without guesses, and eight at a time with them."""
    phrase = np.random.default_rng(1).integers(259, 512, 12).tolist()
    requests = [GenerationRequest((1, *(phrase * 5)[:20 + 7 * seed]), 24, Sampling(seed=seed, temperature=0.4),
                                  ignore_end=True) for seed in range(8)]
    with running("tied", context=256, kv_cache=kind, speculate=False) as engine:
        alone = [[advance.token for advance in engine.generate(each)] for each in requests]
    with running("tied", context=256, kv_cache=kind, threads=2) as engine:
        assert alone == [[advance.token for advance in engine.generate(each)] for each in requests]
        scheduler, answers = Scheduler(engine), [[] for _ in requests]
        handles = [scheduler.submit(each, "tenant", lambda advance, to=to: to.append(advance.token))
                   for each, to in zip(requests, answers, strict=True)]
        try:
            assert all(handle.wait(60) for handle in handles)
        finally:
            scheduler.close()
    assert alone == answers


def test_memory_of_a_position():
    """Half, then a quarter, of the bytes, and the scales: 34 and 18 bytes for 32 elements instead of 64; the mean of
    both."""
    with running("mixed") as engine:
        shape = engine.architecture
    sizes = [slot_nbytes(shape, 1024, kind) for kind in CACHE_FORMATS]
    elements = 2 * shape.layers * shape.kv_width * 1024
    assert [elements * 64 // 32, elements * 34 // 32, elements * 18 // 32, elements * 26 // 32] == sizes


@pytest.mark.parametrize("kind", SMALL)
def test_wiped_slots(kind):
    """A finished sequence leaves no byte of its keys and values behind."""
    with running("tied", kv_cache=kind) as engine:
        cache: KVCache = engine._cache
        engine._forward.run(IDS[:80], range(80), [1] * 80, [])
        memory = cache._memory.view(np.uint64)
        assert memory.any()
        cache.give_back(1)
        assert not memory.any()


def test_unknown_formats_are_refused():
    """A format that there is not, with the ones there are."""
    with pytest.raises(EngineError, match="no KV cache of format 'q5'") as caught, running("tied") as engine:
        Engine.open(engine._source, EngineOptions(kv_cache="q5", threads=1), kernels=kernels())
    assert "f16, q8, q4, q8q4" in (caught.value.hint or "")


# Mean KL divergence from the f16 cache on the demo model's prompts, in nats, as measured: 8 bits cost less than the
# 8-bit activations do, 4 bits are a trade that an operator must choose.
ALLOWED = {"q8": 8e-3, "q4": 0.25, "q8q4": 0.12}


@pytest.mark.parametrize("kind", SMALL)
def test_divergence_from_f16(kind):
    """On the demo model's prompts."""
    golden, logits = load("demo", "demo"), {}
    for each in ("f16", kind):
        with contextlib.closing(open_resident(demo_model(), bytes.fromhex(golden.sha256))) as source, Engine.open(
                source, EngineOptions(context_length=1024, slots=1, kv_cache=each), kernels=kernels()) as engine:
            logits[each] = [logits_of(engine, [*prompt, *more])[-len(more):]
                            for prompt, more in zip(golden.prompts[:10], golden.continuations, strict=False)]
    found = np.concatenate([divergence(a, b) for a, b in zip(logits["f16"], logits[kind], strict=True)])
    print(kind, len(found), found.mean(), np.median(found), found.max())
    assert found.mean() < ALLOWED[kind]


@pytest.mark.parametrize("kind", CACHE_FORMATS)
@pytest.mark.parametrize("name", ["F16", "Q4_0", "Q8_0", "Q3_K", "mixed"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_no_number_does_not_become_one(name, kind, bad):
    """A token whose weights are not numbers has no logits, nor has who comes after it; who comes before has their own,
    in the same pass too, and so has another token in its place."""
    model = bytearray(synthetic_model(name))
    embedding = gguf.parse(bytes(model)).tensors["token_embd.weight"]
    row = embedding.nbytes // embedding.rows
    weights = np.frombuffer(model, np.uint8, row, embedding.offset + 7 * row)
    weights.view(quants.layout(embedding.format))["x" if name == "F16" else "d"][0] = bad
    ids = [*IDS[:70], 7, *IDS[71:140]]
    with running(name, threads=2, kv_cache=kind) as engine:
        expected = logits_of(engine, IDS[:140])
    with opened(bytes(model)) as source, Engine.open(
            source, EngineOptions(threads=2, slots=1, context_length=140, kv_cache=kind), kernels=kernels()) as engine:
        found = logits_of(engine, ids)
        assert np.array_equal(expected[:70], found[:70])
        assert np.isnan(found[70:]).all()
        engine._forward.run(ids[:75], range(75), [0] * 75, [])
        engine._forward.boundary.forget(0, 70)
        assert np.array_equal(expected[70:71], engine._forward.run(IDS[70:71], [70], [0], [0]))


def test_logits_of_a_text_with_narrow_passes():
    """Where passes are narrower than the rows with logits may be many, texts are read in pieces of a pass."""
    data = synthetic_model("tied")
    with opened(data) as source, Engine.open(
            source, EngineOptions(threads=1, slots=1, rows=32), kernels=kernels()) as engine:
        found = logits_of(engine, IDS[:70])
    with running("tied", slots=1) as engine:
        assert np.array_equal(logits_of(engine, IDS[:70]), found)
