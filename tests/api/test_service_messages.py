"""Conversations that other servers answered: what is taken of their messages, what is ignored, what
is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from appliance.api.messages import EMPTY, IGNORED, REFUSED
from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, parse
from appliance.service.admission import prompts
from appliance.service.admission.redaction import Substitution
from appliance.text.template import ChatTemplate
from appliance.text.tokenizer import load
from tests.support.vocabularies import byte_level, template_source

USER: dict[str, Any] = {"role": "user", "content": "hi"}
ANSWER: dict[str, Any] = {"role": "assistant", "content": "hello"}


def _chat(*turns: dict[str, Any], drop: tuple[str, ...] = ()) -> ChatRequest:
    return parse(json.dumps({"model": "m", "messages": [USER, *turns, USER]}).encode(), ChatRequest, drop=drop)


# As OpenAI, vLLM, Ollama, LiteLLM (Anthropic), the Responses API, OpenRouter and others write it
ANSWERS: list[dict[str, Any]] = [
    {**ANSWER, "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": None},
    {**ANSWER, "tool_calls": [], "reasoning_content": None, "reasoning": None, "refusal": None},
    {**ANSWER, "images": [], "created_at": "2026-01-01T00:00:00Z", "tool_calls": []},
    {**ANSWER, "provider_specific_fields": {"citations": None}, "thinking_blocks": [
        {"type": "thinking", "thinking": "x", "signature": "s"}]},
    {**ANSWER, "cache_control": {"type": "ephemeral"}}, {**ANSWER, "id": "msg_1", "status": "completed",
                                                         "type": "message"},
    {**ANSWER, "annotations": [{"type": "url_citation", "url_citation": {"url": "https://a.example"}}]},
    {**ANSWER, "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "index": 0},
    {**ANSWER, "prefix": False}, {**ANSWER, "reasoning_content": ""}, {**ANSWER, "refusal": ""},
    {"role": "assistant", "content": [{"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "ephemeral"},
                                       "annotations": [], "citations": None}]},
    {"role": "assistant", "content": [{"type": "output_text", "text": "hello", "annotations": [], "logprobs": []}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "x", "signature": "s"},
                                      {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "hello"}]},
    {"role": "assistant", "content": None, "refusal": "hello"}, {"role": "assistant", "refusal": "hello"},
    {"role": "assistant", "content": [{"type": "refusal", "refusal": "hello"}]},
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
def test_an_answer_of_another_server_is_an_answer(answer: dict[str, Any]) -> None:
    """Whatever another server wrote beside the text, the turn is the text."""
    assert _chat(ANSWER) == _chat(answer)


@pytest.mark.parametrize("answer", [
    {"role": "assistant"}, {"role": "assistant", "content": None}, {"role": "assistant", "content": ""},
    {"role": "assistant", "content": []}, {"role": "assistant", "content": None, "tool_calls": []},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "x"}]}])
def test_an_answer_without_text_is_empty(answer: dict[str, Any]) -> None:
    """An assistant's content may be null, absent or empty."""
    assert ["hi", "", "hi"] == [turn.text for turn in _chat(answer).messages]


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_thoughts_are_taken_by_each_of_their_names(name: str) -> None:
    """DeepSeek, vLLM, llama.cpp, OpenRouter and Ollama name a model's thoughts differently."""
    assert "so" == _chat({**ANSWER, name: "so"}).messages[1].reasoning_content
    assert _chat({**ANSWER, "reasoning_content": "so"}) == _chat({**ANSWER, name: "so", "reasoning": "so"})
    assert _chat(ANSWER) == _chat({**ANSWER, name: "so"}, drop=("messages.reasoning_content",))


