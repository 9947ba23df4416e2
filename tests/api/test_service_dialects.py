"""Parameters of other servers: what asks for nothing is accepted, what this service has is mapped,
wishes are noted, demands refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.api.adapters.table import ADAPTERS
from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, CompletionRequest, SamplingRequest, parse
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.table import ROWS as TABLE

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": "m", "prompt": "hi"}


def _chat(ignored: Ignored | None = None, **more: Any) -> ChatRequest:
    return parse(json.dumps({**CHAT, **more}).encode(), ChatRequest, ignored=ignored or Ignored())


def _text(ignored: Ignored | None = None, **more: Any) -> CompletionRequest:
    return parse(json.dumps({**TEXT, **more}).encode(), CompletionRequest, ignored=ignored or Ignored())


def _meaning(request: ChatRequest | CompletionRequest) -> dict[str, Any]:
    """What a request asks for, without what is empty or off."""
    asked = {**request.model_dump(exclude={"stream_options"}), "usage": request.include_usage}
    return {name: value for name, value in asked.items() if value not in (None, [], {}, False)}


# What clients of OpenAI, vLLM, llama.cpp, Ollama, TGI and others send by default
NOTHING: list[dict[str, Any]] = [
    {"n": 1}, {"n": 1.0}, {"best_of": 1}, {"echo": False}, {"suffix": ""}, {"tools": []}, {"tool_choice": "none"},
    {"tool_choice": "auto"}, {"parallel_tool_calls": True}, {"parallel_tool_calls": False}, {"store": False},
    {"service_tier": "auto"}, {"service_tier": "default"}, {"modalities": ["text"]}, {"verbosity": "medium"},
    {"response_format": {"type": "text"}}, {"stop": ""}, {"stop": []}, {"stop": [""]},
    {"logit_bias": {}}, {"logit_bias": []}, {"logprobs": False}, {"stream": False}, {"stream_options": {}},
    {"stream_options": {"include_usage": False}}, {"stream_options": {"continuous_usage_stats": False}},
    {"max_tokens": -1}, {"max_tokens": None}, {"user": "u"}, {"metadata": {"a": "b"}},
    {"ignore_eos": False}, {"min_tokens": 0}, {"stop_token_ids": []}, {"bad_words": []}, {"priority": 0},
    {"skip_special_tokens": True}, {"spaces_between_special_tokens": True}, {"spaces_between_special_tokens": False},
    {"include_stop_str_in_output": False}, {"use_beam_search": False},
    {"early_stopping": False}, {"detokenize": True}, {"prompt_logprobs": None}, {"truncate_prompt_tokens": None},
    {"add_generation_prompt": True}, {"continue_final_message": False}, {"guided_json": None},
    {"guided_decoding_backend": "xgrammar"}, {"documents": []}, {"include_reasoning": True},
    {"cache_prompt": True}, {"cache_prompt": False}, {"top_a": 0.0}, {"samplers": []}, {"samplers": ""},
    {"n_predict": -1}, {"n_keep": 0}, {"n_probs": 0},
    {"min_keep": 0}, {"id_slot": -1}, {"grammar": ""}, {"image_data": []}, {"timings_per_token": False},
    {"num_predict": -1}, {"keep_alive": "5m"}, {"keep_alive": -1}, {"options": {}}, {"format": ""}, {"raw": False},
    {"do_sample": True}, {"num_beams": 1}, {"no_repeat_ngram_size": 0}, {"safe_prompt": False}, {"extra_body": {}},
]


@pytest.mark.parametrize("more", NOTHING, ids=range(len(NOTHING)))
def test_what_asks_for_nothing_changes_nothing(more: dict[str, Any]) -> None:
    """A value that says what happens anyway gives the request without it, on both endpoints."""
    assert _meaning(_chat()) == _meaning(_chat(**more))
    assert _meaning(_text()) == _meaning(_text(**more))


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_every_row_takes_null_and_its_neutral_values(row: Any) -> None:
    """Null is the same as absent for every parameter of the table; so are the values that its row
    names, also where the policy refuses wishes."""
    if "." in row.name:
        return
    strict = Ignored(strict=True)
    assert _chat() == _chat(strict, **{row.name: None})
    for value in row.values("chat") if row.becomes is None and not row.chats_have else ():
        assert _chat() == _chat(strict, **{row.name: value})
    for value in row.values("completions") if row.becomes is None else ():
        assert _text() == _text(strict, **{row.name: value})


def test_every_row_is_a_demand_or_a_wish_with_its_reason() -> None:
    """Of each table; a wish is accepted with any value, and noted by its name."""
    for row in (row for adapter in ADAPTERS for row in adapter.rows.values()):
        assert row.why
        assert not (row.wish and row.becomes)
    for row in TABLE.values():
        if row.wish and "." not in row.name:
            noted = Ignored()
            assert _text() == _text(noted, **{row.name: {"any": ["value"]}})
            assert [(row.name,)] == noted.paths


def test_special_tokens_are_added_as_each_endpoint_does() -> None:
    """A template writes its own tokens, a text gets the tokenizer's: the other value is refused."""
    assert _chat() == _chat(add_special_tokens=False)
    assert _text() == _text(add_special_tokens=True)
    for call, value in ((_chat, True), (_text, False)):
        with pytest.raises(RequestError, match="add_special_tokens: this service supports no value but"):
            call(add_special_tokens=value)


