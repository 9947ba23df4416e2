"""Metadata and tensor tables: what is read, and how everything else is refused by name."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from appliance.errors import FormatError, UnsupportedError
from appliance.families.architecture import CONTEXT_CAP
from appliance.families.card import COMMON, Family
from appliance.families.extension import Extension, extended_metadata
from appliance.families.header import architecture_of
from appliance.families.lacking import LACKING
from appliance.families.names import EXPERTS, MATRICES
from appliance.families.nearest import keys_of
from appliance.families.table import FAMILIES
from appliance.families.tensors import check_tensors, required_shapes
from tests.support import family_models

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
    ({"llama.expert_count": 8}, FormatError, r"llama\.expert_used_count is missing"),
    ({"llama.expert_count": 2000, "llama.expert_used_count": 2}, FormatError, r"llama\.expert_count is 2000"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 9}, FormatError, r"used_count is 9; allowed: .*1\.\.8"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_feed_forward_length": 40},
     UnsupportedError, r"expert_feed_forward_length is 40; allowed: a multiple of 32"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_gating_func": 2}, UnsupportedError,
     "expert_gating_func is 2; this version runs only: 0, 1"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_latent_length": 64}, UnsupportedError,
     "expert_latent_length' is not known"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_group_count": 4,
      "llama.expert_group_used_count": 2}, UnsupportedError, "expert_group_count is 4; allowed with the score softmax"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_weights_norm": 1}, FormatError,
     "expert_weights_norm is 1; allowed: true or false"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.expert_weights_scale": -1.0}, FormatError,
     "expert_weights_scale"),
    ({"llama.expert_count": 8, "llama.expert_used_count": 2, "llama.leading_dense_block_count": 2}, FormatError,
     r"leading_dense_block_count is 2; allowed: an integer in 0\.\.1"),
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
    ({"llama.attention.head_count": np.array([4, 4, 4])}, FormatError, "head_count"),
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
])
def test_refusals_name_the_key(change, error, word):
    """Each value that we cannot run is refused with its key in the message."""
    with pytest.raises(error, match=word):
        architecture_of({**SMALL, **change} if change != {"llama.embedding_length": 264} else
             {**SMALL, **change, "llama.attention.head_count": 5})


@pytest.fixture
def tensors():
    """The table of a complete model with its own output head and one bias."""
    shape = architecture_of(SMALL)
    table = dict(required_shapes(shape))
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
    assert family.biases <= {*MATRICES, *EXPERTS}
    assert family.experts is None or family.topology == ("sandwich" if family.experts.beside else "serial")


@pytest.mark.parametrize("family", FAMILIES)
def test_an_array_of_equal_numbers_is_that_number(family: str) -> None:
    """Converters of mixed families write a number for each layer, also where all layers are alike."""
    header = family_models.metadata(family)
    layers = header[f"{family}.block_count"]
    each = {f"{family}.{key}": value for key in ("attention.head_count", "attention.head_count_kv",
                                                 "feed_forward_length")
            if isinstance(value := header[f"{family}.{key}"], int)}
    arrays = {key: np.full(layers, value, np.int32) for key, value in each.items()}
    assert architecture_of(header) == architecture_of(header | arrays)
    for key, value in arrays.items():
        with pytest.raises(FormatError, match=f"{key} is an array that does not fit; allowed: {layers} integers"):
            architecture_of(header | {key: value[1:]})


def test_layers_that_differ() -> None:
    """Arrays of different numbers are refused by name where a family's layers are alike."""
    with pytest.raises(UnsupportedError, match=r"llama\.attention\.head_count differs between layers; allowed"):
        architecture_of(SMALL | {"llama.attention.head_count": np.array([4, 2])})


LEFT_OVER = {"expert_used_count": 8, "expert_shared_feed_forward_length": 512, "ssm.conv_kernel": 4,
             "ssm.state_size": 256, "ssm.time_step_rank": 128}


@pytest.mark.parametrize("family", [name for name, card in FAMILIES.items()
                                    if card.experts is None and card.recurrent in (None, "convolution")])
def test_parts_that_no_layer_has(family: str) -> None:
    """Keys about experts and states say nothing of a model that has neither; one with experts is refused."""
    header = family_models.metadata(family)
    more = {f"{family}.{key}": value for key, value in LEFT_OVER.items()}
    assert architecture_of(header) == architecture_of(header | more | {f"{family}.expert_count": 0})
    with pytest.raises(UnsupportedError, match=f"{family}.expert_count is 8"):
        architecture_of(header | more | {f"{family}.expert_count": 8})


@pytest.mark.parametrize("family", [name for name, card in FAMILIES.items() if card.recurrent in ("delta", "mamba")])
def test_an_option_of_states_that_is_not_known(family: str) -> None:
    """It may change the answers of a model that has them."""
    with pytest.raises(UnsupportedError, match=r"ssm\.dt_b_c_rms"):
        architecture_of(family_models.metadata(family) | {f"{family}.ssm.dt_b_c_rms": True})


