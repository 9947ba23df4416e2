"""Requests on the wire: what is accepted, what is refused, and by which name."""

from __future__ import annotations

import contextlib
import json
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from appliance.api.adapters.table import ADAPTERS
from appliance.api.dialects import THOUGHTS
from appliance.api.messages import EMPTY, IGNORED
from appliance.api.problems import PROBLEMS, RequestError, refusal
from appliance.api.wire import ChatRequest, CompletionRequest, parse
from appliance.api.wishes.ignored import Ignored
from appliance.errors import TemplateError
from appliance.text.template import ChatTemplate

TURN = {"role": "user", "content": "hi"}
CHAT = {"model": "demo", "messages": [TURN]}


def _chat(**more: Any) -> ChatRequest:
    return parse(json.dumps({**CHAT, **more}).encode(), ChatRequest)


def test_reads_a_chat_request() -> None:
    """Text, text parts, the newer role name, sampling and stops come out as they went in."""
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    request = _chat(messages=[{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}],
                    temperature=1, top_k=5, stop="x", seed=-1, max_completion_tokens=7)
    assert ["be brief", "a\nb"] == [turn.text for turn in request.messages]
    assert (1.0, 5, ("x",), -1, 7) == (
        request.temperature, request.top_k, request.stops, request.seed, request.token_bound)
    assert (None, False) == (request.logprob_count, request.include_usage)


