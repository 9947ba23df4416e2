"""Metadata and tensor tables: what is read, and how everything else is refused by name."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from appliance.engine.families.architecture import CONTEXT_CAP
from appliance.engine.families.cards.card import COMMON, Family
from appliance.engine.families.cards.names import MATRICES
from appliance.engine.families.header import architecture_of
from appliance.engine.families.table import FAMILIES
from appliance.engine.families.tensors import check_tensors, required
from appliance.errors import FormatError, UnsupportedError

SMALL = {
    "general.architecture": "llama", "llama.block_count": 2, "llama.context_length": 40_000,
    "llama.embedding_length": 256, "llama.feed_forward_length": 512, "llama.attention.head_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "tokenizer.ggml.tokens": ["a"] * 300,
}


def test_defaults():
    """What a file leaves out has the values of the GGUF specification."""
    shape = architecture_of(SMALL)
    assert (4, 64, 300, 256, 256) == (shape.kv_heads, shape.head_size, shape.vocabulary, shape.query_width,
                                      shape.kv_width)
    assert ("linear", 10_000.0, 1.0, 40_000, 1.0) == (
        shape.rope.scaling, shape.rope.base, shape.rope.factor, shape.rope.original_context, shape.rope.magnitude)
    assert [CONTEXT_CAP, 100, 40_000] == [shape.context(), shape.context(100), shape.context(100_000)]


def test_least_epsilon():
    """The least epsilon that a refusal names is allowed as files have it: rounded to 32 bits, and so below."""
    assert 1e-12 > architecture_of(SMALL | {"llama.attention.layer_norm_rms_epsilon": float(np.float32(1e-12))}).epsilon
    with pytest.raises(FormatError, match=r"allowed: a number in 1e-12\.\.0\.01"):
        architecture_of(SMALL | {"llama.attention.layer_norm_rms_epsilon": 9e-13})


def test_yarn():
    """YaRN's factor enlarges cosine and sine by 1 + ln(factor) / 10."""
    shape = architecture_of(SMALL | {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0,
                          "llama.rope.scaling.original_context_length": 4096})
    assert pytest.approx(1.138629436) == shape.rope.magnitude
    assert 4096 == shape.rope.original_context


@pytest.mark.parametrize(("change", "error", "word"), [
    ({"general.architecture": "qwen9"}, UnsupportedError, "qwen9"),
    ({"general.architecture": 3}, UnsupportedError, "3"),
    ({"llama.expert_count": 8}, UnsupportedError, "expert_count"),
    ({"llama.attention.sliding_window": 4096}, UnsupportedError, "sliding_window"),
    ({"llama.new_feature": 1}, UnsupportedError, "new_feature"),
    ({"llama.attention.causal": np.zeros(2)}, UnsupportedError, "causal"),
    ({"llama.rope.scaling.type": "longrope"}, UnsupportedError, "rope.scaling.type"),
    ({"llama.attention.key_length": 24}, UnsupportedError, r"llama\.attention\.key_length .* is 24"),
    ({"llama.attention.key_length": 528}, UnsupportedError, r"llama\.attention\.key_length .* is 528"),
    ({"llama.attention.head_count": 16}, UnsupportedError, r"embedding_length / attention\.head_count.* is 16"),
    ({"llama.attention.value_length": 128}, UnsupportedError, "value_length"),
    ({"llama.rope.dimension_count": 32}, UnsupportedError, "dimension_count"),
    ({"llama.embedding_length": 264}, FormatError, "key_length"),
    ({"llama.feed_forward_length": 500}, UnsupportedError, "feed_forward_length"),
    ({"llama.attention.head_count_kv": 3}, FormatError, r"llama\.attention\.head_count_kv is 3: .*evenly"),
    ({"llama.attention.head_count_kv": 8}, FormatError, "head_count_kv"),
    ({"llama.attention.head_count": np.array([4, 4])}, FormatError, "head_count"),
    ({"llama.block_count": 0}, FormatError, "block_count"),
    ({"llama.block_count": True}, FormatError, "block_count"),
    ({"llama.context_length": None}, FormatError, "missing"),
    ({"llama.attention.layer_norm_rms_epsilon": 1.0}, FormatError, "epsilon"),
    ({"llama.attention.layer_norm_rms_epsilon": float("nan")}, FormatError, "epsilon"),
    ({"llama.rope.freq_base": 0.0}, FormatError, "freq_base"),
    ({"llama.rope.scaling.factor": 1e-45}, FormatError, r"factor is 1e-45; allowed: 0, or a number in 0\.001"),
    ({"llama.rope.scale_linear": 9e-4}, FormatError, "factor is 0.0009"),
    ({"llama.rope.scaling.factor": -1.0}, FormatError, "factor"),
    ({"tokenizer.ggml.tokens": None}, FormatError, "vocab_size"),
    ({"tokenizer.ggml.suppress_tokens": np.array([5, 7], np.int32)}, UnsupportedError, "suppress_tokens"),
    ({"tokenizer.ggml.suppress_tokens": 5}, UnsupportedError, "suppress_tokens"),
])
def test_refusals_name_the_key(change, error, word):
    """Each value that we cannot run is refused with its key in the message."""
    with pytest.raises(error, match=word):
        architecture_of({**SMALL, **change} if change != {"llama.embedding_length": 264} else
             {**SMALL, **change, "llama.attention.head_count": 5})