def test_groups_of_experts_that_cannot_be_chosen_from() -> None:
    """Groups of unlike size, of one expert, or too few of them; groups that are all used say nothing."""
    header = family_models.metadata("bailingmoe2")
    for groups, used in ((5, 2), (16, 4), (8, 1)):
        with pytest.raises(FormatError, match=f"expert_group_count is {groups}, and {used} are used"):
            architecture_of(header | {"bailingmoe2.expert_group_count": groups,
                                      "bailingmoe2.expert_group_used_count": used})
    all_used = architecture_of(header | {"bailingmoe2.expert_group_used_count": 4}).mixture
    assert all_used is not None
    assert (1, 1) == (all_used.groups, all_used.groups_used)


def test_what_files_say_of_weights_holds() -> None:
    """Whether they are normalised: as the file says, or the card; with scores of the chosen they always are."""
    key, found = "expert_weights_norm", {}
    for family in ("qwen3moe", "qwen2moe", "granitemoe"):
        header = family_models.metadata(family)
        for said in (None, True, False):
            mixture = architecture_of(header | {f"{family}.{key}": said}).mixture
            found[family, said] = mixture is not None and mixture.least > 0
    assert [True, True, False] == [found["qwen3moe", said] for said in (None, True, False)]
    assert [False, True, False] == [found["qwen2moe", said] for said in (None, True, False)]
    assert [True, True, True] == [found["granitemoe", said] for said in (None, True, False)]


VALUES = (True, 3, 0.5, "x", b"x", [1, 2], np.zeros(2), np.array([True, False]), ["x"], None)
PYTHON = re.compile(r"ndarray|NoneType|\b(?:int|float|str|list|dict|bool|bytes|True|False|None)\b|<class")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_error_names_a_type_of_python(family: str) -> None:
    """Whatever stands at a key of the family, or at those of any model."""
    header = family_models.metadata(family)
    keys = [*header, *(f"{family}.{key}" for key in keys_of(FAMILIES[family])[1]), f"{family}.new"]
    said = set()
    for key in keys:
        for value in VALUES:
            try:
                architecture_of(header | {key: value})
            except (FormatError, UnsupportedError) as error:
                said.add(f"{error.summary} {error.hint or ''}")
    assert len(said) > 20
    assert [] == [text for text in said if PYTHON.search(text)]


@pytest.mark.parametrize("family", [name for name in FAMILIES if family_models.FAMILIES[name].switch is None
                                    and family_models.FAMILIES[name].layers[-1].rotary is not None])
def test_the_magnitude_of_yarn(family: str) -> None:
    """The publisher's number, 1 + ln(factor) / 10, is the usual magnitude; so are 1 and none. Others are refused."""
    header = family_models.metadata(family) | {f"{family}.{key}": value for key, value in family_models.YARN.items()}
    key = f"{family}.rope.scaling.yarn_attn_factor"
    usual = architecture_of({name: value for name, value in header.items() if name != key})
    magnitude = max(layer.rope.magnitude for layer in usual.every if layer.rope is not None)
    magnitude /= header.get(f"{family}.rope.scaling.attn_factor", 1.0)
    for same in (1.0, float(np.float32(magnitude))):
        assert usual == architecture_of(header | {key: same})
    assert family == "mistral3" or magnitude == pytest.approx(1 + 0.1 * np.log(4))
    with pytest.raises(UnsupportedError, match=r"yarn_attn_factor is 1\.5; allowed: 1, or 1"):
        architecture_of(header | {key: 1.5})


def test_the_betas_of_yarn() -> None:
    """They are read in every family."""
    for family in FAMILIES:
        yarn = family_models.YARN | {"rope.scaling.yarn_beta_fast": 64.0, "rope.scaling.yarn_beta_slow": 2.0}
        header = family_models.metadata(family) | {f"{family}.{key}": value for key, value in yarn.items()}
        turned = [layer.rope for layer in architecture_of(header).every if layer.rope is not None]
        assert all((64.0, 2.0) == (rope.fast, rope.slow) for rope in turned)


def test_a_base_of_layers_with_a_window() -> None:
    """OLMo 3 has one of its own, or the common one; where a family has none, it must be the common one."""
    header = family_models.metadata("olmo2.magnitude")
    assert {5e5} == {layer.rope.base for layer in architecture_of(header).every}
    own = architecture_of(header | {"olmo2.rope.freq_base_swa": 3e4})
    assert [3e4, 3e4, 3e4, 5e5] == [layer.rope.base for layer in own.every]
    del header["olmo2.rope.freq_base_swa"]
    assert {5e5} == {layer.rope.base for layer in architecture_of(header).every}
    cohere = family_models.metadata("cohere2")
    assert architecture_of(cohere) == architecture_of(cohere | {"cohere2.rope.freq_base_swa": 10_000.0})
    with pytest.raises(UnsupportedError, match=r"cohere2\.rope\.freq_base_swa is 20000"):
        architecture_of(cohere | {"cohere2.rope.freq_base_swa": 2e4})


