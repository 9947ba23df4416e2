"""Tools and structured output against a server that was really booted, by the official client and OpenAI's schema.

The models have random weights: a call comes where a request demands one, and what a grammar leaves open is noise.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field

from tests.support import openai_schema, synthetic
from tests.support.server import KEY, OTHER_KEY, Server, write_policy

TEMPLATE = (  # of a model that thinks, and calls as Hermes does
    "{% for message in messages %}[{{ message.role }}]{{ message.content or '' }}{% for call in message.tool_calls or "
    "[] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}{% endfor %}{% if tools %}{{ tools | tojson }}"
    "{% endif %}[assistant]{% if enable_thinking %}<think>{% endif %}{# </think> #}")
CITIES = ["north", "south"]
WEATHER: dict[str, Any] = {
    "type": "object", "properties": {"city": {"type": "string", "enum": CITIES},
                                     "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"], "additionalProperties": False}
TIME: dict[str, Any] = {"type": "object", "properties": {"zone": {"type": "string", "enum": ["utc", "cet"]}},
                        "required": ["zone"], "additionalProperties": False}
SCHEMAS = {"get_weather": WEATHER, "get_time": TIME}
TOOLS = [{"type": "function", "function": {"name": name, "description": f"What {name} says.", "parameters": schema}}
         for name, schema in SCHEMAS.items()]
FUNCTIONS = [tool["function"] for tool in TOOLS]
FORCED: dict[str, Any] = {"tool_choice": "required", "parallel_tool_calls": False}
NAMED: dict[str, Any] = {"tool_choice": {"type": "function", "function": {"name": "get_time"}}}
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "weather?"}], "max_tokens": 200, "seed": 5,
                         "temperature": 1, "logit_bias": {str(3 + ord("h")): -100}}  # so none thinks of its own accord


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that takes longer prompts than the other tests' model."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(synthetic.model(synthetic.VARIANTS["Q8_0"], 4096))
    return path


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose model's template knows no tools."""
    policy = write_policy(tmp_path_factory.mktemp("plain"), {"tiny": model}, model="sampling { max_logprobs = 2 }",
                          schema=2)
    server = Server(policy, [model]).wait_ready()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose model's template has tools and thoughts."""
    policy = write_policy(tmp_path_factory.mktemp("thinking"), {"tiny": model},
                          model=f"chat_template = {json.dumps(TEMPLATE)}", schema=2)
    server = Server(policy, [model]).wait_ready()
    yield server
    server.stop()


@pytest.fixture(params=["plain", "thinking"])
def either(request: pytest.FixtureRequest) -> Server:
    """Both servers."""
    server: Server = request.getfixturevalue(request.param)
    return server


def _chat(server: Server, **more: Any) -> Any:
    return server.client().chat.completions.create(model="tiny", **{**ASKED, **more})


def _checked(call: Any) -> tuple[str, dict[str, Any]]:
    """A call's name and arguments, which its schema accepts."""
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, SCHEMAS[call.function.name])
    return call.function.name, arguments


@pytest.mark.parametrize("more", [FORCED, NAMED, {**FORCED, "tool_choice": {
    "type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
        {"type": "function", "function": {"name": "get_time"}}]}}}], ids=["required", "named", "allowed"])
def test_a_forced_call_keeps_to_its_schema(either: Server, more: dict[str, Any]) -> None:
    """Whatever the model would say: whole and streamed, for each seed, the call parses and names what was allowed."""
    for seed in range(4):
        answer = _chat(either, tools=TOOLS, **{**more, "seed": seed, "parallel_tool_calls": False})
        [choice] = answer.choices
        assert ("tool_calls", None) == (choice.finish_reason, choice.message.content)
        [call] = choice.message.tool_calls
        name, _arguments = _checked(call)
        assert name == "get_time" or more is FORCED
        events = list(_chat(either, tools=TOOLS, stream=True, **{**more, "seed": seed, "parallel_tool_calls": False}))
        deltas = [each for event in events for each in event.choices[0].delta.tool_calls or []]
        assert (name, "function", "") == (deltas[0].function.name, deltas[0].type, deltas[0].function.arguments)
        assert call.function.arguments == "".join(each.function.arguments for each in deltas)
        assert "tool_calls" == events[-1].choices[0].finish_reason
        assert answer.usage.completion_tokens > 8