def test_no_token_suppressed():
    """An empty list of tokens that no answer may have asks for nothing."""
    assert architecture_of(SMALL) == architecture_of(SMALL | {"tokenizer.ggml.suppress_tokens": np.empty(0, np.int32)})


@pytest.fixture
def tensors():
    """The table of a complete model with its own output head and one bias."""
    shape = architecture_of(SMALL)
    table = dict(required(shape))
    table |= {"output.weight": (300, 256), "blk.1.attn_q.bias": (256,)}
    return {name: SimpleNamespace(shape=shape) for name, shape in table.items()}


def test_complete_table(tensors):
    """Optional tensors are found, and the output head falls back to the embedding."""
    plan = check_tensors(architecture_of(SMALL), tensors)
    assert ("output.weight", {"blk.1.attn_q.bias"}) == (plan.output, set(plan.biases))
    del tensors["output.weight"]
    assert "token_embd.weight" == check_tensors(architecture_of(SMALL), tensors).output


def test_all_problems_are_named_at_once(tensors):
    """A missing, a surplus and a misshapen tensor are told in one error."""
    del tensors["blk.0.ffn_up.weight"]
    tensors["blk.2.attn_q.weight"] = SimpleNamespace(shape=(256, 256))
    tensors["output_norm.weight"] = SimpleNamespace(shape=(255,))
    with pytest.raises(FormatError) as caught:
        check_tensors(architecture_of(SMALL), tensors)
    for word in ("blk.0.ffn_up.weight is missing", "'blk.2.attn_q.weight'", "(255,), expected (256,)"):
        assert word in caught.value.summary


def test_an_unknown_family_is_told_of_those_in_the_table() -> None:
    """Their names, and models that people know."""
    with pytest.raises(UnsupportedError) as caught:
        architecture_of(SMALL | {"general.architecture": "qwen9"})
    assert all(name in caught.value.summary for name in FAMILIES)
    assert all(family.models in str(caught.value.hint) for family in FAMILIES.values())


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_card_is_whole(family: Family) -> None:
    """Its row has its name; what it says of keys and matrices is of keys and matrices that there are."""
    assert family is FAMILIES[family.name]
    assert family.source
    assert family.models
    assert all(family.neutral.values())
    assert set(family.hints) <= family.neutral.keys() | COMMON.keys()
    assert not set(family.silent) & set(family.neutral)
    assert family.biases <= set(MATRICES)