def test_reads_variables_of_a_template() -> None:
    """Scalars of all kinds, null among them, come out as they went in; none at all are none."""
    given = {"enable_thinking": False, "n": -1, "x": 0.5, "text": "\u00e9" * 1024, "nothing": None}
    assert given == _chat(chat_template_kwargs=given).variables
    assert {} == _chat(chat_template_kwargs={}).variables == _chat(chat_template_kwargs=None).variables
    for number in ("1e999", "-1e19"):
        with pytest.raises(RequestError, match="64 bits"):
            parse(b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "chat_template_kwargs": {"x": '
                  + number.encode() + b"}}", ChatRequest)


COMPLETIONS = [("text", ["text"]), (["text"], ["text"]), ("", [""]), ([1, 2], [[1, 2]]), ([[1, 2]], [[1, 2]]),
               ([[0]], [[0]]), (["a", "b"], ["a", "b"]), ([[1], [2, 3]], [[1], [2, 3]])]


@pytest.mark.parametrize(("prompt", "prompts"), COMPLETIONS)
def test_reads_prompts(prompt: Any, prompts: list[Any]) -> None:
    """A prompt is text or token ids, or a list of texts or of lists of ids."""
    assert prompts == parse(json.dumps({"model": "m", "prompt": prompt}).encode(), CompletionRequest).prompts


@pytest.mark.parametrize("prompt", [[["a"]], [[]], [[[1]]], [[True]], [[1, "a"]], [[1.0]], [1, [2]], ["a", 1],
                                    ["a", [1]], [[1], []], ["a"] * 129, [[1]] * 129])
def test_refuses_other_prompts(prompt: Any) -> None:
    """Deeper lists, mixed ones and more than 128 prompts are refused."""
    with pytest.raises(RequestError) as caught:
        parse(json.dumps({"model": "m", "prompt": prompt}).encode(), CompletionRequest)
    assert "invalid_value" == caught.value.code
    assert (caught.value.param or "").startswith("prompt")


LARGE = 1 << 18
BODIES = [
    '{"model": "m", "messages": [' + "{}," * LARGE + "{}]}",
    '{"model": "m", "messages": [' + "[[[[[]]]]]," * LARGE + "[]]}",
    '{"model": "m", "messages": [{"role": "user", "content": [' + '{"type": "text", "text": "a"},' * LARGE
    + '{"type": "text", "text": "a"}]}]}',
    '{"model": "m", "prompt": [' + '"a",' * LARGE + '"a"]}', '{"model": "m", "prompt": [' + "0.5," * LARGE + "1]}",
    '{"model": "m", "prompt": [' + "1000," * LARGE + '1]}', '{"model": "m", "stop": [' + "1," * LARGE + '1]}',
    '{"model": "m"' + "".join(f', "{number}": 1' for number in range(LARGE)) + "}",
    '{"model": "m", "logit_bias": {' + ",".join(f'"{number}": "x"' for number in range(LARGE)) + "}}",
    '{"model": "m", "prompt": "\U0001f600' + "a" * LARGE + '"}']


@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_reading_takes_no_more_than_the_plan_says(body: str, kind: type[ChatRequest | CompletionRequest]) -> None:
    """Whatever a body is made of, reading it takes at most 48 times its size (`boot/planning/budget.py`), and what is
    kept of     it no more than eight times."""
    data, request = body.encode(), None
    tracemalloc.start()
    try:
        with contextlib.suppress(RequestError):
            request = parse(data, kind)
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 48 * len(data)
    assert kept < 8 * len(data)
    del request


def test_null_is_absent() -> None:
    """Clients send null for what they leave out: that is no wish."""
    assert _chat() == _chat(temperature=None, tools=None, stop=None, stream_options=None, user=None)
    assert _chat() == _chat(messages=[{**TURN, "name": None, "refusal": None, "tool_calls": None}])
    assert not _chat(stream=True, stream_options={"include_usage": None}).include_usage


@pytest.mark.parametrize("name", ["user", "metadata", "safety_identifier", "prompt_cache_key"])
def test_drops_what_identifies_people(name: str) -> None:
    """Fields about the end user are accepted and discarded."""
    body = json.dumps({**CHAT, name: {"anything": ["at", "all"]}}).encode()
    assert _chat() == parse(body, ChatRequest, ignored=Ignored())


REFUSED: list[tuple[dict[str, Any], str, str | None]] = [
    ({"n": 129}, "invalid_value", "n"),
    ({"n": True}, "invalid_value", "n"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools.0.function"),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    ({"store": True}, "unsupported_parameter", "store"),
    ({"temprature": 1}, "unknown_parameter", "temprature"),
    ({"stream_options": {"x": 1}, "stream": True}, "unknown_parameter", "stream_options.x"),
    ({"str": 1}, "unknown_parameter", "str"),  # names that findings have for branches of a union, too
    ({"messages[0]": TURN}, "unknown_parameter", "messages[0]"),
    ({"stream_options": {"float": 1}, "stream": True}, "unknown_parameter", "stream_options.float"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "f(x)": 1}]}]}, "unknown_parameter",
     "messages.0.content.0.f(x)"),
    ({"stream_options": {"include_obfuscation": True}, "stream": True}, "unsupported_parameter",
     "stream_options.include_obfuscation"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": None}, "missing_required_parameter", "messages"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "invalid_value", "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages.0.content"),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]},
     "missing_required_parameter", "messages.0.tool_calls.0.function"),
    ({"messages": None, "mesages": [TURN]}, "unknown_parameter", "mesages"),
    ({"verbosity": "low"}, "unsupported_parameter", "verbosity"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "missing_required_parameter",
     "messages.0.content.0.text"),
    ({"messages": [{"role": "user", "content": 7}]}, "invalid_value", "messages.0.content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "unsupported_parameter",
     "messages.0.content.0.type"),
    ({"model": 7}, "invalid_value", "model"),
    ({"temperature": "1"}, "invalid_value", "temperature"),
    ({"temperature": True}, "invalid_value", "temperature"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "invalid_value", "max_tokens"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop"),
    ({"logit_bias": {"x": 1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"5": 1, "05": -1}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"1": 101}}, "invalid_value", "logit_bias"),
    ({"top_logprobs": 3}, "invalid_value", "top_logprobs"),
    ({"stream_options": {"include_usage": True}}, "unsupported_parameter", "stream_options"),
    ({"seed": 2**64}, "invalid_value", "seed"), ({"seed": -(2**63) - 1}, "invalid_value", "seed"),
    ({"chat_template_kwargs": [1]}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": [1]}}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": {}}}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": 2**63}}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"x": "a" * 1025}}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {"a b": 1}}, "invalid_value", "chat_template_kwargs"),
    ({"chat_template_kwargs": {f"x{number}": 1 for number in range(17)}}, "invalid_value", "chat_template_kwargs"),
]


@pytest.mark.parametrize(("more", "code", "param"), REFUSED)
def test_refuses_by_name(more: dict[str, Any], code: str, param: str | None) -> None:
    """A parameter that is unsupported or out of bounds is refused with its path; an unknown one by a strict policy."""
    with pytest.raises(RequestError) as caught:
        _chat(**more)
    assert (code, param) == (caught.value.code, caught.value.param)
    assert not re.search("Input|should|valid ", caught.value.summary)  # as pydantic has it


