"""What holds an answer, as clients ask for it, against servers that were really booted: functions without arguments,
keywords that are not enforced, structures by several names, calls that are cut."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from tests.service.test_service_tools import ASKED, FORCED, TEMPLATE, model, plain, thinking
from tests.support import talking_models
from tests.support.server import Server, write_policy

__all__ = ["model", "plain", "thinking"]
USER = {"role": "user", "content": "weather?"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def _post(server: Server, path: str, **body: Any) -> httpx.Response:
    with server.http() as http:
        return http.post(path, json={"model": "tiny", **body})


def _bodies(schema: Any, name: str = "f", **more: Any) -> dict[str, dict[str, Any]]:
    """A demand for a call of a function, by each API. `schema` of its arguments; None: it has none."""
    given = {} if schema is None else {"parameters": schema}
    asked = {name: value for name, value in ASKED.items() if name != "logit_bias"}
    return {
        CHAT: {**asked, **FORCED, "tools": [{"type": "function", "function": {"name": name, **given, **more}}]},
        RESPONSES: {"input": "weather?", "max_output_tokens": 200, "seed": 5, "temperature": 1,
                    "tool_choice": "required", "parallel_tool_calls": False,
                    "tools": [{"type": "function", "name": name, **given, **more}]},
        MESSAGES: {"messages": [USER], "max_tokens": 200, "seed": 5, "temperature": 1,
                   "tool_choice": {"type": "tool", "name": name},
                   "tools": [{"name": name, "input_schema": {} if schema is None else schema, **more}]}}


def _arguments(path: str, answer: httpx.Response) -> Any:
    """The arguments of the answer's one call."""
    assert 200 == answer.status_code, answer.text
    body = answer.json()
    if path == CHAT:
        return json.loads(body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    if path == RESPONSES:
        return json.loads(next(each for each in body["output"] if each["type"] == "function_call")["arguments"])
    return next(each for each in body["content"] if each["type"] == "tool_use")["input"]


NO_ARGUMENTS: list[Any] = [None, {}, {"type": "object"}, {"type": "object", "properties": {}},
                           {"type": "object", "properties": {}, "required": [], "title": "Empty", "$schema":
                            "https://json-schema.org/draft/2020-12/schema"}]


@pytest.mark.parametrize("schema", NO_ARGUMENTS, ids=range(len(NO_ARGUMENTS)))
def test_a_function_without_parameters_gets_none(plain: Server, schema: Any) -> None:
    """By each API, and in the older form: an empty object, and the call ends."""
    for path, body in _bodies(schema).items():
        assert {} == _arguments(path, _post(plain, path, **body)), path
    function = {"name": "f"} if schema is None else {"name": "f", "parameters": schema}
    older = _post(plain, CHAT, **ASKED, functions=[function], function_call={"name": "f"})
    assert "{}" == older.json()["choices"][0]["message"]["function_call"]["arguments"]


def test_an_object_that_says_more_stays_open(plain: Server) -> None:
    """Only where members are allowed by name or by a schema of the others."""
    for more in ({"additionalProperties": {"type": "integer"}}, {"additionalProperties": True}, {"required": ["a"]}):
        body = _bodies({"type": "object", "properties": {}, **more})[CHAT]
        answers = [_post(plain, CHAT, **{**body, "seed": seed, "max_tokens": 60}).json() for seed in range(4)]
        calls = [answer["choices"][0]["message"]["tool_calls"][0]["function"] for answer in answers]
        assert any(call["arguments"].startswith('{"') for call in calls)


EMPTY = {"type": "object", "properties": {}}
EMPTY_OBJECTS: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": EMPTY}}}),
    (CHAT, {"guided_json": EMPTY}), (CHAT, {"structured_outputs": {"json": EMPTY}}), (CHAT, {"json_schema": EMPTY}),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "n", "schema": EMPTY}}}),
    (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": EMPTY}}})]


@pytest.mark.parametrize(("path", "more"), EMPTY_OBJECTS, ids=range(len(EMPTY_OBJECTS)))
def test_an_empty_object_is_one(plain: Server, path: str, more: dict[str, Any]) -> None:
    """A structure without members ends at once."""
    asked = {CHAT: {"messages": [USER]}, RESPONSES: {"input": "x"}, MESSAGES: {"messages": [USER], "max_tokens": 9}}
    body = _post(plain, path, **asked[path], **more).json()
    text = body["choices"][0]["message"]["content"] if path == CHAT else (
        body["output"][-1] if path == RESPONSES else body)["content"][0]["text"]
    assert "{}" == text


@pytest.mark.parametrize("schema", [{"type": "string"}, {"type": ["array", "null"]}])
def test_arguments_are_an_object(plain: Server, schema: Any) -> None:
    """Refused with what the type should be, by the name that the client uses."""
    for path, param in ((CHAT, "tools.0.function.parameters"), (RESPONSES, "tools.0.parameters"),
                        (MESSAGES, "tools.0.input_schema")):
        answer = _post(plain, path, **_bodies(schema)[path])
        assert (400, True) == (answer.status_code, f"{param}: the arguments of a function are an object" in answer.text)


PARTLY: dict[str, Any] = {"type": "object", "required": ["x", "n"], "additionalProperties": False, "properties": {
    "x": {"type": "string", "pattern": "^(a)\\1", "enum": ["ab", "cd"]},
    "n": {"type": "integer", "minimum": 3, "maximum": 5}}}
REST: dict[str, Any] = {**PARTLY, "properties": {**PARTLY["properties"], "x": {"enum": ["ab", "cd"]}}}
PATHS = {CHAT: "tools.0.function.parameters", RESPONSES: "tools.0.parameters", MESSAGES: "tools.0.input_schema"}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", ["plain", "thinking"])
def test_one_keyword_is_left_out_and_named(request: pytest.FixtureRequest, name: str, path: str) -> None:
    """The rest of the schema holds; `strict` refuses the request by the same name."""
    server = request.getfixturevalue(name)
    answer = _post(server, path, **_bodies(PARTLY)[path])
    jsonschema.validate(_arguments(path, answer), REST)
    assert [f"{PATHS[path]}.properties.x.pattern"] == answer.headers["appliance-ignored"].split(", ")
    streamed = _post(server, path, **_bodies(PARTLY)[path], stream=True)
    assert answer.headers["appliance-ignored"] == streamed.headers["appliance-ignored"]
    refused = _post(server, path, **_bodies(PARTLY, strict=True)[path])
    assert (400, True) == (refused.status_code, f"{PATHS[path]}.properties.x.pattern" in refused.text)
    assert "appliance-ignored" not in _post(server, path, **_bodies(REST)[path]).headers


def test_a_strict_policy_refuses_what_would_be_left_out(tmp_path_factory: pytest.TempPathFactory, model: Path) -> None:
    """By the path of the keyword; what is enforced is answered."""
    policy = write_policy(tmp_path_factory.mktemp("strict"), {"tiny": model}, schema=2, service="strict = true")
    server = Server(policy, [model]).wait_ready()
    try:
        for path in PATHS:
            refused = _post(server, path, **_bodies(PARTLY)[path])
            assert (400, True) == (refused.status_code, f"{PATHS[path]}.properties.x.pattern" in refused.text), path
            assert 200 == _post(server, path, **_bodies(REST)[path]).status_code
    finally:
        server.stop()


NUMBERS: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {"a": {"oneOf": [
    {"type": "number"}, {"type": "integer"}]}}}