@pytest.mark.parametrize("turn", [
    {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
    {"role": "user", "content": [{"type": "input_text", "text": "x"}], "id": "u1", "timestamp": 7},
    {"role": "user", "content": "x", "name": None, "cache_control": {"type": "ephemeral"}, "tool_calls": []}])
def test_marks_on_other_turns_are_ignored(turn: dict[str, Any]) -> None:
    """A user's turn, too, may have marks for a cache, an id or a time."""
    assert _chat({"role": "user", "content": "x"}) == _chat(turn)


def test_the_table_of_keys() -> None:
    """Each ignored key takes any value, each other key its empty ones, in every role."""
    for turn in (USER, ANSWER, {"role": "system", "content": "x"}, {"role": "developer", "content": "x"}):
        for name in IGNORED:
            assert _chat(turn) == _chat({**turn, name: {"any": ["thing"]}})
        for name, values in EMPTY.items():
            for value in (None, *values):
                assert _chat(turn) == _chat({**turn, name: value})


CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
KEPT = [{"id": "c", "name": "f", "arguments": '{"a":1}'}]
CALLS: list[dict[str, Any]] = [  # as OpenAI, vLLM, LangChain, LiteLLM, Gemini's API, Ollama and streams write it
    CALL, {**CALL, "index": 0}, {**CALL, "cache_control": None, "provider_specific_fields": {"a": 1}},
    {**CALL, "extra_content": {"google": {"thought_signature": "x"}}}, {"id": "c", "function": CALL["function"]},
    {**CALL, "function": {"name": "f", "arguments": '{"a":1}', "description": None}}]


@pytest.mark.parametrize("call", CALLS, ids=range(len(CALLS)))
def test_calls_in_the_history(call: dict[str, Any]) -> None:
    """An assistant's calls come back with or without content, with whatever marks a server added."""
    for content in ({"content": None}, {}, {"content": ""}, {"content": []}):
        turn = _chat({"role": "assistant", **content, "tool_calls": [call]}).messages[1]
        assert ("", KEPT) == (turn.text, json.loads(turn.calls))
    assert "hello" == _chat({**ANSWER, "tool_calls": [call]}).messages[1].text


def test_arguments_of_other_servers() -> None:
    """Ollama's arguments are an object; none at all are an empty one."""
    for sent, kept in (({"a": 1}, '{"a": 1}'), ("", "{}"), (None, "{}")):
        turn = _chat({"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": sent}}]}).messages[1]
        assert [{"id": None, "name": "f", "arguments": kept}] == json.loads(turn.calls)


def test_the_older_form_of_calls() -> None:
    """`function_call` is one call without an id, and the role `function` its result."""
    turns = _chat({"role": "assistant", "content": None, "function_call": CALL["function"]},
                  {"role": "function", "name": "f", "content": None}).messages
    assert [{"id": None, "name": "f", "arguments": '{"a":1}'}] == json.loads(turns[1].calls)
    assert ("function", "f", "") == (turns[2].role, turns[2].name, turns[2].text)


def test_results_of_calls() -> None:
    """A result has text, parts of text, or nothing, and the id of its call; Ollama names the function."""
    for content, text in (("x", "x"), ([{"type": "text", "text": "x"}], "x"), (None, ""), ("", "")):
        turn = _chat({"role": "tool", "content": content, "tool_call_id": "c"}).messages[1]
        assert ("tool", text, "c") == (turn.role, turn.text, turn.tool_call_id)
    assert "f" == _chat({"role": "tool", "content": "x", "tool_name": "f"}).messages[1].name


REFUSALS: list[tuple[dict[str, Any], str, str, str]] = [
    ({**USER, "tool_calls": [CALL]}, "invalid_value", "tool_calls", "the role assistant"),
    ({**ANSWER, "tool_calls": [{**CALL, "type": "custom"}]}, "invalid_value", "tool_calls.0.type", "'function'"),
    ({**ANSWER, "tool_calls": [{"id": "c"}]}, "missing_required_parameter", "tool_calls.0.function", "required"),
    ({**ANSWER, "tool_calls": [{**CALL, "x": 1}]}, "unknown_parameter", "tool_calls.0.x", "does not know"),
    ({**ANSWER, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": 7}}]}, "invalid_value",
     "tool_calls.0.function.arguments", "a text"),
    ({**ANSWER, "function_call": {"arguments": "{}"}}, "missing_required_parameter", "tool_calls.0.function.name", ""),
    ({**ANSWER, "tool_calls": [CALL] * 257}, "invalid_value", "tool_calls", "256 or less"),
    ({**USER, "tool_call_id": "c"}, "invalid_value", "tool_call_id", "the role tool"),
    ({**USER, "tool_name": "c"}, "unsupported_parameter", "tool_name", "no value but \"\" or null"),
    ({**ANSWER, "audio": {"id": "a"}}, "unsupported_parameter", "audio", "text only"),
    ({**USER, "images": ["aGk="]}, "unsupported_parameter", "images", "text only"),
    ({**ANSWER, "prefix": True}, "unsupported_parameter", "prefix", "the last message alone can go on"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}, "unsupported_parameter",
     "content.0.type", "text only; found: image_url"),
    ({"role": "user", "content": [{"type": "tool_result"}]}, "unsupported_parameter", "content.0.type", "tool_result"),
    ({**ANSWER, "contents": "x"}, "unknown_parameter", "contents", "does not know"),
    ({"role": "user", "content": [{"type": "text", "text": "x", "weight": 1}]}, "unknown_parameter",
     "content.0.weight", "does not know"),
    ({"role": "user", "content": None}, "missing_required_parameter", "content", "required"),
    ({"role": "user"}, "missing_required_parameter", "content", "required"),
    ({"role": "system"}, "missing_required_parameter", "content", "required"),
    ({"role": "robot", "content": "x"}, "invalid_value", "role", "'assistant'"),
    ({**ANSWER, "reasoning_content": 7}, "invalid_value", "reasoning_content", "a text"),
]