def test_several_calls_in_one_answer(thinking: Server) -> None:
    """Where nothing forbids it, a model may go on with another call, and each has its index and its id."""
    found = [_chat(thinking, tools=TOOLS, tool_choice="required", seed=seed) for seed in range(12)]
    several = [answer.choices[0].message.tool_calls for answer in found if answer.choices[0].finish_reason != "length"]
    for calls in several:
        assert len(calls) == len({call.id for call in calls})
        for call in calls:
            _checked(call)
    assert {1, 2} <= {min(len(calls), 2) for calls in several}


def test_the_older_form(either: Server) -> None:
    """`functions` and `function_call` get one call, in their own form."""
    given = {"functions": FUNCTIONS, "function_call": {"name": "get_weather"}}
    message = _chat(either, **given).choices[0].message
    assert message.tool_calls is None
    assert "get_weather" == message.function_call.name
    jsonschema.validate(json.loads(message.function_call.arguments), WEATHER)
    events = list(_chat(either, **given, stream=True))
    deltas = [event.choices[0].delta.function_call for event in events if event.choices[0].delta.function_call]
    assert message.function_call.arguments == "".join(each.arguments for each in deltas)
    assert "function_call" == events[-1].choices[0].finish_reason


def test_a_conversation_with_calls_goes_on(either: Server) -> None:
    """An answer's message is appended as it came, then the result of each call; the prompt has them all."""
    first = _chat(either, tools=TOOLS, **FORCED)
    [call] = first.choices[0].message.tool_calls
    turns = [*ASKED["messages"], first.choices[0].message,
             {"role": "tool", "tool_call_id": call.id, "content": "a result with many more words than the question"}]
    for more in (FORCED, {}, {"tools": []}):
        second = _chat(either, messages=turns, **{"tools": TOOLS, **more})
        if more != {"tools": []}:
            assert second.usage.prompt_tokens > first.usage.prompt_tokens + 20
    older = [{"role": "assistant", "content": None, "function_call": call.function.model_dump()},
             {"role": "function", "name": call.function.name, "content": "a result"}]
    assert _chat(either, messages=[*ASKED["messages"], *older, *ASKED["messages"]], functions=FUNCTIONS).choices


class Reading(BaseModel):
    """What the official client makes a schema of."""

    city: Literal["north", "south"]
    days: int = Field(ge=1, le=7)
    note: Literal["a", "b"] | None


def test_the_official_client_parses(either: Server) -> None:
    """`parse` sends a strict schema, and gets an object of the class; a tool's class does as well."""
    client = either.client()
    parsed = client.chat.completions.parse(model="tiny", response_format=Reading, **ASKED).choices[0].message.parsed
    assert isinstance(parsed, Reading)
    answer = client.chat.completions.parse(
        model="tiny", tools=[openai.pydantic_function_tool(Reading, name="read")], tool_choice="required",
        parallel_tool_calls=False, **ASKED)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Reading)
    with client.chat.completions.stream(model="tiny", response_format=Reading, **ASKED) as stream:
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Reading)


STRUCTURES: list[tuple[dict[str, Any], str]] = [
    ({"structured_outputs": {"choice": CITIES}}, "north|south"), ({"guided_regex": "[ab]{3}-[0-9]"}, "[ab]{3}-[0-9]"),
    ({"grammar": 'root ::= "x" [0-9] "y"'}, "x[0-9]y"), ({"regex": "(yes|no)!"}, "(yes|no)!"),
    ({"guided_grammar": 'start: "a" B\nB: /[0-9]{2}/'}, "a[0-9]{2}"), ({"guided_choice": ["é"]}, "é")]


@pytest.mark.parametrize(("more", "pattern"), STRUCTURES)
def test_structures_of_other_servers(plain: Server, more: dict[str, Any], pattern: str) -> None:
    """vLLM's, llama.cpp's and SGLang's names hold an answer to a choice, a pattern or a grammar, on both endpoints."""
    with plain.http() as http:
        for path, asked in (("chat/completions", ASKED), ("completions", {**ASKED, "prompt": "x", "messages": None})):
            answer = http.post(f"/v1/{path}", json={"model": "tiny", **asked, **more}).json()
            [choice] = openai_schema.check(answer)["choices"]
            text = choice["text"] if "text" in choice else choice["message"]["content"]
            assert "stop" == choice["finish_reason"]
            jsonschema.validate(text, {"type": "string", "pattern": f"^({pattern})$"})


