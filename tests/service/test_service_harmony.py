"""gpt-oss' format over HTTP: channels of an answer as reasoning, calls and text, in each API, whole and streamed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support import talking_models
from tests.support.server import Server, write_policy
from tests.support.vocabularies import template_source

THOUGHT, PLAN, ARGUMENTS = "The user asks for the weather.", "I look it up.", '{"city": "Paris"}'
START = "<|start|>assistant"
CALLED = (f"<|channel|>analysis<|message|>{THOUGHT}<|end|>{START}<|channel|>commentary<|message|>{PLAN}<|end|>{START}"
          f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{ARGUMENTS}<|call|>")
SAID = f"<|channel|>analysis<|message|>{THOUGHT}<|end|>{START}<|channel|>final<|message|>It rains.<|return|>"
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED = "weather?"
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 400, "reasoning_effort": "high",
           "tools": [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]},
    RESPONSES: {"input": ASKED, "max_output_tokens": 400, "reasoning": {"effort": "high"},
                "tools": [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]},
    MESSAGES: {"messages": [{"role": "user", "content": ASKED}], "max_tokens": 400,
               "tools": [{"name": "get_weather", "input_schema": SCHEMA}]}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with a model that calls, and one that says something."""
    folder, template = tmp_path_factory.mktemp("harmony"), template_source("openai-gpt-oss-120b.jinja")
    files = {name: folder / f"{name}.gguf" for name in ("caller", "talker")}
    for name, text in (("caller", CALLED), ("talker", SAID)):
        files[name].write_bytes(talking_models.model(text, template))
    running = Server(write_policy(folder, files, schema=2), list(files.values())).wait_ready()
    yield running
    running.stop()


def _post(server: Server, path: str, model: str, **more: Any) -> httpx.Response:
    with server.http() as http:
        answer = http.post(path, json={"model": model, "temperature": 0, **BODIES[path], **more})
    assert 200 == answer.status_code, answer.text
    return answer


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]


Parts = tuple[str, str, list[tuple[str, Any]]]
"""Thoughts, text, and calls with their arguments."""


def _chat(body: dict[str, Any]) -> Parts:
    message = body["choices"][0]["message"]
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    return (message.get("reasoning_content") or "", message["content"] or "",
            [(call["name"], json.loads(call["arguments"])) for call in calls])


def _chat_stream(events: list[dict[str, Any]]) -> Parts:
    deltas = [choice["delta"] for event in events for choice in event["choices"]]
    calls = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    names = [call["name"] for call in calls if call.get("name")]
    arguments = "".join(call.get("arguments") or "" for call in calls)
    return ("".join(delta.get("reasoning_content") or "" for delta in deltas),
            "".join(delta.get("content") or "" for delta in deltas),
            [(name, json.loads(arguments)) for name in names])


def _response(body: dict[str, Any]) -> Parts:
    items = body["output"]
    thoughts = [part["text"] for item in items if item["type"] == "reasoning" for part in item.get("content") or ()]
    said = [part["text"] for item in items if item["type"] == "message" for part in item["content"]]
    return ("".join(thoughts), "".join(said), [
        (item["name"], json.loads(item["arguments"])) for item in items if item["type"] == "function_call"])


def _response_stream(events: list[dict[str, Any]]) -> Parts:
    return _response(next(event["response"] for event in events if event["type"] == "response.completed"))


def _message(body: dict[str, Any]) -> Parts:
    blocks = body["content"]
    return ("".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
            "".join(block["text"] for block in blocks if block["type"] == "text"),
            [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"])


def _message_stream(events: list[dict[str, Any]]) -> Parts:
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    names = [event["content_block"]["name"] for event in events
             if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use"]
    arguments = "".join(delta.get("partial_json", "") for delta in deltas)
    return ("".join(delta.get("thinking", "") for delta in deltas), "".join(delta.get("text", "") for delta in deltas),
            [(name, json.loads(arguments)) for name in names])


WHOLE = {CHAT: _chat, RESPONSES: _response, MESSAGES: _message}
STREAMED = {CHAT: _chat_stream, RESPONSES: _response_stream, MESSAGES: _message_stream}
WANTED: dict[str, Parts] = {"caller": (THOUGHT, PLAN, [("get_weather", {"city": "Paris"})]),
                            "talker": (THOUGHT, "It rains.", [])}


@pytest.mark.parametrize("model", WANTED)
@pytest.mark.parametrize("path", BODIES)
def test_channels_of_an_answer(server: Server, path: str, model: str) -> None:
    """`analysis` is reasoning, `final` and `commentary` to nobody are text, `commentary` to a function is its call."""
    assert WANTED[model] == WHOLE[path](_post(server, path, model).json())
    assert WANTED[model] == STREAMED[path](_events(_post(server, path, model, stream=True)))


def test_finish_reasons(server: Server) -> None:
    """As of any model's calls."""
    reasons = {model: _post(server, CHAT, model).json()["choices"][0]["finish_reason"] for model in WANTED}
    assert {"caller": "tool_calls", "talker": "stop"} == reasons


@pytest.mark.parametrize("more", [{"reasoning_effort": "low"}, {"reasoning_effort": "medium"},
                                  {"reasoning_effort": None, "chat_template_kwargs": {"reasoning_effort": "high"}}])
def test_efforts_are_no_mere_wish(server: Server, more: dict[str, Any]) -> None:
    """They reach the template, and no header says that they had no effect."""
    answer = _post(server, CHAT, "talker", **more)
    assert "reasoning_effort" not in " ".join(answer.headers.values())