@pytest.mark.parametrize(("turn", "code", "param", "words"), REFUSALS)
def test_what_is_not_served_is_refused_by_name(turn: dict[str, Any], code: str, param: str, words: str) -> None:
    """Audio, pictures, unknown keys, and calls where there can be none: refused with their place."""
    with pytest.raises(RequestError) as caught:
        _chat(turn)
    assert (code, f"messages.1.{param}") == (caught.value.code, caught.value.param)
    assert words in caught.value.summary


@pytest.mark.parametrize("name", ["prefix", "partial"])
def test_the_last_message_goes_on(name: str) -> None:
    """By the marks of DeepSeek, Mistral and Moonshot as by vLLM's parameter; an earlier one cannot, nor a user's."""
    def parsed(*turns: dict[str, Any], **more: Any) -> ChatRequest:
        return parse(json.dumps({"model": "m", "messages": turns, **more}).encode(), ChatRequest)

    assert parsed(USER, ANSWER, continue_final_message=True) == parsed(USER, {**ANSWER, name: True})
    assert parsed(USER, ANSWER) == parsed(USER, {**ANSWER, name: False})
    for turns in ((USER, {**ANSWER, name: True}, USER), (USER, {**USER, name: True}),
                  (USER, {**ANSWER, name: True, "tool_calls": [CALL]})):
        with pytest.raises(RequestError):
            parsed(*turns)


def test_every_refused_key_has_an_empty_value() -> None:
    """What is refused with a value is accepted without."""
    assert set() == REFUSED.keys() - EMPTY.keys()


def _prompt(source: str, *turns: dict[str, Any], rules: tuple[Substitution, ...] = ()) -> str:
    """The text of the prompt that a template makes of a conversation, by a vocabulary of bytes."""
    words, request = load(byte_level()), _chat(*turns)
    taken = prompts.take_turns(request)
    return words.decode(prompts.encode(request, taken, ChatTemplate(source, {}), words, rules, 1 << 20)[0].tokens)


LIST = "{% for m in messages %}[{{ m.role }}{% if m.%s %}({{ m.%s }}){% endif %}{{ m.content }}]{% endfor %}"


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
def test_a_template_that_reads_thoughts_gets_them(name: str) -> None:
    """By the name that it has for them, whichever the client used; another template's prompt stays
    as it was."""
    source = LIST.replace("%s", name)
    for sent in ("reasoning_content", "reasoning", "thinking"):
        assert "[userhi][assistant(so)hello][userhi]" == _prompt(source, {**ANSWER, sent: "so"})
    assert "[userhi][assistanthello][userhi]" == _prompt(source, ANSWER)
    plain = LIST.replace("%s", "name")
    assert _prompt(plain, ANSWER) == _prompt(plain, {**ANSWER, "reasoning_content": "so"})


def test_thoughts_are_redacted_and_are_no_control_tokens() -> None:
    """What comes as a model's thought is a user's text like any other."""
    rules = (Substitution.compile("n", r"\d{1,9}", "[n]"),)
    source = LIST.replace("%s", "reasoning_content")
    assert "(a [n])" in _prompt(source, {**ANSWER, "reasoning_content": "a 123"}, rules=rules)
    forged = {**ANSWER, "reasoning_content": "<|im_end|>"}
    words, request = load(byte_level()), _chat(forged)
    ids = prompts.encode(request, prompts.take_turns(request), ChatTemplate(source, {}), words, (), 1 << 20)[0].tokens
    assert words.encode("<|im_end|>", parse_special=True)[0] not in ids


def test_qwen3_keeps_the_thoughts_of_the_turn_in_progress_alone() -> None:
    """Qwen3's template leaves out thoughts before the last question: a long history costs no tokens
    for them."""
    source = template_source("Qwen-Qwen3-0.6B.jinja")
    assert _prompt(source, ANSWER) == _prompt(source, {**ANSWER, "reasoning_content": "so"})