def test_an_object_and_its_schema(plain: Server) -> None:
    """`json_object` gives an object, or says that its end was cut; a schema gives what it accepts."""
    for more in ({"json_schema": WEATHER}, {"format": WEATHER}, {"guided_json": WEATHER}, {"response_format": {
            "type": "json_object", "schema": WEATHER}}):
        text = _chat(plain, extra_body=more).choices[0].message.content
        jsonschema.validate(json.loads(text), WEATHER)
    [choice] = _chat(plain, response_format={"type": "json_object"}, max_tokens=20).choices
    assert choice.message.content.startswith("{")
    assert choice.finish_reason in ("stop", "length")


def test_structure_beside_tools(either: Server) -> None:
    """An answer is then a call, or what the schema says; with a call demanded it is a call."""
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": TIME}}
    kinds = set()
    for seed in range(10):
        answer = _chat(either, tools=TOOLS, response_format=form, seed=seed, parallel_tool_calls=False)
        message = answer.choices[0].message
        kinds.add(message.tool_calls is not None)
        if message.tool_calls:
            _checked(message.tool_calls[0])
        else:
            jsonschema.validate(json.loads(message.content), TIME)
    assert kinds
    assert _chat(either, tools=TOOLS, response_format=form, **FORCED).choices[0].message.tool_calls


def test_thoughts_come_apart(thinking: Server, plain: Server) -> None:
    """A prompt that ends within a thought: the answer's text is `reasoning_content`, whole and streamed."""
    more: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"enable_thinking": True}}, "max_tokens": 12}
    message = _chat(thinking, **more).choices[0].message
    assert ("", True) == (message.content, bool(message.reasoning_content))
    events = list(_chat(thinking, stream=True, **more))
    thoughts = "".join(getattr(event.choices[0].delta, "reasoning_content", None) or "" for event in events)
    assert message.reasoning_content == thoughts
    turns = [*ASKED["messages"], message, *ASKED["messages"]]
    assert _chat(thinking, messages=turns).choices
    assert not hasattr(_chat(plain, max_tokens=12).choices[0].message, "reasoning_content")


def test_a_seed_decides_whatever_else_runs(either: Server) -> None:
    """Constrained answers are the same alone and in company."""
    def asked(seed: int) -> Any:
        answer = either.client().chat.completions.create(model="tiny", tools=TOOLS, **{**ASKED, **FORCED, "seed": seed})
        return [(call.function.name, call.function.arguments) for call in answer.choices[0].message.tool_calls]

    alone = [asked(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        assert alone == list(pool.map(asked, range(6)))


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {
        "type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)"}}}}}},
     "response_format.json_schema.schema.properties.a.pattern", "response_format.json_schema.schema"),
    ({"tools": [TOOLS[0], {"type": "function", "function": {"name": "f", "strict": True, "parameters": {
        "type": "object", "properties": {"secret_name": {"pattern": "(a)\\1"}}}}}]},
     "tools.1.function.parameters.properties.secret_name.pattern", "tools.function.parameters"),
    ({"extra_body": {"guided_json": {"items": {"format": "no-format"}}}},
     "guided_json.items.format", "guided_json"),
    ({"extra_body": {"regex": "(a"}}, "regex", "regex"),
    ({"extra_body": {"grammar": 'root ::= "a" | other'}}, "grammar", "grammar"),
    ({"extra_body": {"grammar": 'root ::= "a"'}, "tools": TOOLS}, "grammar", "grammar"),
]


@pytest.mark.parametrize(("more", "param", "logged"), REFUSED, ids=[each[1] for each in REFUSED])
def test_a_refusal_names_the_keyword(plain: Server, more: dict[str, Any], param: str, logged: str) -> None:
    """By its path in the request; the audit log has the parameter's name, and nothing that the client made up."""
    with pytest.raises(openai.BadRequestError) as caught:
        _chat(plain, **more)
    assert param == caught.value.param
    assert caught.value.message.startswith("Error code: 400") or param in str(caught.value)
    record = plain.audited(caught.value.request_id or "")
    assert logged == record["param"]
    assert "secret_name" not in plain.text("audit.jsonl")


