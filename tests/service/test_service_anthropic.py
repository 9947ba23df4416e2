"""Anthropic's Messages API against a server that was really booted, by its own client and the types that it publishes,
strictly."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from pydantic import TypeAdapter

from tests.service.test_service_responses import BACK, _events, _post, model
from tests.service.test_service_tools import SCHEMAS, TEMPLATE, WEATHER
from tests.support.server import KEY, Server, write_policy

if TYPE_CHECKING:
    import anthropic

__all__ = ["model"]
TOOLS: list[Any] = [{"name": name, "description": f"What {name} says.", "input_schema": schema}
                    for name, schema in SCHEMAS.items()]
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}}
USER = {"role": "user", "content": "weather?"}
ASKED: dict[str, Any] = {"model": "tiny", "messages": [USER], "max_tokens": 200}
NO_THOUGHT = {"logit_bias": {str(3 + ord("h")): -100}}
SEEDED: dict[str, Any] = {**ASKED, **NO_THOUGHT, "seed": 5, "temperature": 1}
FORM = {"output_config": {"format": {"type": "json_schema", "schema": WEATHER}}}
THINKS: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose model's template has tools and thoughts."""
    policy = write_policy(tmp_path_factory.mktemp("server"), {"tiny": model}, schema=2,
                          model=f"chat_template = {json.dumps(TEMPLATE)}")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


@functools.cache
def _type(name: str) -> TypeAdapter[Any]:
    """One of the types that Anthropic publishes. Its package takes seconds to import: workers that only collect these
    tests do without."""
    from anthropic import types
    return TypeAdapter(getattr(types, name))


def _client(server: Server, **more: Any) -> anthropic.Anthropic:
    import anthropic
    return anthropic.Anthropic(base_url=server.url, max_retries=0, timeout=600, **({"api_key": KEY} | more))


