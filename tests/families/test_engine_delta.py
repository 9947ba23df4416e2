"""Families with gated delta rules: logits of `transformers` in float32, which tests/goldens keeps, and the bits of the
plain engine however a text is read.

What is between the publisher's logits and ours is how sums are rounded: the publisher's code reads prompts in chunks of
64 positions, ours goes through them one by one. A logit is 1/5000 of what logits deviate by away at most; 1/14000 was
measured.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from appliance.engine.engine import Engine, EngineOptions
from appliance.engine.forward.states import state_nbytes
from appliance.errors import EngineError, FormatError, UnsupportedError
from appliance.families.header import architecture_of
from appliance.kernels.layouts.attention import CACHE_FORMATS
from examples import plain_engine
from tests.goldens.make_delta_goldens import KEPT
from tests.goldens.make_transformers_goldens import TOKENS
from tests.support import delta_models, family_models
from tests.support.engines import kernels, opened
from tests.support.logits import logits_of

GOLDENS = np.load(Path(__file__).parents[1] / "goldens/delta.npz")
CLOSE = 1 / 5000
TEXT = TOKENS[:KEPT[-1] + 1]
NAMES = list(delta_models.MODELS)


def _engine(source: object, *, threads: int = 2, slots: int = 1, kind: str = "f16", rows: int = 512) -> Engine:
    options = EngineOptions(threads=threads, slots=slots, context_length=family_models.CONTEXT, kv_cache=kind,
                            rows=rows)
    return Engine.open(source, options, kernels=kernels())


def _found(name: str, text: list[int] = TEXT, *, chunk: int = 64, **options: object) -> np.ndarray:
    with opened(delta_models.model(name)) as source, _engine(source, **options) as engine:
        return logits_of(engine, text, chunk=chunk)


@pytest.mark.parametrize("name", NAMES)
def test_the_publishers_logits(name: str) -> None:
    """Within the tolerance, at the same best token. No choice of experts is so close that rounding decides it: the
    script that makes the goldens checks that."""
    expected, found = GOLDENS[name], _found(name)[list(KEPT)]
    assert np.abs(expected - found).max() <= CLOSE * expected.std()
    assert np.array_equal(expected.argmax(axis=1), found.argmax(axis=1))


@pytest.mark.parametrize("name", NAMES)
def test_the_plain_engines_bits(name: str) -> None:
    """With each kind of cache, in pieces that do not end where the kernel's own do."""
    kind, text = CACHE_FORMATS[NAMES.index(name) % len(CACHE_FORMATS)], TEXT[:40]
    plain = plain_engine.Model(delta_models.model(name), kind, family_models.CONTEXT)
    expected = np.concatenate([plain.logits(text[:13]), plain.logits(text[13:])])
    for chunk, threads in ((40, 1), (7, 3), (1, 2)):
        found = _found(name, text, chunk=chunk, threads=threads, kind=kind)
        assert np.array_equal(expected.view(np.uint32), found.view(np.uint32)), (chunk, threads)