NEVER: dict[str, Any] = {"type": "object", "required": ["a"], "properties": {
    "a": {"type": "integer", "minimum": 3, "maximum": 2}}}


def test_a_fault_of_one_function_is_no_other_s(plain: Server) -> None:
    """Beside a function that no arguments fit, and one whose `oneOf` is not kept, the third keeps its schema."""
    tools = [{"type": "function", "function": {"name": name, "parameters": schema}}
             for name, schema in (("never", NEVER), ("numbers", NUMBERS), ("whole", REST))]
    names = set()
    for seed in range(8):
        biased = {"logit_bias": {str(3 + ord(letter)): -100 for letter in ("hn" if seed % 2 else "hw")}}
        answer = _post(plain, CHAT, **{**ASKED, "seed": seed, "max_tokens": 200, **biased}, **FORCED, tools=tools)
        assert ["tools.0.function.parameters", "tools.1.function.parameters.properties.a.oneOf"] == \
            answer.headers["appliance-ignored"].split(", ")
        choice = answer.json()["choices"][0]
        if choice["finish_reason"] == "tool_calls":
            call = choice["message"]["tool_calls"][0]["function"]
            names.add(call["name"])
            if call["name"] != "never":
                jsonschema.validate(json.loads(call["arguments"]), REST if call["name"] == "whole" else {
                    **NUMBERS, "properties": {"a": {"type": "number"}}})
    assert "whole" in names