MAPPED: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"repetition_penalty": 1.1}, {"repeat_penalty": 1.1}),
    ({"repetition_penalty": 1.0}, {"repeat_penalty": 1.0}),
    ({"repetition_penalty": 1.1, "repeat_penalty": 1.1}, {"repeat_penalty": 1.1}),
    ({"n_predict": 7}, {"max_tokens": 7}), ({"num_predict": 7}, {"max_tokens": 7}),
    ({"max_new_tokens": 7}, {"max_tokens": 7}), ({"max_output_tokens": 7.0}, {"max_tokens": 7}),
    ({"random_seed": 3}, {"seed": 3}), ({"stop_sequences": ["x"]}, {"stop": ["x"]}),
    ({"top_k": -1}, {"top_k": 0}), ({"top_k": -1.0}, {"top_k": 0}), ({"top_k": 40.0}, {"top_k": 40}),
    ({"n_cmpl": 3}, {"n": 3}), ({"num_return_sequences": 2.0}, {"n": 2}),
    ({"seed": 1.0}, {"seed": 1}), ({"seed": -0.0}, {"seed": 0}), ({"max_tokens": 4.0}, {"max_tokens": 4}),
    ({"stop": ["", "x"]}, {"stop": ["x"]}), ({"temperature": 1}, {"temperature": 1.0}),
    ({"typ_p": 0.9}, {"typical_p": 0.9}), ({"tfs": 0.9}, {"tfs_z": 0.9}), ({"nsigma": 1.5}, {"top_n_sigma": 1.5}),
    ({"top_n_sigma": -1.0}, {"top_n_sigma": 0}), ({"mirostat_mode": 2}, {"mirostat": 2}),
    ({"mirostat_ent": 4.0, "mirostat_lr": 0.2}, {"mirostat_tau": 4.0, "mirostat_eta": 0.2}),
    ({"cfg_scale": 1.5, "cfg_negative_prompt": "b"}, {"guidance_scale": 1.5, "negative_prompt": "b"}),
    ({"token_healing": True}, {"token_healing": 1}),
    ({"samplers": "top_k;temperature"}, {"samplers": ["top_k", "temperature"]}),
    ({"sampler_priority": ["temperature", "top_p"]}, {"samplers": ["temperature", "top_p"]}),
    ({"sampler_priority": "temperature\ntop_p"}, {"samplers": ["temperature", "top_p"]}),
    ({"dry_sequence_breakers": '"\\n", ":"'}, {"dry_sequence_breakers": ["\n", ":"]}),
]


@pytest.mark.parametrize(("sent", "seen"), MAPPED)
def test_other_servers_names_are_mapped(sent: dict[str, Any], seen: dict[str, Any]) -> None:
    """A parameter that this service has by another name, or writes in another way, is taken."""
    assert _chat(**seen) == _chat(**sent)
    assert _text(**seen) == _text(**sent)
    assert _chat() != _chat(**sent)


def test_what_one_endpoint_has_alone() -> None:
    """Completions take what chat clients send without effect; whole numbers may be written with a
    point."""
    assert _text() == _text(logprobs=False) == _text(top_logprobs=0) == _text(chat_template_kwargs={})
    assert _chat() == _chat(max_completion_tokens=-1)
    assert 0 == _text(logprobs=0.0).logprob_count
    assert (2, None) == (_chat(logprobs=True, top_logprobs=2.0).logprob_count, _chat(top_logprobs=0).logprob_count)