@pytest.mark.parametrize(("more", "param", "words"), [
    ({"echo": True}, "echo", "no value but false or null; text completions have this, at /v1/completions"),
    ({"store": True}, "store", "no value but false or null"),
    ({"verbosity": "low"}, "verbosity", 'no value but "medium" or null')])
def test_an_unsupported_value_is_told_what_is_allowed(more: dict[str, Any], param: str, words: str) -> None:
    """Tools are named before the choice among them, wherever clients write it; what would pass is told."""
    with pytest.raises(RequestError) as caught:
        _chat(**more)
    assert ("unsupported_parameter", param) == (caught.value.code, caught.value.param)
    assert f"{param}: this service supports {words}" == caught.value.summary


EXPLAINED = [
    ({"stop": ["x"] * 17}, "stop: allowed: a length of 16 or less; found: 17"),
    ({"prompt": []}, "prompt: allowed: a length of 1 or more; found: 0"),
    ({"prompt": [1, "a"]}, "prompt.1: allowed: an integer; found: a text"),
    ({"prompt": [[]]}, "prompt.0: allowed: a length of 1 or more; found: 0"),
    ({"prompt": [-1]}, "prompt.0: allowed: 0 or more; found: -1"),
    ({"prompt": [2**31]}, "prompt.0: allowed: less than 2147483648; found: 2147483648"),
    ({"prompt": 7}, "prompt: allowed: a text or a list; found: an integer"),
    ({"model": None}, "model: this parameter is required"),
    ({"model": "m" * 300}, "model: allowed: a length of 256 or less; found: 300"),
    ({"max_tokens": 1.5}, "max_tokens: allowed: an integer; found: a number"),
    ({"stream": "yes"}, "stream: allowed: true or false; found: a text"),
    ({"logit_bias": [1]}, "logit_bias: allowed: an object; found: a list"),
    ({"temperature": 10**400}, "temperature: allowed: a number within 1.8e308 of 0; found: more"),
    ({"logit_bias": {"1": -10**400}}, "logit_bias.1: allowed: a number within 1.8e308 of 0; found: less"),
    ({"temperature": True}, "temperature: allowed: a number; found: a boolean"),
    ({"logprobs": 6}, "logprobs: allowed: 5 or less; found: 6")]


@pytest.mark.parametrize(("more", "words"), EXPLAINED)
def test_refusals_say_which_bound(more: dict[str, Any], words: str) -> None:
    """Where a parameter may be one of several things, the refusal is about the one that was meant."""
    body = json.dumps({"model": "m", "prompt": "x", **more}).encode()
    with pytest.raises(RequestError) as caught:
        parse(body, CompletionRequest)
    assert words == caught.value.summary


def test_refusal_has_no_text_of_the_request_in_it() -> None:
    """But for a short word where one of a few is allowed, which is the caller's own; in ASCII."""
    for more in ({"temperature": "CANARY"}, {"seed": ["CANARY"]},
                 {"messages": [{"role": "user", "content": ["CANARY"]}]},
                 {"reasoning_format": "CANARY" * 20}, {"prompt": "CANARY", "messages": None}):
        with pytest.raises(RequestError) as caught:
            _chat(**more)
        assert b"CANARY" not in caught.value.body()
    with pytest.raises(RequestError) as caught:
        _chat(messages=[{"role": "r\u00f6bot\r\n", "content": "x"}])
    assert caught.value.summary.endswith('found: "r\\u00f6bot\\r\\n"')


def test_all_faults_are_named() -> None:
    """The first is explained; the others stand behind it, some of many."""
    with pytest.raises(RequestError) as caught:
        _chat(modalities=["audio"], temperature="x", seed="y", made_up=1)
    assert caught.value.summary.startswith("modalities: ")
    assert caught.value.summary.endswith("; also at fault: made_up, temperature, seed")
    with pytest.raises(RequestError) as caught:
        _chat(**{f"name{number}": 1 for number in range(30)})
    assert caught.value.summary.endswith("name7, name8, and 21 more")


DROPS = [
    (["user"], {"user": 1}, {}),
    (["tools"], {"tools": [{"type": "function"}]}, {}),
    (["metadata.id"], {"metadata": {"id": "x"}}, {}),
    (["messages.name"], {"messages": [{**TURN, "name": "Ann"}]}, {"messages": [TURN]}),
    (["a.b.c"], {"temperature": 1}, {"temperature": 1}),
]


