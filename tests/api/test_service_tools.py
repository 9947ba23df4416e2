"""Tools and structure on the wire: what is taken, by the names of which servers, and what is refused."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from appliance.api import marks
from appliance.api.adapters.parameters import known
from appliance.api.offers import DEEPEST, MOST
from appliance.api.problems import RequestError, refusal
from appliance.api.wire import ChatRequest, CompletionRequest, parse
from appliance.api.wishes.ignored import Ignored
from appliance.constraint.spec import Gbnf, JsonObject, JsonSchema, Lark, RegexText, Spec, TextList
from appliance.errors import EngineError

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer", "default": None}}}


def _tool(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


TOOLS = [_tool("f", description="d", parameters=SCHEMA), _tool("g", strict=True), _tool("h")]
ALLOWED = {"type": "allowed_tools", "allowed_tools": {
    "mode": "required", "tools": [{"type": "function", "function": {"name": name}} for name in ("h", "f")]}}


def _chat(**more: Any) -> ChatRequest:
    return parse(json.dumps({**CHAT, **more}).encode(), ChatRequest)


def _text(**more: Any) -> CompletionRequest:
    return parse(json.dumps({"model": "m", "prompt": "hi", **more}).encode(), CompletionRequest)


def _refused(**more: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(json.dumps({**CHAT, **more}).encode(), ChatRequest, ignored=Ignored())
    return caught.value


@pytest.mark.parametrize(("choice", "names", "required"), [
    (None, "fgh", False), ("auto", "fgh", False), ("none", "", False), ("required", "fgh", True),
    ({"type": "function", "function": {"name": "g"}}, "g", True), (ALLOWED, "fh", True),
    ({"type": "allowed_tools", "allowed_tools": {**ALLOWED["allowed_tools"], "mode": "auto"}}, "fh", False)])
def test_the_choice_of_tools(choice: Any, names: str, required: bool) -> None:
    """It says which functions there are, and whether one must be called."""
    offer = _chat(tools=TOOLS, tool_choice=choice).offer
    assert (list(names), required, names != "g") == ([each.name for each in offer.functions], offer.required,
                                                     offer.parallel)  # a function that is named is called once
    assert [f"tools.{'fgh'.index(name)}.function.parameters" for name in names] == [
        offer.path(place) for place in range(len(names))]
    assert not _chat(tools=TOOLS, tool_choice=choice, parallel_tool_calls=False).offer.parallel or not names


@pytest.mark.parametrize(("call", "names", "required"), [
    (None, "fg", False), ("auto", "fg", False), ("none", "", False), ({"name": "g"}, "g", True)])
def test_the_older_form(call: Any, names: str, required: bool) -> None:
    """`functions` and `function_call` are tools of which one is called at most."""
    offer = _chat(functions=[{"name": "f", "parameters": SCHEMA}, {"name": "g"}], function_call=call).offer
    assert (list(names), required, True) == ([each.name for each in offer.functions], offer.required, offer.older)
    assert not (offer.parallel and names)
    assert [f"functions.{'fg'.index(name)}.parameters" for name in names] == list(map(offer.path, range(len(names))))


def test_a_function_keeps_what_was_sent() -> None:
    """Null within a schema is no absent value, and the order of keys stays."""
    [function, strict, plain] = _chat(tools=TOOLS).offer.functions
    assert {"name": "f", "description": "d", "parameters": SCHEMA, "strict": False} == json.loads(function.as_json())
    assert {"name": "h", "description": None, "parameters": None, "strict": False} == json.loads(plain.as_json())
    assert strict.strict


def test_what_asks_for_nothing() -> None:
    """Without tools, a choice among none is the same as no choice."""
    for more in ({"tools": [], "tool_choice": "auto"}, {"tools": None, "tool_choice": "none"},
                 {"functions": [], "function_call": "auto"}, {"parallel_tool_calls": True}, {"tools": []},
                 {"response_format": {"type": "text"}}, {"grammar": ""}, {"format": ""}):
        assert _chat() == _chat(**more)
    assert _text() == _text(tools=[], tool_choice="auto", response_format={"type": "text"})


DEEP: Any = 1
for _ in range(DEEPEST):
    DEEP = {"a": DEEP}
REFUSED: list[tuple[dict[str, Any], str, str, str]] = [
    ({"tools": [_tool("a b")]}, "invalid_value", "tools.0.function.name", ""),
    ({"tools": [_tool("f" * 129)]}, "invalid_value", "tools.0.function.name", ""),
    ({"tools": [_tool("f", parameters=[])]}, "invalid_value", "tools.0.function.parameters", "an object"),
    ({"tools": [_tool("f", parameters="{}")]}, "invalid_value", "tools.0.function.parameters", "an object"),
    ({"tools": [_tool("f", parameters={"type": "string"})]}, "invalid_value", "tools.0.function.parameters",
     'the type is "object"'),
    ({"functions": [{"name": "f", "parameters": {"type": ["array", "null"]}}]}, "invalid_value",
     "functions.0.parameters", 'the type is "object"'),
    ({"tools": [_tool("f", parameters={"a": DEEP})]}, "invalid_value", "tools.0.function.parameters", "28 deep"),
    ({"tools": [_tool("f"), _tool("g"), _tool("f")]}, "invalid_value", "tools", "the function f stands twice"),
    ({"tools": [_tool(f"f{number}") for number in range(MOST + 1)]}, "invalid_value", "tools", "1024 or less"),
    ({"tools": {"f": {}}}, "invalid_value", "tools", "a list"),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice", "tools has none"),
    ({"tool_choice": "any", "tools": TOOLS}, "invalid_value", "tool_choice", "'required'"),
    ({"tool_choice": {"type": "function", "function": {"name": "x"}}, "tools": TOOLS}, "invalid_value", "tool_choice",
     "it has: f, g, h"),
    ({"tool_choice": {"type": "function"}, "tools": TOOLS}, "invalid_value", "tool_choice", "function alone"),
    ({"tool_choice": {"type": "custom", "custom": {"name": "x"}}, "tools": TOOLS}, "invalid_value",
     "tool_choice.type", "'function' or 'allowed_tools'"),
    ({"tool_choice": 7, "tools": TOOLS}, "invalid_value", "tool_choice", "an object"),
    ({"tools": TOOLS, "functions": [{"name": "f"}]}, "invalid_value", "tools", "functions, its older form"),
    ({"functions": [{"name": "f"}], "tool_choice": "auto"}, "invalid_value", "tool_choice", "its older form"),
    ({"functions": [{"name": "f"}], "parallel_tool_calls": True}, "invalid_value", "parallel_tool_calls", ""),
    ({"tools": TOOLS, "function_call": "auto"}, "invalid_value", "tools", "function_call, its older form"),
    ({"function_call": {"name": "f"}}, "invalid_value", "function_call", "functions has none"),
    ({"parallel_tool_calls": "no", "tools": TOOLS}, "invalid_value", "parallel_tool_calls", "true or false"),
]


@pytest.mark.parametrize(("tool", "path"), [
    ({"type": "custom", "custom": {"name": "x"}}, ("tools", 1)),
    (_tool("g", params={}), ("tools", 1, "function", "params")), ({**_tool("g"), "x": 1}, ("tools", 1, "x"))])
def test_what_a_tool_has_beside_its_function_is_noted(tool: dict[str, Any], path: tuple[str | int, ...]) -> None:
    """A tool of another type, and members that no function has; a strict policy refuses them."""
    ignored, body = Ignored(), json.dumps({**CHAT, "tools": [_tool("f"), tool]}).encode()
    assert "f" == parse(body, ChatRequest, ignored=ignored).offer.functions[0].name
    assert [path] == ignored.paths
    with pytest.raises(RequestError) as caught:
        parse(body, ChatRequest)
    assert ".".join(map(str, path)) == caught.value.param


@pytest.mark.parametrize(("more", "code", "param", "words"), REFUSED, ids=range(len(REFUSED)))
def test_what_contradicts_itself_is_refused_by_name(more: dict[str, Any], code: str, param: str, words: str) -> None:
    """Unknown kinds, names, choices and combinations: with the parameter, and what is allowed."""
    error = _refused(**more)
    assert (code, param) == (error.code, error.param)
    assert words in error.summary
    assert error.summary.startswith(f"{param}: ")


def test_completions_have_no_tools() -> None:
    """A text has no calls: the refusal names the endpoint that has them."""
    with pytest.raises(RequestError, match=r"tools: .* chats have tools, at /v1/chat/completions"):
        _text(tools=TOOLS)


OBJECT = {"type": "object"}
STRUCTURES: list[tuple[dict[str, Any], str, Spec]] = [
    ({"response_format": {"type": "json_object"}}, "response_format", JsonObject()),
    ({"response_format": {"type": "json_object", "schema": OBJECT}}, "response_format.schema", JsonSchema(OBJECT)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}},
     "response_format.json_schema.schema", JsonSchema(SCHEMA)),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, "response_format", JsonObject()),
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json", JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json": json.dumps(SCHEMA)}}, "structured_outputs.json", JsonSchema(SCHEMA)),
    ({"structured_outputs": {"json_object": True}}, "structured_outputs", JsonObject()),
    ({"structured_outputs": {"regex": "a+"}}, "structured_outputs.regex", RegexText("a+")),
    ({"structured_outputs": {"choice": ["b", "a"]}}, "structured_outputs.choice", TextList(("b", "a"))),
    ({"structured_outputs": {"grammar": "start: \"a\""}}, "structured_outputs.grammar", Lark("start: \"a\"")),
    ({"structured_outputs": {"grammar": "root ::= \"a\""}}, "structured_outputs.grammar", Gbnf("root ::= \"a\"")),
    ({"guided_json": SCHEMA}, "guided_json", JsonSchema(SCHEMA)), ({"guided_json": True}, "guided_json",
                                                                 JsonSchema(True)),
    ({"guided_regex": "a"}, "guided_regex", RegexText("a")),
    ({"guided_choice": ["a"]}, "guided_choice", TextList(("a",))),
    ({"guided_grammar": "root ::= \"a\""}, "guided_grammar", Gbnf("root ::= \"a\"")),
    ({"grammar": "root ::= \"a\""}, "grammar", Gbnf("root ::= \"a\"")),
    ({"json_schema": SCHEMA}, "json_schema", JsonSchema(SCHEMA)), ({"json_schema": {}}, "json_schema", JsonSchema({})),
    ({"guided_choice": ["a", "a"]}, "guided_choice", TextList(("a", "a"))),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", RegexText("")),
    ({"guided_grammar": "start: \"a\"", "structured_outputs": {"grammar": "start: \"a\""}},
     "structured_outputs.grammar", Lark("start: \"a\"")),
    ({"json_schema": SCHEMA, "guided_json": SCHEMA}, "guided_json", JsonSchema(SCHEMA)),
    ({"regex": "a"}, "regex", RegexText("a")), ({"ebnf": "root ::= \"a\""}, "ebnf", Gbnf("root ::= \"a\"")),
    ({"format": "json"}, "format", JsonObject()), ({"format": SCHEMA}, "format", JsonSchema(SCHEMA)),
    ({"guided_json": SCHEMA, "response_format": {"type": "text"}}, "guided_json", JsonSchema(SCHEMA)),
]


@pytest.mark.parametrize(("more", "param", "spec"), STRUCTURES, ids=range(len(STRUCTURES)))
def test_structure_by_each_of_its_names(more: dict[str, Any], param: str, spec: Spec) -> None:
    """OpenAI, vLLM, llama.cpp, SGLang and Ollama name it differently; both endpoints take it."""
    for request in (_chat(**more), _text(**more)):
        assert request.structure is not None
        assert (param, spec) == (request.structure.param, request.structure.spec)
        assert known(param) is not None


BAD: list[tuple[dict[str, Any], str, str, str]] = [
    ({"response_format": {"type": "json_schema"}}, "missing_required_parameter", "response_format.json_schema", ""),
    ({"response_format": {"type": "text", "schema": {}}}, "invalid_value", "response_format.schema", "type text"),
    ({"response_format": {"type": "json_object", "json_schema": {"schema": {}}}}, "invalid_value",
     "response_format.json_schema", "json_schema alone"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": []}}}, "invalid_value",
     "response_format.json_schema.schema", "an object"),
    ({"response_format": {"type": "grammar", "grammar": "x"}}, "invalid_value", "response_format.type", ""),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs", "one of json, regex"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "invalid_value", "structured_outputs", "one of json"),
    ({"structured_outputs": {"structural_tag": "x"}}, "unsupported_parameter", "structured_outputs.structural_tag",
     "structured_outputs takes a grammar"),
    ({"structured_outputs": {"regex": "a", "disable_any_whitespace": True}}, "invalid_value",
     "structured_outputs.disable_any_whitespace", "False"),
    ({"guided_json": "[1]"}, "invalid_value", "guided_json", "not a JSON object"),
    ({"guided_json": '{"a": 1, "a": 2}'}, "invalid_value", "guided_json", "each key once"),
    ({"guided_json": {"maximum": 10 ** 400}, "guided_regex": "a"}, "invalid_value", "guided_regex",
     "guided_json gives already"),
    ({"guided_choice": []}, "invalid_value", "guided_choice", "1 or more"),
    ({"guided_choice": ["a", 1]}, "invalid_value", "guided_choice.1", "a text"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "invalid_value", "guided_json",
     "response_format gives already"),
    ({"grammar": "x", "json_schema": {}}, "invalid_value", "json_schema", "grammar gives already"),
    ({"guided_grammar": "start: \"a\"", "structured_outputs": {"grammar": "start: \"b\""}}, "invalid_value",
     "guided_grammar", "structured_outputs gives already"),
    ({"guided_json": {"const": 1}, "json_schema": {"const": True}}, "invalid_value", "json_schema",
     "guided_json gives already"),
    ({"json_schema": {"a": DEEP}}, "invalid_value", "json_schema", "28 deep"), ({"format": "xml"}, "invalid_value",
                                                                              "format", "an object"),
]


@pytest.mark.parametrize(("more", "code", "param", "words"), BAD, ids=range(len(BAD)))
def test_structure_that_is_none_is_refused_by_name(more: dict[str, Any], code: str, param: str, words: str) -> None:
    """What is missing, contradicts itself, or asks for two structures."""
    error = _refused(**more)
    assert (code, param) == (error.code, error.param)
    assert words in error.summary


def test_numbers_without_a_bound_are_refused() -> None:
    """A number that no float holds would become an infinity, which JSON has not."""
    with pytest.raises(RequestError, match=r"json_schema: numbers lie within 1.8e308 of 0"):
        parse(b'{"model": "m", "prompt": "x", "json_schema": {"maximum": 1e999}}', CompletionRequest)


def test_names_of_parameters_in_the_log() -> None:
    """A path within a schema becomes the parameter that has the schema: nothing that a client made up."""
    assert "tools.function.parameters" == known("tools.3.function.parameters.properties.secret.pattern")
    assert "response_format.json_schema.schema" == known("response_format.json_schema.schema.properties.a")
    assert "structured_outputs.json" == known("structured_outputs.json.properties.a")
    assert "messages.tool_calls.function.arguments" == known("messages.3.tool_calls.0.function.arguments")


def _large(tools: int, characters: int) -> list[dict[str, Any]]:
    """Tools whose schemas have so many characters in all."""
    each = {"type": "object", "required": ["query"], "additionalProperties": False, "properties": {
        f"field_{number}": {"type": "string", "description": "What to look for, in a sentence or two.",
                            "enum": ["north", "south", "east", "west"]} for number in range(200)}}
    found = []
    for number in range(tools):
        properties: dict[str, Any] = {}
        for name, value in each["properties"].items():
            if len(json.dumps(properties)) > characters / tools:
                break
            properties[name] = value
        found.append(_tool(f"tool_{number}", description="A tool.", parameters={**each, "properties": properties}))
    return found


def test_sixty_tools_with_100_kb_of_schemas() -> None:
    """They pass the count of values that a body may have, and what a request keeps of them is no more than eight
    times their text."""
    body = json.dumps({**CHAT, "tools": _large(60, 100_000)}).encode()
    assert len(body) > 100_000
    marks.check(body, marks.MOST)
    tracemalloc.start()
    request = parse(body, ChatRequest)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 60 == len(request.offer.functions)
    assert kept < 8 * len(body)
    assert peak < 48 * len(body)


@pytest.mark.slow
@pytest.mark.parametrize("body", [
    {"tools": [_tool(f"f{number}", parameters={"enum": [[]] * 200}) for number in range(1000)]},
    {"json_schema": {"enum": [{"a": {}} for _ in range(50_000)]}},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}] * 250} for _ in range(500)]}])
def test_schemas_and_calls_are_kept_as_text(body: dict[str, Any]) -> None:
    """However small their parts, a request that waits is not much larger than its body."""
    data, request = json.dumps({**CHAT, **body}).encode(), None
    tracemalloc.start()
    request = parse(data, ChatRequest)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 8 * len(data)
    assert peak < 48 * len(data)
    del request


def test_an_answer_that_is_stuck() -> None:
    """Where the engine cannot go on within a constraint, the caller is told what may help."""
    assert "structure_stuck" == refusal(EngineError("x", code="constraint-stuck")).code
    assert "engine_error" == refusal(EngineError("x")).code