def test_the_comparison_sees_the_order_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose value heads belong to other keys is far from the golden."""
    row = delta_models.MODELS["qwen35"]
    monkeypatch.setitem(delta_models.MODELS, "qwen35", delta_models.Row({
        **row.header, "ssm.group_count": 4, "ssm.time_step_rank": 4}))
    values = delta_models.values

    def repeated(name: str, tensor: str, shape: tuple[int, ...]) -> np.ndarray:
        if "attn_qkv" not in tensor and "ssm_conv1d" not in tensor:
            return values(name, tensor, shape)
        size = delta_models.HEADER["ssm.state_size"]
        whole = values(name, tensor, (shape[0] - 4 * size, *shape[1:]))
        parts = [whole[size * index:size * (index + 1)] for index in range(4)]
        return np.concatenate([*(parts[index // 2] for index in range(4)),
                               *(parts[2 + index // 2] for index in range(4)), whole[4 * size:]])

    monkeypatch.setattr(delta_models, "values", repeated)
    with opened(delta_models.model.__wrapped__("qwen35")) as source, _engine(source) as engine:
        found = logits_of(engine, TEXT)[list(KEPT)]
    assert np.abs(GOLDENS["qwen35"] - found).max() > 100 * CLOSE * found.std()


@pytest.mark.parametrize("name", ["qwen35", "qwen3next"])
def test_texts_beside_each_other(name: str) -> None:
    """In one pass, in slots that had other texts before: the bits of each one by itself."""
    texts = [TEXT[:50], TEXT[60:97], TEXT[100:101]]
    alone = [_found(name, text) for text in texts]
    with opened(delta_models.model(name)) as source, _engine(source, slots=3) as engine:
        forward, cache = engine._forward, engine._cache
        for slot in range(3):
            forward.run(TEXT[5:25], range(20), [slot] * 20, [])
            cache.give_back(slot)
            forward.boundary.forget(slot)
        done = [0, 0, 0]
        for counts in ((20, 30, 1), (1, 1, 0), (29, 6, 0)):
            tokens, positions, slots, last = list[int](), list[int](), list[int](), list[int]()
            for slot, count in enumerate(counts):
                tokens += texts[slot][done[slot]:done[slot] + count]
                positions += range(done[slot], done[slot] + count)
                slots += [slot] * count
                done[slot] += count
                last += [len(tokens) - 1] if count else []
            found = forward.run(tokens, positions, slots, last)
            for row, slot in zip(found, [slot for slot, count in enumerate(counts) if count], strict=True):
                assert np.array_equal(row.view(np.uint32), alone[slot][done[slot] - 1].view(np.uint32))
    assert done == [len(text) for text in texts]


def test_a_state_is_wiped() -> None:
    """With its text, from the memory of its slot, and with the buffers of passes."""
    with opened(delta_models.model("qwen35")) as source, _engine(source, slots=2) as engine:
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
        engine._cache.give_back(1)
        forward.boundary.forget(1)


def test_a_state_does_not_go_back() -> None:
    """A row at a position that the state is past is refused; at position 0 a text begins anew."""
    with opened(delta_models.model("qwen35")) as source, _engine(source) as engine:
        forward = engine._forward
        first = forward.run(TEXT[:30], range(30), [0] * 30, [29]).copy()
        with pytest.raises(EngineError, match="state of 30 positions"):
            forward.run(TEXT[20:22], [20, 21], [0, 0], [])
        assert np.array_equal(forward.run(TEXT[:30], range(30), [0] * 30, [29]), first)
        engine._cache.give_back(0)
        forward.boundary.forget(0)


def test_layers_that_keep_a_state() -> None:
    """All but every fourth; or every second, as the file says; or those of its list, in which a layer that guesses is
    counted."""
    for name, expected in (("qwen35", [True] * 3 + [False]), ("qwen35.shared", [True, False] * 2),
                           ("qwen35.guessing", [True, True, False, True])):
        header = delta_models.metadata(name)
        assert expected == [layer.recurrence is not None for layer in architecture_of(header).every]
    header = delta_models.metadata("qwen35")
    del header["qwen35.full_attention_interval"]
    assert architecture_of(header) == architecture_of(delta_models.metadata("qwen35"))


@pytest.mark.parametrize(("key", "value", "words"), [
    ("ssm.state_size", 48, "multiple of 32"), ("ssm.state_size", 512, "ssm.state_size is 512"),
    ("ssm.state_size", None, "ssm.state_size is missing"), ("ssm.group_count", None, "ssm.group_count is missing"),
    ("ssm.group_count", 3, "cannot share 3 key heads evenly"), ("ssm.inner_size", 256, "allowed: 128"),
    ("ssm.time_step_rank", None, "ssm.time_step_rank is missing"), ("ssm.conv_kernel", 1, "ssm.conv_kernel is 1"),
    ("attention.recurrent_layers", [True, False], "has 2 entries"), ("full_attention_interval", 0, "is 0"),
    ("attention.recurrent_layers", [True] * 4, "a layer attends"), ("rope.dimension_sections", [8, 4, 2, 2], "fourth"),
])
def test_headers_that_do_not_run(key: str, value: object, words: str) -> None:
    """Each is refused by the name of its key."""
    header = delta_models.metadata("qwen35") | {f"qwen35.{key}": value}
    if value is None:
        del header[f"qwen35.{key}"]
    with pytest.raises((FormatError, UnsupportedError), match=words):
        architecture_of(header)


@pytest.mark.parametrize("name", ["qwen35moe", "qwen3next"])
def test_mixtures_need_no_other_width(name: str) -> None:
    """Files of mixtures without a dense layer do not name a width of one."""
    header = delta_models.metadata(name)
    del header[f"{name}.feed_forward_length"]
    assert architecture_of(header).mixture == architecture_of(delta_models.metadata(name)).mixture


def test_states_are_counted() -> None:
    """Of three layers, each with three rows of the convolution and four matrices."""
    assert state_nbytes(architecture_of(delta_models.metadata("qwen35"))) == 3 * 4 * (3 * 256 + 4 * 32 * 32)
