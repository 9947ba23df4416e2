"""Other shapes of the API against a server that was really booted: the published types of the official clients judge
whole answers and each event, strictly."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from openai.types import responses
from pydantic import TypeAdapter

from tests.service.test_service_tools import SCHEMAS, TEMPLATE, WEATHER, Reading
from tests.support import openai_schema, synthetic
from tests.support.server import Server, write_policy

TOOLS = [{"type": "function", "name": name, "description": f"What {name} says.", "parameters": schema}
         for name, schema in SCHEMAS.items()]
FORCED: dict[str, Any] = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
FORM = {"format": {"type": "json_schema", "name": "n", "schema": WEATHER, "strict": True}}
ASKED: dict[str, Any] = {"model": "tiny", "input": "weather?", "max_output_tokens": 200, "temperature": 1}
SEEDED: dict[str, Any] = {**ASKED, "seed": 5}
THINKS: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
RESPONSE, EVENT = TypeAdapter(responses.Response), TypeAdapter(responses.ResponseStreamEvent)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes longer prompts than the other tests' model."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 4096))
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose model's template has tools and thoughts."""
    more = f"chat_template = {json.dumps(TEMPLATE)}\nsampling {{ max_logprobs = 2 }}"
    policy = write_policy(tmp_path_factory.mktemp("server"), {"tiny": model}, model=more, schema=2)
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


def _events(answer: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, each of which is named by its type."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for block in answer.text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        if lines:
            name, data = lines
            found.append(json.loads(data.removeprefix("data: ")))
            assert f"event: {found[-1]['type']}" == name
    return found


def _post(server: Server, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    with server.http() as http:
        return http.post(path, json=body, headers=headers)


def _checked(events: list[dict[str, Any]]) -> dict[str, Any]:
    """The last answer of a stream whose events OpenAI's types and schema accept, and add up to it."""
    for number, event in enumerate(events):
        assert number == event["sequence_number"]
        EVENT.validate_python(event, strict=True)
        openai_schema.check_as("ResponseStreamEvent", event)
    last: dict[str, Any] = events[-1]["response"]
    for place, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == place]
        assert ["response.output_item.added", "response.output_item.done"] == [own[0]["type"], own[-1]["type"]]
        assert item == own[-1]["item"]
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert text == "".join(event.get("delta", "") for event in own)
    return last


def _said(response: dict[str, Any]) -> list[Any]:
    return [item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
            for item in response["output"]]


BODIES: list[dict[str, Any]] = [
    {}, {"max_output_tokens": 1}, {"instructions": "Be brief."}, FORCED, {"tools": TOOLS}, {"text": FORM}, THINKS,
    {**FORCED, "max_output_tokens": 12}, {"include": ["message.output_text.logprobs"], "top_logprobs": 2},
    {"stop": ["a", "e", "i"]}, {"text": {"format": {"type": "json_object"}}}]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_responses_are_openais(server: Server, body: dict[str, Any]) -> None:
    """Whole answers and events are of the published types, and say the same."""
    whole = _post(server, "/v1/responses", {**SEEDED, **body}).json()
    RESPONSE.validate_python(whole, strict=True)
    openai_schema.check(whole)
    last = _checked(_events(_post(server, "/v1/responses", {**SEEDED, **body, "stream": True})))
    assert (whole["status"], whole["usage"], _said(whole)) == (last["status"], last["usage"], _said(last))
    assert ("incomplete" == whole["status"]) == (whole["incomplete_details"] is not None)
    chat = server.client().chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "weather?"}], max_tokens=9, seed=5, temperature=1)
    short = _post(server, "/v1/responses", {**SEEDED, "max_output_tokens": 9}).json()
    assert [chat.choices[0].message.content] == _said(short)


def test_the_official_client_goes_on_with_calls(server: Server) -> None:
    """An answer's items are appended as they came, then the result of each call; `parse` and `stream` do as well."""
    client = server.client()
    first = client.responses.create(**ASKED, **FORCED, extra_body={"seed": 3, "logit_bias": {str(3 + ord("h")): -100}})
    call = first.output[-1]
    jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    turns = [{"role": "user", "content": "weather?"}, *first.output,
             {"type": "function_call_output", "call_id": call.call_id, "output": "a result with many more words"}]
    second = client.responses.create(**{**ASKED, "input": turns, "tools": TOOLS})
    assert second.usage.input_tokens > first.usage.input_tokens + 20
    parsed = client.responses.parse(**ASKED, text_format=Reading).output_parsed
    assert isinstance(parsed, Reading)
    with client.responses.stream(**ASKED, text_format=Reading) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Reading)