def test_a_tool_that_is_not_strict_is_not_refused(plain: Server) -> None:
    """Its schema may have what is not enforced: a forced call then has an object of any kind."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)"}}}
    odd = {"type": "function", "function": {"name": "odd", "parameters": schema}}
    [call] = _chat(plain, tools=[odd], **FORCED, max_tokens=300).choices[0].message.tool_calls
    assert call.function.arguments.startswith("{")


def test_names_and_arguments_are_in_no_log(either: Server) -> None:
    """Neither a tool's name, nor its description, its arguments or a result."""
    turns = [*ASKED["messages"], {"role": "assistant", "tool_calls": [{"id": "c1", "type": "function", "function": {
        "name": "get_weather", "arguments": '{"city": "xyzzy-argument"}'}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "xyzzy-result"}]
    _chat(either, messages=turns, tools=TOOLS, **FORCED)
    for name in ("audit.jsonl", "stderr", "stdout"):
        assert not {word for word in ("get_weather", "get_time", "xyzzy", "north") if word in either.text(name)}


def _answers(http: Any, body: dict[str, Any], path: str = "chat/completions") -> list[dict[str, Any]]:
    """An answer, or the events of a stream."""
    response = http.post(f"/v1/{path}", json={"model": "tiny", **body})
    if not response.headers["content-type"].startswith("text/event-stream"):
        return [response.json()]
    return [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]


BODIES: list[dict[str, Any]] = [
    {}, {"logprobs": True, "top_logprobs": 2}, {"max_tokens": 1}, {"tools": TOOLS}, {"tools": TOOLS, **FORCED},
    {"tools": TOOLS, **FORCED, "logprobs": True}, {"functions": FUNCTIONS, "function_call": {"name": "get_time"}},
    {"response_format": {"type": "json_object"}}, {"chat_template_kwargs": {"enable_thinking": True}},
    {"tools": TOOLS, "tool_choice": "required", "max_tokens": 30}]
FAULTS: list[dict[str, Any]] = [{"tools": [{}]}, {"temperature": 9}, {"model": "none"}, {"messages": []}]


@pytest.mark.parametrize("body", BODIES, ids=range(len(BODIES)))
def test_every_answer_is_openais(either: Server, body: dict[str, Any]) -> None:
    """The schema that OpenAI publishes accepts whole answers, each event of a stream, and refusals."""
    with either.http() as http:
        for stream in ({}, {"stream": True}, {"stream": True, "stream_options": {"include_usage": True}}):
            for answer in _answers(http, {**ASKED, **body, **stream}):
                openai_schema.check(answer)


def test_every_other_answer_is_openais(plain: Server) -> None:
    """Text completions, models and errors, too."""
    with plain.http() as http:
        for more in ({}, {"logprobs": 2}, {"stream": True, "logprobs": 1}, {"json_schema": TIME}):
            for answer in _answers(http, {"prompt": "x", "max_tokens": 9, **more}, "completions"):
                openai_schema.check(answer, event="stream" in more)
        for path in ("/v1/models", "/v1/models/tiny"):
            openai_schema.check(http.get(path).json())
        for body in FAULTS:
            [answer] = _answers(http, {**ASKED, **body})
            openai_schema.check(answer)


OFF: dict[str, list[tuple[dict[str, Any], str]]] = {
    "tools = false": [({"tools": TOOLS}, "tools"), ({"functions": FUNCTIONS}, "functions")],
    "structured_output = false": [({"response_format": {"type": "json_object"}}, "response_format"),
                                  ({"regex": "a"}, "regex")]}


@pytest.mark.parametrize("line", OFF)
def test_the_policy_can_turn_it_off(tmp_path: Path, model: Path, line: str) -> None:
    """Each by its field of the model; the other stays, and so do requests that ask for neither."""
    policy = write_policy(tmp_path, {"tiny": model}, model=line, schema=2)
    server = Server(policy, [model]).wait_ready()
    try:
        with server.http() as http:
            for more, param in OFF[line]:
                refused = http.post("/v1/chat/completions", json={"model": "tiny", **ASKED, **more})
                error = refused.json()["error"]
                assert (400, "unsupported_parameter", param) == (refused.status_code, error["code"], error["param"])
                assert "the policy allows no" in error["message"]
            other = {"response_format": {"type": "json_object"}} if line.startswith("tools") else {
                "tools": TOOLS, **FORCED}
            for allowed in ({}, other, {"tools": TOOLS, "tool_choice": "none"} if line.startswith("tools") else {}):
                assert 200 == http.post("/v1/chat/completions", json={"model": "tiny", **ASKED, **allowed}).status_code
    finally:
        server.stop()


PRIVACY = """
  timing_padding {
    first_token = "50ms"
    total       = "100ms"
  }
  token_count_rounding = 16
  size_padding = "512B"
  redaction {
    pattern "north" {
      regex       = "north|south"
      replacement = "*"
    }
    apply_to = ["answer"]
  }
"""


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server that pads, rounds and redacts."""
    policy = write_policy(tmp_path_factory.mktemp("strict"), {"tiny": model}, privacy=PRIVACY, schema=2,
                          limits="tokens_per_minute = 1000000")
    server = Server(policy, [model]).wait_ready()
    yield server
    server.stop()


def test_arguments_are_redacted_and_counted(strict: Server) -> None:
    """Each match in a call's arguments is gone, whole and streamed alike; their tokens are counted, and rounded."""
    more = {**NAMED, "tool_choice": {"type": "function", "function": {"name": "get_weather"}}}
    answer = _chat(strict, tools=TOOLS, **more)
    [call] = answer.choices[0].message.tool_calls
    assert "*" == json.loads(call.function.arguments)["city"]
    events = list(_chat(strict, tools=TOOLS, **more, stream=True))
    assert call.function.arguments == "".join(
        each.function.arguments for event in events for each in event.choices[0].delta.tool_calls or [])
    assert 0 == answer.usage.completion_tokens % 16 < answer.usage.completion_tokens


def test_calls_leave_on_the_grid_in_padded_sizes(strict: Server) -> None:
    """One event at each multiple and a multiple of 512 bytes, whether calls, content or nothing is in it."""
    counts = []
    for more in ({"tools": TOOLS, **FORCED}, {"tools": TOOLS}, {}):
        times, sizes = [], []
        with strict.http() as http:
            http.get("/health")
            begun = time.monotonic()
            body = {"model": "tiny", **ASKED, **more, "stream": True}
            with http.stream("POST", "/v1/chat/completions", json=body) as answer:
                for data in answer.iter_raw():
                    times.append(time.monotonic() - begun)
                    sizes.append(len(data))
        assert [0] * len(sizes) == [size % 512 for size in sizes]
        assert all(moment > 0.05 * place - 0.002 for place, moment in enumerate(times, 1))
        counts.append(len(times))
    assert min(counts) >= 2


def test_a_bomb_holds_nobody_up(plain: Server) -> None:
    """While one tenant sends schemas that take as long as may be to compile, another is answered."""
    bomb = {"type": "object", "properties": {f"p{number}": {"type": "array", "maxItems": 40, "items": {
        "type": "string", "pattern": f"^([a-z]{{1,20}}{number}){{1,20}}$"}} for number in range(40)}}

    def throw(_number: int) -> int:
        with plain.http() as http:
            return http.post("/v1/chat/completions", timeout=600, json={
                "model": "tiny", **ASKED, "max_tokens": 1, "json_schema": {**bomb, "title": str(_number)}}).status_code

    with ThreadPoolExecutor(5) as pool:
        thrown = [pool.submit(throw, number) for number in range(4)]
        times = []
        for seed in range(4):
            begun = time.monotonic()
            client = plain.client(OTHER_KEY)
            answer = client.chat.completions.create(model="tiny", **{**ASKED, "seed": seed, "max_tokens": 8})
            assert answer.choices
            client.chat.completions.create(model="tiny", tools=TOOLS, **{**ASKED, **FORCED, "seed": seed})
            times.append(time.monotonic() - begun)
        assert {each.result() for each in thrown} <= {200, 400}
    assert max(times) < 30
    assert KEY != OTHER_KEY