GUIDANCE = '%llguidance {}\n\nstart: a\n\na: DIGIT "+" /[0-9]/\n%import common.DIGIT\n'
STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"guided_grammar": GUIDANCE, "structured_outputs": {"grammar": GUIDANCE}}, "[0-9][+][0-9]"),
    ({"guided_decoding_backend": "guidance", "guided_grammar": '%llguidance {}\n\nstart: "a" "b"'}, "ab"),
    ({"structured_outputs": {"regex": ""}}, ""), ({"guided_regex": ""}, ""), ({"guided_choice": ["ab", "ab"]}, "ab"),
    ({"structured_outputs": {"choice": ["a\u200cb", "a\u200cb"]}}, "a\u200cb"),
    ({"guided_choice": ["a\u200db"]}, "a\u200db"), ({"guided_choice": ["10\u00a0km", "10\u00a0km"]}, "10\u00a0km"),
    ({"guided_choice": ["soft\u00adhyphen"]}, "soft\u00adhyphen"),
    ({"guided_regex": "^(?!00)[0-9]{2}$"}, "(?!00)[0-9]{2}")]


@pytest.mark.parametrize(("more", "pattern"), STRUCTURES, ids=range(len(STRUCTURES)))
def test_structures_as_clients_send_them(plain: Server, more: dict[str, Any], pattern: str) -> None:
    """On both endpoints, whole and streamed; a choice beside tools, too."""
    for path, asked in ((CHAT, {"messages": [USER]}), ("/v1/completions", {"prompt": "x"})):
        body = {**asked, "seed": 5, "temperature": 1, "max_tokens": 100, **more}
        choice = _post(plain, path, **body).json()["choices"][0]
        text = choice["text"] if "text" in choice else choice["message"]["content"] or ""
        jsonschema.validate(text, {"type": "string", "pattern": f"^(?:{pattern})$"})
        lines = [json.loads(line[6:]) for line in _post(plain, path, **body, stream=True).text.splitlines()
                 if line.startswith("data: {")]
        parts = [each for line in lines for each in line["choices"]]
        assert text == "".join(part["text"] if "text" in part else part["delta"].get("content") or "" for part in parts)


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"guided_grammar": "start: a\n\na: (b"}, "line 3", "something else than ')'"),
    ({"structured_outputs": {"grammar": "start: a\na: b"}}, "line 2", "a name that is not defined"),
    ({"guided_grammar": "%import python.X\nstart: X"}, "line 1", "a common terminal"),
    ({"guided_json": {"oneOf": [{"type": "number"}, {"type": "integer"}]}}, "guided_json.oneOf", "whole number"),
    ({"guided_json": {"type": "string", "pattern": "^(?<=a)b"}}, "guided_json.pattern", "looks behind"),
    ({"guided_grammar": "start: a", "structured_outputs": {"grammar": "start: b"}}, "guided_grammar", "one structure")]


@pytest.mark.parametrize(("more", "place", "words"), FAULTS, ids=range(len(FAULTS)))
def test_faults_of_structures_have_their_cause(plain: Server, more: dict[str, Any], place: str, words: str) -> None:
    """The line or the path, and the cause."""
    answer = _post(plain, CHAT, messages=[USER], **more)
    assert (400, True, True, False) == (answer.status_code, place in answer.text, words in answer.text,
                                        "smaller" in answer.text)


DECIMAL = {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d{0,2}0*$", "maxLength": 5}
OPENAPI: dict[str, Any] = {"type": "object", "required": ["a", "n", "d"], "propertyOrdering": ["a"], "properties": {
    "a": {"type": "string", "nullable": True, "enum": ["x"], "example": "x"},
    "n": {"type": "integer", "format": "int32"},
    "d": {"anyOf": [{"type": "boolean"}, DECIMAL]}}}


@pytest.mark.parametrize("path", PATHS)
def test_schemas_in_openapis_words(plain: Server, path: str) -> None:
    """Annotations pass, `nullable` is a union, and a pattern that looks ahead holds: nothing is ignored."""
    for seed in range(4):
        answer = _post(plain, path, **{**_bodies(OPENAPI, strict=True)[path], "seed": seed})
        assert "appliance-ignored" not in answer.headers
        arguments = _arguments(path, answer)
        union = {**OPENAPI["properties"], "a": {"enum": ["x", None]}}
        jsonschema.validate(arguments, {**OPENAPI, "properties": union, "additionalProperties": False})


CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "north", "days": 3}}\n</tool_call>'
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
    "city": {"type": "string"}, "days": {"type": "integer"}}}}}]
SAID = "I look it up. "


