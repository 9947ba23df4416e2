"""Answers longer than their context: the older half is dropped, and the rest is read again, to the bit."""

from __future__ import annotations

import numpy as np
import pytest

from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.decode.sampler import Sampling
from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.scheduler import Scheduler
from appliance.errors import EngineError
from appliance.kernels.layouts.attention import CACHE_FORMATS
from tests.support import synthetic
from tests.support.engines import kernels, opened, running, synthetic_model
from tests.support.logits import logits_of

CONTEXT = 150
IDS = [1, *np.random.default_rng(3).integers(3, synthetic.VOCAB, 99).tolist()]


def request(tokens, keep=1, prompt=IDS, seed=1):
    """A request that goes on beyond the context."""
    return GenerationRequest(prompt, tokens, Sampling(seed=seed, temperature=0.9), ignore_end=True, shift_keep=keep)


def shown(text, keep):
    """What is in the context when a text's next token is chosen, by the documentation."""
    half, head, rest = (CONTEXT - keep) // 2, text[:keep], text[keep:]
    while len(head) + len(rest) > CONTEXT:
        rest = rest[half:]
    return head + rest


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", CACHE_FORMATS)
def test_what_stays_is_read_again(kind, keep):
    """Over four shifts, the logits of each token are those of a prompt of what stayed."""
    with running("mixed", context=CONTEXT, kv_cache=kind, threads=2, speculate=False) as engine:
        batcher, logits = engine.acquire(), []
        one = batcher.add(engine.generation(request(400, keep)))
        advance = one.generation.advance

        def seen(row, beside=None):
            logits.append(row.copy())
            return advance(row, beside)
        one.generation.advance = seen
        while not one.generation.finished:
            batcher.run()
        batcher.remove(one)
        engine.release()
        tokens = one.generation.tokens
        assert (400, "length") == (len(tokens), one.generation.finish_reason)
        for count in (0, 49, 50, 51, 52, 126, 127, 128, 200, 399):
            text = shown([*IDS, *tokens[:count]], keep)
            assert np.array_equal(logits_of(engine, text, last=1)[0], logits[count]), count
        assert not engine._cache._memory.view("u1").any()


def test_company_and_guesses_change_nothing():
    """Answers that shift, eight at a time with guesses and kept prefixes, have the tokens of each alone without."""
    phrase = np.random.default_rng(1).integers(259, 512, 12).tolist()
    requests = [request(220, 0, (1, *(phrase * 9)[:30 + 7 * seed]), seed) for seed in range(8)]
    with running("tied", context=CONTEXT, speculate=False) as engine:
        alone = [[advance.token for advance in engine.generate(each)] for each in requests]
    with opened(synthetic_model("tied")) as source, Engine.open(
            source, EngineOptions(threads=2, slots=4, context_length=CONTEXT, prefix_nbytes=1 << 20),
            kernels=kernels()) as engine:
        assert alone == [[advance.token for advance in engine.generate(each)] for each in requests]
        scheduler, answers = Scheduler(engine, tenants=["one"], prefix_lifetime=60.0), [[] for _ in requests]
        handles = [scheduler.submit(each, "one", lambda advance, to=to: to.append(advance.token))
                   for each, to in zip(requests, answers, strict=True)]
        try:
            assert all(handle.wait(120) for handle in handles)
        finally:
            scheduler.close()
    assert alone == answers


def test_forks_that_shift():
    """A parent and its fork both go on beyond the context, each as its own text alone."""
    with running("tied", context=CONTEXT, speculate=False) as engine:
        alone = []
        for seed in (1, 2):
            alone.append([advance.token for advance in engine.generate(request(150, 0, seed=seed))])
        batcher = engine.acquire()
        parent = batcher.add(engine.generation(request(150, 0)))
        while parent.position < len(IDS) - 1:
            batcher.run()
            if not parent.todo or parent.generation.tokens:
                break
        assert 1 == len(parent.generation.tokens)
        child = batcher.fork(parent, engine.generation(request(150, 0, seed=2)))
        child.position, child.todo = len(IDS) - 1, [IDS[-1]]
        engine._forward.boundary.forget(child.slot, child.position)
        while not (parent.generation.finished and child.generation.finished):
            for one, advance in batcher.run():
                if advance.finish_reason is not None:
                    batcher.remove(one)
        assert alone == [parent.generation.tokens, child.generation.tokens]
        assert (0, engine._cache.pages) == (engine._cache.in_use, engine._cache.unclaimed)
        engine.release()


def test_bad_bounds_are_refused():
    """More first tokens than half of a context, or than the prompt has."""
    with running("tied", context=CONTEXT) as engine:
        for keep in (-1, 75, 101):
            with pytest.raises(EngineError, match=f"shift_keep is {keep}"):
                engine.generation(request(5, keep))