def test_a_file_without_a_window() -> None:
    """All layers of gemma3 are then as the last one; gemma4 and cohere2, whose layers differ in more, are refused."""
    header = family_models.metadata("gemma3.windowless")
    rope = architecture_of(header).rope
    assert ("yarn", 1e6, 0) == (rope.scaling, rope.base, architecture_of(header).window)
    assert () == architecture_of(header).each
    assert architecture_of(header) == architecture_of(header | {"gemma3.attention.sliding_window": 0,
                                                                "gemma3.rope.freq_base_swa": 10_000.0})
    for family in ("gemma4", "cohere2"):
        with pytest.raises(FormatError, match=f"{family}.attention.sliding_window is missing"):
            architecture_of(family_models.metadata(family) | {f"{family}.attention.sliding_window": None})


@pytest.mark.parametrize("key", ["embedding_scale", "residual_scale", "logit_scale"])
def test_factors_that_minicpm_must_say(key: str) -> None:
    """Older files leave them out, and readers guess."""
    with pytest.raises(FormatError, match=f"minicpm.{key} is missing"):
        architecture_of(family_models.metadata("minicpm") | {f"minicpm.{key}": None})


@pytest.mark.parametrize(("sections", "error"), [
    ([16, 24, 24], None), (np.array([4, 6, 6, 0], np.int32), None), ([], None),
    ([4, 4, 4, 4], UnsupportedError), ([1, 2, 3, 0, 0], FormatError), (["x"], FormatError), (7, FormatError),
    ([-1, 2], FormatError)])
def test_sections(sections: object, error: type[Exception] | None) -> None:
    """In a text the positions of three kinds are equal; a fourth is refused, and so is anything else."""
    header = family_models.metadata("qwen2vl") | {"qwen2vl.rope.dimension_sections": sections}
    if error is None:
        assert architecture_of(family_models.metadata("qwen2vl")) == architecture_of(header)
        return
    with pytest.raises(error, match=r"rope\.dimension_sections"):
        architecture_of(header)


@pytest.mark.parametrize("name", LACKING)
def test_a_known_architecture_is_refused_with_what_it_lacks(name: str) -> None:
    """The operation that is not there comes before the list of what runs."""
    with pytest.raises(UnsupportedError) as caught:
        architecture_of(SMALL | {"general.architecture": name})
    assert f"{name}, which does not run here: {LACKING[name]}; this version runs" in caught.value.summary


@pytest.mark.parametrize(("keys", "words"), [
    ({"expert_count": 8}, "it is a mixture of experts"), ({"shortconv.l_cache": 3}, "keep a state"),
    ({"ssm.conv_kernel": 4, "expert_count": 64}, "it is a mixture of experts without a card and some of its layers"),
    ({"attention.kv_lora_rank": 512}, "keys and values are compressed")])
def test_an_unknown_architecture_is_refused_with_what_its_keys_say(keys: dict[str, int], words: str) -> None:
    """Experts, states and compressed keys are told by the header, whatever the family's name."""
    header = {"general.architecture": "new9", **{f"new9.{key}": value for key, value in keys.items()}}
    with pytest.raises(UnsupportedError, match=f"architecture is new9, which does not run here: .*{words}.*; this ver"):
        architecture_of(header)
    for nothing in (0, "8", [8], None, np.array([8, 0])):
        with pytest.raises(UnsupportedError, match="the model's architecture is new9; this version runs"):
            architecture_of(header | {key: nothing for key in header if key.startswith("new9.")})


QWEN = {"general.architecture": "qwen2", "qwen2.block_count": 2, "qwen2.context_length": 32_768,
        "qwen2.embedding_length": 256, "qwen2.feed_forward_length": 512, "qwen2.attention.head_count": 4,
        "qwen2.attention.layer_norm_rms_epsilon": 1e-6, "qwen2.vocab_size": 300}


def test_an_extension_is_what_the_publisher_says_to_add() -> None:
    """With the policy's rope a file of Qwen2.5 is the one that its publisher's configuration for long texts makes."""
    long = {"context_length": 131_072, "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0,
            "rope.scaling.original_context_length": 32_768}
    expected = architecture_of(QWEN | {f"qwen2.{key}": value for key, value in long.items()})
    assert expected == architecture_of(extended_metadata(QWEN, Extension(4.0)))
    assert expected == architecture_of(extended_metadata(QWEN | {"qwen2.context_length": 4096}, Extension(4.0, 32_768)))
    assert QWEN == extended_metadata(QWEN, None)


@pytest.mark.parametrize(("change", "tensors"), [
    ({"rope.scaling.type": "yarn"}, ()), ({"rope.scaling.factor": 2.0}, ()), ({"rope.scale_linear": 2.0}, ()),
    ({}, ("rope_freqs.weight",)), ({}, ("rope_factors_long.weight",))])
def test_an_extension_of_a_file_that_scales_itself(change: dict[str, object], tensors: tuple[str, ...]) -> None:
    """Two scalings would be another model: refused by the field's name."""
    with pytest.raises(UnsupportedError, match="the policy's rope extends the context, but the model's file scales"):
        extended_metadata(QWEN | {f"qwen2.{key}": value for key, value in change.items()}, Extension(4.0), tensors)