@pytest.mark.parametrize(("drop", "sent", "seen"), DROPS)
def test_drops_fields_of_the_policy(drop: list[str], sent: dict[str, Any], seen: dict[str, Any]) -> None:
    """A field that the policy's redaction names is gone before anything else looks at the request."""
    assert _chat(**seen) == parse(json.dumps({**CHAT, **sent}).encode(), ChatRequest, drop=drop)


def test_every_problem_has_openai_s_shape() -> None:
    """Each code gives a body with OpenAI's four fields and a status that fits its type."""
    for code, problem in PROBLEMS.items():
        error = json.loads(RequestError(code, param="p").body())["error"]
        assert {"message": problem.message, "type": problem.type, "param": "p", "code": code} == error
        assert 400 <= problem.status < 600


def test_unforeseen_errors_say_nothing() -> None:
    """An exception that nobody foresaw becomes a 500 without a word of its own."""
    refused = refusal(ValueError("CANARY"))
    assert (500, "internal_error") == (refused.status, refused.code)
    assert b"CANARY" not in refused.body()


def test_a_template_s_own_words() -> None:
    """Who sent messages that a template refuses is told why in the template's words, unless they quote a message."""
    for source, wanted in (("{{ raise_exception('System role not supported') }}", "System role not supported"),
                           ("{{ raise_exception('No ' + messages[0].content) }}", "refuses these messages"),
                           ("{{ messages[0].content.missing.more }}", "does not accept these messages")):
        with pytest.raises(TemplateError) as caught:
            ChatTemplate(source, {}).render([{"role": "user", "content": "CANARY"}])
        refused = refusal(caught.value)
        assert (400, "template_refused") == (refused.status, refused.code)
        message = json.loads(refused.body())["error"]["message"]
        assert message.endswith(wanted)
        assert "CANARY" not in message


def test_a_chat_too_long_for_its_template() -> None:
    """A conversation that takes more steps or room than a template has is too long: clients know how to cut it."""
    chat = [{"role": "user", "content": "x"}] * 300
    for source in ("{% for m in messages %}{% for n in messages %}{% for k in messages %}{% endfor %}{% endfor %}"
                   "{% endfor %}", "{% for m in messages %}{% set x = messages * 30 %}{% endfor %}"):
        with pytest.raises(TemplateError) as caught:
            ChatTemplate(source, {}).render(chat)
        refused = refusal(caught.value)
        assert (400, "context_length_exceeded") == (refused.status, refused.code)
        assert "too long for the model's chat template" in refused.summary


def test_reference_lists_every_code_and_parameter() -> None:
    """The reference names each code with its status, and each parameter that is known."""
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    rows = {int(row[1]): set(re.findall(r"`(\w+)`", row[2])) for row in re.finditer(r"\| (\d+) \| (.*) \|", reference)}
    told = {code: problem.status for code, problem in PROBLEMS.items() if problem.status != 499}
    assert told == {code: status for status, codes in rows.items() for code in codes}
    for name in [*ChatRequest.model_fields, *CompletionRequest.model_fields]:
        assert f"`{name}" in reference, name
    chat, text = set(ChatRequest.model_fields), set(CompletionRequest.model_fields)
    for name in chat ^ text:  # what one of them alone takes is said to be its own
        row = next(line for line in reference.splitlines() if line.startswith("| `") and f"`{name}`" in line)
        assert ("chat: " if name in chat else "completions: ") in row, name


def test_reference_has_the_table_of_names() -> None:
    """Each row of each endpoint stands in the page that is made of them, as a demand or a wish, with its reason."""
    reference = (Path(__file__).parents[2] / "docs" / "reference" / "parameters.md").read_text().splitlines()
    for row in (row for adapter in ADAPTERS for row in adapter.rows.values()):
        kind = "another name" if row.becomes else "a wish" if row.wish else "a demand"
        [*lines] = [line for line in reference if line.startswith(f"| `{row.name}` |")]
        assert any(f"| {kind} | {row.why}" in line for line in lines), row.name
    api = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    for name in (*IGNORED, *EMPTY, *THOUGHTS):
        assert f"`{name}`" in api, name
