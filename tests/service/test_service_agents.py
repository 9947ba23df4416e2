"""Requests as agents send them, recorded and shortened (`tests/clients/recorded`): Codex, Claude Code, and the AI
SDK's provider for Anthropic. Each is answered, whole and streamed, and the answer is of the published types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_service_anthropic import _summed, _type
from tests.service.test_service_responses import RESPONSE, _checked, _events, _said
from tests.service.test_service_tools import TEMPLATE
from tests.support import synthetic
from tests.support.server import Server, write_policy

FOLDER = Path(__file__).parents[1] / "clients" / "recorded"
RECORDED = [(name, json.loads((FOLDER / f"{name}.json").read_text())["path"], number, body)
            for name in ("codex", "claude_code", "ai_sdk_anthropic")
            for number, body in enumerate(json.loads((FOLDER / f"{name}.json").read_text())["bodies"])]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes the prompts of agents: it has a token for each byte."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 16384))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server with room for the prompts."""
    policy = write_policy(tmp_path_factory.mktemp("agents"), {"tiny": model}, schema=2, limits="prompt_tokens = 16000",
                          model=f"chat_template = {json.dumps(TEMPLATE)}")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


def _short(path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    bound = "max_output_tokens" if path == "/v1/responses" else "max_tokens"
    return {**body, bound: 4, "seed": 5, "temperature": 1, **more}


@pytest.mark.parametrize(("name", "path", "number", "body"), RECORDED,
                         ids=[f"{each[0]}-{each[2]}" for each in RECORDED])
def test_recorded_requests_are_answered(
        server: Server, name: str, path: str, number: int, body: dict[str, Any]) -> None:
    """What has no effect is named, each a wish."""
    with server.http() as http:
        whole = http.post(path, json=_short(path, body, stream=False))
        streamed = http.post(path, json=_short(path, body, stream=True))
    assert (200, 200) == (whole.status_code, streamed.status_code), whole.text
    ignored = whole.headers["appliance-ignored"].split(", ")
    assert ignored == streamed.headers["appliance-ignored"].split(", ")
    if name == "codex":
        RESPONSE.validate_python(whole.json(), strict=True)
        assert _said(whole.json()) == _said(_checked(_events(streamed)))
        assert {"client_metadata", "prompt_cache_key"} <= set(ignored)
        kinds = [tool["type"] for tool in body["tools"]]
        assert f"tools.{kinds.index('web_search')}" in ignored
        assert f"tools.{kinds.index('function')}" not in ignored
    else:
        _type("Message").validate_python(whole.json(), strict=True)
        assert whole.json()["content"] == _summed(_events(streamed))["content"]
        with server.http() as http:
            counted = http.post("/v1/messages/count_tokens", json=body).raise_for_status().json()
        usage = whole.json()["usage"]
        assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]
        wanted = "context_management" if name == "claude_code" else "tools.0.eager_input_streaming"
        assert wanted in ignored


FREE = {"type": "custom", "name": "apply_patch", "description": "Patch.", "format": {
    "type": "grammar", "syntax": "lark", "definition": "start: /.+/"}}
SHELL = {"type": "local_shell"}
SEARCH = {"type": "namespace", "name": "mcp__docs", "description": "Docs.", "tools": [
    {"type": "function", "name": "search", "description": "x", "parameters": {
        "type": "object", "properties": {"query": {"enum": ["a", "b"]}}, "required": ["query"],
        "additionalProperties": False}}]}
FORCED: list[tuple[dict[str, Any], Any, str]] = [
    (FREE, {"type": "custom", "name": "apply_patch"}, "custom_tool_call"), (SHELL, "required", "local_shell_call"),
    (SEARCH, {"type": "function", "name": "search", "namespace": "mcp__docs"}, "function_call")]


@pytest.mark.parametrize(("tool", "choice", "kind"), FORCED, ids=[each[2] for each in FORCED])
@pytest.mark.parametrize("padded", [False, True])
def test_a_call_is_the_item_that_its_client_knows(
        server: Server, padded_server: Server, tool: dict[str, Any], choice: Any, kind: str, padded: bool) -> None:
    """Whole and streamed, by OpenAI's types; and it goes on as the history of the next request."""
    running = padded_server if padded else server
    asked: dict[str, Any] = {"model": "tiny", "input": "go", "tools": [tool], "tool_choice": choice, "seed": 11,
                             "temperature": 1, "max_output_tokens": 300, "logit_bias": {str(3 + ord("h")): -100}}
    with running.http() as http:
        whole = http.post("/v1/responses", json=asked).raise_for_status().json()
        events = _events(http.post("/v1/responses", json={**asked, "stream": True}))
    RESPONSE.validate_python(whole, strict=True)
    call = whole["output"][-1]
    again = _last(events)["output"][-1]
    assert kind == call["type"] == again["type"]
    assert {**call, "id": "", "call_id": ""} == {**again, "id": "", "call_id": ""}
    types = [event["type"] for event in events]
    if kind == "custom_tool_call":
        assert "apply_patch" == call["name"]
        assert call["input"] == "".join(event["delta"] for event in events if event["type"].endswith("input.delta"))
        assert ["response.custom_tool_call_input.done", "response.output_item.done"] == types[-3:-1]
    elif kind == "local_shell_call":
        assert "exec" == call["action"]["type"]
        assert isinstance(call["action"]["command"], list)
    else:
        assert ("search", "mcp__docs") == (call["name"], call["namespace"])
        assert json.loads(call["arguments"])["query"] in ("a", "b")
    result = {"custom_tool_call": {"type": "custom_tool_call_output", "call_id": call["call_id"], "output": "done"},
              "local_shell_call": {"type": "local_shell_call_output", "id": call["call_id"], "output": "done"},
              "function_call": {"type": "function_call_output", "call_id": call["call_id"], "output": "done"}}[kind]
    with running.http() as http:
        second = http.post("/v1/responses", json={
            "model": "tiny", "input": [{"role": "user", "content": "go"}, call, result], "tools": [tool],
            "max_output_tokens": 2})
        assert 200 == second.status_code, second.text
    assert second.json()["usage"]["input_tokens"] > whole["usage"]["input_tokens"]


@pytest.fixture(scope="module")
def padded_server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose answers have padded sizes."""
    policy = write_policy(tmp_path_factory.mktemp("padded"), {"tiny": model}, schema=2, limits="prompt_tokens = 4000",
                          model=f"chat_template = {json.dumps(TEMPLATE)}", privacy="size_padding = \"4KiB\"")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


def _last(events: list[dict[str, Any]]) -> dict[str, Any]:
    for number, event in enumerate(events):
        assert number == event["sequence_number"]
    found: dict[str, Any] = events[-1]["response"]
    return found