HISTORY: list[Any] = [
    {"role": "developer", "content": [{"type": "input_text", "text": "Be brief."}]},
    {"type": "message", "role": "user", "content": "weather?"},
    {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Which city?"}],
     "encrypted_content": None},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [
        {"type": "output_text", "text": "Let me see.", "annotations": [], "logprobs": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
    {"type": "function_call", "call_id": "c2", "name": "get_time", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "rain"}]},
    {"type": "function_call_output", "call_id": "c2", "output": "noon"}]


def test_a_history_is_one_chat(server: Server) -> None:
    """Items that the model made become one message: the prompt has as many tokens as the same chat's."""
    calls = [{"id": item["call_id"], "type": "function", "function": {"name": item["name"], "arguments": "{}"}}
             for item in HISTORY if item.get("type") == "function_call"]
    turns: list[Any] = [
        {"role": "system", "content": "Be brief."}, {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "Let me see.", "reasoning_content": "Which city?", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "tool", "tool_call_id": "c2", "content": "noon"}]
    chat = server.client().chat.completions.create(model="tiny", messages=turns, max_tokens=4)
    response = _post(server, "/v1/responses", {**ASKED, "input": HISTORY, "max_output_tokens": 4}).json()
    assert chat.usage is not None
    assert chat.usage.prompt_tokens == response["usage"]["input_tokens"]


BACK = {"type": "string", "pattern": "(a)\\1"}  # a pattern that is not enforced
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
    ({"background": True}, "background", "unsupported_parameter"),
    ({"conversation": "c"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
    ({"tool_choice": {"type": "file_search"}}, "tool_choice", "unsupported_parameter"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input.0", "unsupported_parameter"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "computer_call"}]}, "input.1", "unsupported_parameter"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input.0.content.0",
     "unsupported_parameter"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id",
     "missing_required_parameter"),
    ({"input": None}, "input", "missing_required_parameter"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools.0.tools.0.name",
     "missing_required_parameter"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
    ({"max_output_tokens": 1 << 40}, "max_output_tokens", "invalid_value"),
    ({"temperature": 9}, "temperature", "invalid_value"),
    ({"top_logprobs": 9}, "top_logprobs", "unsupported_parameter"),
    ({"tools": [*TOOLS, TOOLS[0]]}, "tools", "invalid_value"),
    ({"tools": [{**TOOLS[0], "strict": True, "parameters": {"type": "object", "items": BACK}}],
      "tool_choice": "required"}, "tools.0.parameters.items.pattern", "invalid_value"),
    ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema", "missing_required_parameter"),
    ({"text": {"format": {"type": "json_schema", "name": "n", "schema": {"items": BACK}}}},
     "text.format.schema.items.pattern", "invalid_value"),
    ({"reasoning": {"effort": 7}}, "reasoning.effort", "invalid_value")]


@pytest.mark.parametrize(("body", "param", "code"), REFUSED, ids=range(len(REFUSED)))
def test_refusals_name_what_the_client_wrote(server: Server, body: dict[str, Any], param: str, code: str) -> None:
    """By its path in this shape of the request, before and after the request became a chat."""
    answer = _post(server, "/v1/responses", {**ASKED, **body})
    error = openai_schema.check(answer.json())["error"]
    assert (400, param, code) == (answer.status_code, error["param"], error["code"])
    assert error["message"].startswith(f"{param}: ")
    logged = server.audited(answer.headers["x-request-id"])
    assert ("/v1/responses", code) == (logged["endpoint"], logged["code"])
    assert logged.get("param") is None or param.startswith(logged["param"].split(".")[0])


def test_a_refusal_amid_a_stream_is_an_event(server: Server) -> None:
    """Clients raise it, since it has an `error`, too."""
    client = server.client()
    with pytest.raises(openai.BadRequestError):
        client.responses.create(**{**ASKED, "model": "tiny", "temperature": 9}, stream=True)