def _summed(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer that a stream's events add up to, each of which Anthropic's types accept."""
    for event in events:
        if event["type"] != "ping":
            _type("RawMessageStreamEvent").validate_python(event, strict=True)
    answer: dict[str, Any] = events[0]["message"]
    for event in events[1:]:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(answer["content"])
                answer["content"].append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                delta, block = event["delta"], answer["content"][event["index"]]
                assert event["index"] == len(answer["content"]) - 1
                name = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "json"}[delta["type"]]
                block[name] += delta.get("text", "") + delta.get("thinking", "") + delta.get("partial_json", "")
            case "message_delta":
                answer |= event["delta"] | {"usage": event["usage"]}
    assert ["content_block_stop", "message_delta", "message_stop"] == [event["type"] for event in events[-3:]]
    for block in answer["content"]:
        arguments = block.pop("json")
        if block["type"] == "tool_use" and answer["stop_reason"] != "max_tokens":
            block["input"] = json.loads(arguments)
    return answer


BODIES: list[dict[str, Any]] = [
    {}, {"max_tokens": 1}, {"system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]},
    FORCED, {"tools": TOOLS}, FORM, THINKS, {**FORCED, "max_tokens": 12}, {"stop_sequences": ["a", "e", "i"]},
    {"thinking": {"type": "disabled"}}, {"thinking": {"type": "adaptive"}, "metadata": {"user_id": "u"}, "top_k": 5}]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_answers_are_anthropics(server: Server, body: dict[str, Any]) -> None:
    """Whole answers and events are of the published types, and say the same."""
    whole = _post(server, "/v1/messages", {**SEEDED, **body}).json()
    _type("Message").validate_python(whole, strict=True)
    streamed = _summed(_events(_post(server, "/v1/messages", {**SEEDED, **body, "stream": True})))
    calls = [block["id"] for block in whole["content"] if block["type"] == "tool_use"]
    for block, own in zip([block for block in streamed["content"] if block["type"] == "tool_use"], calls, strict=True):
        block["id"] = own
    assert whole | {"id": ""} == streamed | {"id": ""}
    if "stop_sequences" in body:
        assert ("stop_sequence", True) == (whole["stop_reason"], whole["stop_sequence"] in body["stop_sequences"])
    elif body in (FORCED, FORM):
        assert ("tool_use" if body is FORCED else "end_turn") == whole["stop_reason"]


def test_the_same_text_as_a_chat(server: Server) -> None:
    """The same seed gives the same tokens by either shape."""
    more: dict[str, Any] = {"max_tokens": 9, "seed": 5, "temperature": 1}
    chat = server.client().chat.completions.create(model="tiny", messages=[USER], extra_body=NO_THOUGHT, **more)  # type: ignore[list-item]
    whole = _post(server, "/v1/messages", {**SEEDED, **more}).json()
    assert [chat.choices[0].message.content] == [block["text"] for block in whole["content"]]


def test_the_client_goes_on_with_calls(server: Server) -> None:
    """An answer's blocks are appended as they came, then the result of the call; streams add up in the client, too."""
    from anthropic import types
    client = _client(server)
    first = client.messages.create(**ASKED, **FORCED, extra_body={"seed": 3, **NO_THOUGHT})
    [call] = first.content
    assert isinstance(call, types.ToolUseBlock)
    jsonschema.validate(call.input, SCHEMAS[call.name])
    result: Any = {"type": "tool_result", "tool_use_id": call.id, "content": "a result with many more words"}
    turns: list[Any] = [USER, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = client.messages.create(**{**ASKED, "messages": turns, "tools": TOOLS})
    assert second.usage.input_tokens > first.usage.input_tokens + 20
    counted = client.messages.count_tokens(model="tiny", messages=turns, tools=TOOLS)
    assert counted.input_tokens == second.usage.input_tokens
    with client.messages.stream(**ASKED, **FORCED, extra_body={"seed": 3, **NO_THOUGHT}) as stream:
        [again] = stream.get_final_message().content
    assert isinstance(again, types.ToolUseBlock)
    assert (call.name, call.input) == (again.name, again.input)
    with client.messages.stream(**ASKED) as stream:
        assert isinstance("".join(stream.text_stream), str)


def test_a_history_is_one_chat(server: Server) -> None:
    """Blocks become the messages of a chat: the prompt has as many tokens as the same chat's."""
    calls = [{"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": "{}"}}
             for number, name in enumerate(SCHEMAS)]
    chat: list[Any] = [
        {"role": "system", "content": "Be brief."}, USER,
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Which city?", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c0", "content": "rain"},
        {"role": "tool", "tool_call_id": "c1", "content": "Error: no clock"}, {"role": "user", "content": "And now?"}]
    blocks: list[Any] = [
        USER, {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "Which city?", "signature": "s"},
            {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Let me see.", "citations": None},
            *({"type": "tool_use", "id": call["id"], "name": name, "input": {}}
              for call, name in zip(calls, SCHEMAS, strict=True))]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c0", "content": [{"type": "text", "text": "rain"}]},
            {"type": "tool_result", "tool_use_id": "c1", "content": "no clock", "is_error": True},
            {"type": "text", "text": "And now?"}]}]
    asked = server.client().chat.completions.create(model="tiny", messages=chat, max_tokens=1)
    counted = _client(server).messages.count_tokens(model="tiny", system="Be brief.", messages=blocks)
    assert asked.usage is not None
    assert asked.usage.prompt_tokens == counted.input_tokens


def test_too_many_tokens_are_clamped(server: Server) -> None:
    """Clients that ask for as many as a large model has get what the policy allows, and are told so."""
    answer = _post(server, "/v1/messages", {**SEEDED, "max_tokens": 1 << 30, "stop_sequences": ["a", "e", "i", "o"]})
    assert ("512", "message") == (answer.headers["x-max-tokens-clamped-to"], answer.json()["type"])