NAMED: list[tuple[dict[str, Any], str, str]] = [
    ({"bad_words": ["x"]}, "bad_words", "logit_bias takes token ids"),
    ({"skip_special_tokens": False}, "skip_special_tokens", "no value but true or null"),
    ({"top_a": 0.2}, "top_a", "no value but 0 or null"), ({"smoothing_factor": 0.3}, "smoothing_factor", "but 0"),
    ({"n_probs": 3}, "n_probs", "use logprobs and top_logprobs"),
    ({"options": {"temperature": 0}}, "options", "send its entries as parameters of the request"),
    ({"structural_tag": "x"}, "structural_tag", "structured_outputs takes a grammar"),
    ({"parse_tool_calls": False}, "parse_tool_calls", "no value but true or null"),
    ({"do_sample": False}, "do_sample", "temperature = 0"), ({"system": "x"}, "system", "message with the role system"),
    ({"max_length": 9}, "max_length", "use max_tokens"), ({"prompt_logprobs": 0}, "prompt_logprobs", "but null"),
]


@pytest.mark.parametrize(("more", "param", "words"), NAMED)
def test_other_values_of_demands_are_refused_by_name(more: dict[str, Any], param: str, words: str) -> None:
    """What is not supported is refused with its name, what would pass, and the name that works
    here."""
    for call in (_chat, _text):
        with pytest.raises(RequestError) as caught:
            call(**more)
        assert ("unsupported_parameter", param) == (caught.value.code, caught.value.param)
        assert caught.value.summary.startswith(f"{param}: ")
        assert words in caught.value.summary


@pytest.mark.parametrize("more", [
    {"repetition_penalty": 1.1, "repeat_penalty": 1.2}, {"n_predict": 3, "max_tokens": 4},
    {"n_predict": 3, "num_predict": 4}, {"random_seed": 1, "seed": 2}])
def test_two_names_with_two_values_are_refused(more: dict[str, Any]) -> None:
    """Of one parameter by two names, one value is known."""
    with pytest.raises(RequestError, match="differ; here they are one parameter") as caught:
        _chat(**more)
    assert ("invalid_value", True) == (caught.value.code, caught.value.param in more)


@pytest.mark.parametrize("more", [{"seed": 1.5}, {"max_tokens": 4.5}, {"max_tokens": 1e300}, {"seed": 2.0**60},
                                  {"top_k": -2}, {"max_tokens": -2}, {"n_predict": -2}, {"seed": True},
                                  {"stop": ["a"] * 17}, {"repetition_penalty": "1"}])
def test_what_is_no_whole_number_stays_refused(more: dict[str, Any]) -> None:
    """Fractions, booleans, texts, and floats that stand for several integers are not integers."""
    with pytest.raises(RequestError) as caught:
        _chat(**more)
    assert "invalid_value" == caught.value.code


@pytest.mark.parametrize(("drop", "more"), [
    ("repeat_penalty", {"repetition_penalty": 1.1}), ("repetition_penalty", {"repeat_penalty": 1.1}),
    ("max_tokens", {"n_predict": 5}), ("max_tokens", {"num_predict": 5, "max_tokens": 6}),
    ("tools", {"functions": [{"name": "f"}]}), ("functions", {"tools": [{"type": "function", "function": {}}]}),
    ("tool_choice", {"function_call": {"name": "f"}}), ("response_format", {"guided_json": {}}),
    ("grammar", {"json_schema": {}, "regex": "a", "structured_outputs": {"choice": ["a"]}}),
    ("seed", {"random_seed": 1}), ("stop", {"stop_sequences": ["x"]}), ("min_tokens", {"min_tokens": 5})])
def test_a_field_that_the_policy_drops_has_no_other_name(drop: str, more: dict[str, Any]) -> None:
    """Redaction removes a parameter by whichever name it comes."""
    assert _chat() == parse(json.dumps({**CHAT, **more}).encode(), ChatRequest, drop=[drop])  # in a strict policy


def test_the_table_and_the_types_do_not_overlap() -> None:
    """A parameter is a type's or the table's; what a row becomes is a type's."""
    for kind in (ChatRequest, CompletionRequest):
        rows = {name for name, row in TABLE.items()
                if not (row.chats_have if kind is ChatRequest else row.texts_have)}
        assert set() == kind.model_fields.keys() & rows
    switches = {"enable_thinking", "think"}  # of an effort, in a chat
    assert {name for name, row in TABLE.items() if row.chats_have} - switches <= ChatRequest.model_fields.keys()
    assert {name for name, row in TABLE.items() if row.texts_have} <= CompletionRequest.model_fields.keys()
    assert {row.becomes for row in TABLE.values()} - {None} <= SamplingRequest.model_fields.keys()