@pytest.fixture(scope="module")
def caller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model says a sentence and a call, whatever it is asked."""
    folder = tmp_path_factory.mktemp("caller")
    (folder / "model.gguf").write_bytes(talking_models.model(SAID + CALL, TEMPLATE))
    policy = write_policy(folder, {"tiny": folder / "model.gguf"}, schema=2)
    running = Server(policy, [folder / "model.gguf"]).wait_ready()
    yield running
    running.stop()


def _read(server: Server, **more: Any) -> tuple[str, list[str], str]:
    """An answer's content, the names of its calls, and its finish reason: whole as streamed."""
    body = {"messages": [USER], "temperature": 0, "max_tokens": 400, **more}
    choice = _post(server, CHAT, **body).json()["choices"][0]
    calls = [call["function"]["name"] for call in choice["message"].get("tool_calls") or ()]
    found = choice["message"]["content"] or "", calls, choice["finish_reason"]
    events = [json.loads(line[6:])["choices"][0] for line in _post(server, CHAT, **body, stream=True).text.splitlines()
              if line.startswith("data: {")]
    deltas = [event["delta"] for event in events]
    names = [call["function"]["name"] for delta in deltas for call in delta.get("tool_calls") or ()
             if call["function"].get("name")]
    assert found == ("".join(delta.get("content") or "" for delta in deltas), names, events[-1]["finish_reason"])
    return found


def test_a_call_that_is_cut_shows_no_half_of_its_marks(caller: Server) -> None:
    """Wherever `max_tokens` ends the answer, or a stop sequence does: the sentence, the call as far as it is one."""
    assert (SAID.strip(), ["get_weather"], "tool_calls") == _read(caller, tools=TOOLS)
    seen = set()
    for most in range(1, 45):
        content, calls, reason = _read(caller, tools=TOOLS, max_tokens=most)
        assert (True, True) == (SAID.startswith(content), calls in ([], ["get_weather"])), (most, content, calls)
        seen.add((reason, bool(calls)))
    assert {("length", False), ("length", True)} <= seen
    for stop in ("call>\n", '"name"', "get_", "north", "</tool", "\n"):
        content, calls, _ = _read(caller, tools=TOOLS, stop=[stop])
        assert (SAID.strip(), True) == (content, calls in ([], ["get_weather"])), (stop, content)


def test_a_forced_call_that_is_cut_has_no_content(plain: Server, thinking: Server) -> None:
    """In the generic format, and in the model's own; by length and by a stop sequence."""
    for server in (plain, thinking):
        for more in [*({"max_tokens": most} for most in range(1, 30, 3)), *({"stop": [stop]} for stop in '{"r:')]:
            body = {key: value for key, value in ASKED.items() if key != "messages"} | more
            content, calls, _ = _read(server, **body, **FORCED, tools=TOOLS)
            assert ("", True) == (content, calls in ([], ["get_weather"])), (more, content, calls)


CALLED = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {
    "name": "get_weather", "arguments": "{}"}}]}
MUTED: list[dict[str, Any]] = [
    {"tools": TOOLS, "tool_choice": "none"}, {"functions": [TOOLS[0]["function"]], "function_call": "none"},
    {"messages": [USER, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "rain"}]}]


@pytest.mark.parametrize("more", MUTED, ids=["none", "older", "history"])
def test_a_call_that_is_copied_is_left_out(caller: Server, more: dict[str, Any]) -> None:
    """Where no call is wanted, and a model makes one from its habit or the turns before."""
    for most in (400, 12, 20, 30):
        content, calls, reason = _read(caller, max_tokens=most, **more)
        assert ([], True) == (calls, SAID.startswith(content))
        assert reason == ("stop" if most == 400 else "length")
    assert SAID + CALL == _read(caller)[0], "where nothing in a request is about calls, they are text"


def test_other_apis_leave_it_out_too(caller: Server) -> None:
    """By the Messages API and the Responses API."""
    tool = {"name": "get_weather", "input_schema": TOOLS[0]["function"]["parameters"]}
    message = _post(caller, MESSAGES, messages=[USER], max_tokens=400, temperature=0, tools=[tool],
                    tool_choice={"type": "none"}).json()
    assert [("text", SAID.strip())] == [(each["type"], each["text"]) for each in message["content"]]
    answer = _post(caller, RESPONSES, input="x", temperature=0, tools=[{**TOOLS[0]["function"], "type": "function"}],
                   tool_choice="none").json()
    assert ["message"] == [each["type"] for each in answer["output"]]
    assert SAID.strip() == answer["output"][0]["content"][0]["text"]