IMAGE = {"type": "image", "source": {"type": "url", "url": "x"}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"max_tokens": None}, "max_tokens"), ({"max_tokens": 0}, "max_tokens"), ({"messages": []}, "messages"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0"),
    ({"messages": [{"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "c", "content": [IMAGE]}]}]}, "messages.0.content.0.content.0"),
    ({"messages": [USER, {"role": "assistant", "content": [
        {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]}, "messages"),
    ({"tools": [{**TOOLS[0], "strict": True, "input_schema": {"type": "object", "items": BACK}}],
        "tool_choice": {"type": "any"}}, "tools.0.input_schema.items.pattern"),
    ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool"}}, "tool_choice"), ({"stop_sequences": ["x" * 999]}, "stop_sequences"),
    ({"thinking": {"type": "enabled"}}, "thinking"),
    ({"output_config": {"format": {"type": "json_schema", "schema": {"items": BACK}}}},
     "output_config.format.schema.items.pattern"),
    ({"inference_geo": "eu"}, "inference_geo"), ({"temperature": 9}, "temperature"),
    ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management")]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=range(len(REFUSED)))
def test_refusals_have_anthropics_shape(server: Server, body: dict[str, Any], param: str) -> None:
    """And name the parameter as the client wrote it."""
    answer = _post(server, "/v1/messages", {**ASKED, **body})
    found = _type("ErrorResponse").validate_python(answer.json(), strict=True)
    assert (400, "invalid_request_error") == (answer.status_code, found.error.type)
    assert found.error.message.startswith(f"{param}: ")
    assert found.request_id == answer.headers["x-request-id"]
    assert "/v1/messages" == server.audited(found.request_id)["endpoint"]


THREADS: list[tuple[Any, int]] = [
    ({"type": "create"}, 200), (None, 200), ({"type": "continue", "previous_message_id": "msg_1"}, 404),
    ({"type": "continue"}, 404), ({"previous_message_id": "msg_1"}, 404), ({"type": "fork"}, 404)]


@pytest.mark.parametrize(("thread", "status"), THREADS)
@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_a_stored_thread_is_not_continued_without_its_beginning(
        server: Server, path: str, thread: Any, status: int) -> None:
    """Anthropic's runners of tools begin a thread, send the last messages alone, and all again where it is lost."""
    bound = {"max_tokens": 2} if path == "/v1/messages" else {}
    with server.http() as http:
        answer = http.post(path, json={"model": "tiny", "thread": thread, **bound,
                                       "messages": [{"role": "user", "content": "x"}]})
    assert status == answer.status_code, answer.text
    if status == 404:
        error = answer.json()["error"]
        assert ("not_found_error", {"error_code": "thread_not_found"}) == (error["type"], error["details"])
        assert "send all messages" in error["message"]
    else:
        assert (thread is not None) == ("thread" in answer.headers.get("appliance-ignored", ""))


def test_keys(server: Server) -> None:
    """A key comes in either header; two different ones, or a wrong one, are refused in Anthropic's shape."""
    import anthropic
    asked: dict[str, Any] = {**ASKED, "max_tokens": 1}
    assert _client(server, api_key=None, auth_token=KEY).messages.create(**asked)
    assert _client(server).messages.create(**asked, extra_headers={"authorization": f"Bearer {KEY}"})
    with pytest.raises(anthropic.AuthenticationError):
        _client(server, api_key="sk-wrong").messages.create(**asked)
    with pytest.raises(anthropic.NotFoundError):
        _client(server).messages.create(**{**asked, "model": "none"})
    with server.http(None) as http:
        for path, more, status in (("/v1/models", {}, 200), ("/v1/models", {"authorization": f"Bearer {KEY}"}, 200),
                                   ("/v1/models", {"authorization": "Bearer sk-other"}, 400)):
            assert status == http.get(path, headers={"x-api-key": KEY, **more}).status_code
