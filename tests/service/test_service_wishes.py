"""Wishes and unknown names against a server that was really booted: accepted and named, or refused where the policy
says so. Demands are met or refused, by path."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.test_service_responses import model
from tests.service.test_service_tools import TEMPLATE, WEATHER
from tests.support.server import KEY, Server, write_policy

__all__ = ["model"]
USER = {"role": "user", "content": "weather?"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [USER], "max_tokens": 3},
    "/v1/completions": {"prompt": "weather?", "max_tokens": 3},
    "/v1/responses": {"input": "weather?", "max_output_tokens": 3},
    "/v1/messages": {"messages": [USER], "max_tokens": 3}}
FUNCTION = {"type": "function", "name": "get_weather", "parameters": WEATHER}


def _server(folder: Path, model: Path, **more: Any) -> Server:
    policy = write_policy(folder, {"tiny": model}, model=f"chat_template = {json.dumps(TEMPLATE)}\n", **more)
    return Server(policy, [model]).wait_ready()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose policy says nothing about wishes."""
    running = _server(tmp_path_factory.mktemp("lenient"), model, schema=2)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose policy wants them refused."""
    running = _server(tmp_path_factory.mktemp("strict"), model, schema=2, service="strict = true")
    yield running
    running.stop()


def _post(server: Server, path: str, **body: Any) -> httpx.Response:
    with server.http() as http:
        return http.post(path, json={"model": "tiny", **ASKED[path], **body})


def _ignored(answer: httpx.Response) -> list[str]:
    return [name for name in answer.headers.get("appliance-ignored", "").split(", ") if name]


WISHES: list[tuple[str, dict[str, Any], list[str]]] = [
    ("/v1/chat/completions", {"made_up": 1}, ["made_up"]),
    ("/v1/chat/completions", {"messages": [{**USER, "mood": "calm"}]}, ["messages.0.mood"]),
    ("/v1/chat/completions", {"messages": [{**USER, "content": [
        {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]}]},
     ["messages.0.content.0.cache_control"]),
    ("/v1/chat/completions", {"store": True, "verbosity": "low", "service_tier": "flex", "user": "u"},
     ["store", "verbosity", "service_tier", "user"]),
    ("/v1/chat/completions", {"reasoning_effort": "ultra"}, ["reasoning_effort"]),
    ("/v1/chat/completions", {"reasoning_effort": "minimal", "chat_template_kwargs": {"shout": True}},
     ["chat_template_kwargs.shout"]),
    ("/v1/chat/completions", {"tools": [{"type": "web_search"}], "tool_choice": "auto"}, ["tools.0"]),
    ("/v1/chat/completions", {"stream_options": {"include_usage": True}}, ["stream_options"]),
    ("/v1/chat/completions", {"thinking_token_budget": 64}, ["thinking_token_budget"]),
    ("/v1/completions", {"keep_alive": "5m", "num_ctx": 4096, "reasoning_effort": "high"},
     ["keep_alive", "num_ctx", "reasoning_effort"]),
    ("/v1/responses", {"client_metadata": {"a": "b"}, "tools": [FUNCTION] * 1 + [{"type": "web_search"}]},
     ["client_metadata", "tools.1"]),
    ("/v1/responses", {"truncation": "auto", "store": True, "text": {"verbosity": "low"},
                       "reasoning": {"effort": "ultra", "summary": "detailed"}, "include": ["file_search_call.results"],
                       "stream_options": {"include_obfuscation": True}},
     ["truncation", "store", "text.verbosity", "reasoning.summary", "reasoning.effort", "include.0",
      "stream_options.include_obfuscation"]),
    ("/v1/responses", {"input": [{"type": "compaction", "encrypted_content": "x"}, USER]}, ["input.0"]),
    ("/v1/messages", {"thread": {"type": "create"}, "speed": "fast", "mcp_servers": [{"name": "x"}]},
     ["thread", "speed", "mcp_servers"]),
    ("/v1/messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
     ["context_management"]),
    ("/v1/messages", {"thinking": {"type": "enabled", "budget_tokens": 2048}}, ["thinking.budget_tokens"]),
    ("/v1/messages", {"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, ["output_config.effort"]),
    ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}, {
        "name": "f" * 128, "input_schema": WEATHER, "eager_input_streaming": True, "defer_loading": True,
        "allowed_callers": ["direct"], "input_examples": [{"city": "north"}]}]},
     ["tools.0", "tools.1.eager_input_streaming", "tools.1.defer_loading", "tools.1.allowed_callers",
      "tools.1.input_examples"])]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body", "names"), WISHES, ids=range(len(WISHES)))
def test_wishes_are_named(server: Server, path: str, body: dict[str, Any], names: list[str], stream: bool) -> None:
    """With status 200, whole and streamed: the header is there before the stream begins."""
    if stream and "stream_options" in body:
        return
    answer = _post(server, path, **body, **({"stream": True} if stream else {}))
    assert 200 == answer.status_code, answer.text
    assert sorted(names) == sorted(_ignored(answer))


IDLE = {"cache_control", "client_metadata", "keep_alive", "user"}


@pytest.mark.parametrize(("path", "body", "names"), WISHES, ids=range(len(WISHES)))
def test_a_strict_policy_refuses_them(strict: Server, path: str, body: dict[str, Any], names: list[str]) -> None:
    """By their paths, all of one request at once, but for those that ask nothing of the answer."""
    answer, asking = _post(strict, path, **body), [name for name in names if name.rpartition(".")[2] not in IDLE]
    if not asking:
        assert (200, names) == (answer.status_code, _ignored(answer))
        return
    message = answer.json()["error"]["message"]
    assert 400 == answer.status_code, answer.text
    assert any(message.startswith(f"{name}: ") for name in asking)
    assert [] == _ignored(answer)
    assert [] == [name for name in asking if name not in message]


def test_a_strict_policy_takes_what_asks_for_nothing(strict: Server) -> None:
    """Null and neutral values are no wishes."""
    more = {"store": False, "verbosity": "medium", "service_tier": "auto", "made_up": None, "n": 1, "tools": []}
    answer = _post(strict, "/v1/chat/completions", **more)
    assert (200, []) == (answer.status_code, _ignored(answer))


def test_schema_1_ignores_as_well(service: Server) -> None:
    """Its policies say nothing about names of requests."""
    with service.http() as http:
        answer = http.post("/v1/chat/completions", json={
            "model": "tiny", "messages": [USER], "max_tokens": 2, "made_up": 1, "store": True})
    assert (200, ["store", "made_up"]) == (answer.status_code, _ignored(answer))


CANARY = "canary-4417"
HOSTILE = [f"{CANARY}\r\nset-cookie: x=1", f"{CANARY} , ;=", f"{CANARY}\u00e9\u2028\U0001f600", f"{CANARY}." * 60,
           f"{CANARY}\x00\x7f\\u000a", "", f'{CANARY}"quoted"']


@pytest.mark.parametrize("stream", [False, True])
def test_hostile_names(server: Server, stream: bool) -> None:
    """The header is printable ASCII, one line, bounded, and each name in it is told apart; no log has any."""
    answer = _post(server, "/v1/chat/completions", stream=stream, **dict.fromkeys(HOSTILE, 1))
    assert 200 == answer.status_code
    assert "set-cookie" not in answer.headers
    raw = dict(answer.headers.raw)[b"appliance-ignored"]
    assert all(0x20 <= byte < 0x7F for byte in raw)
    names = _ignored(answer)
    assert len(HOSTILE) == len(names)
    assert '""' in names  # the empty one
    assert all(len(name) <= 83 for name in names)
    assert f"{CANARY}\\u000d\\u000aset-cookie\\u003a\\u0020x=1".replace("\\u003a", ":") in names
    assert f"{CANARY}\\u00e9\\u2028\\ud83d\\ude00" in names
    assert any(name.endswith("...") for name in names)
    server.audited(answer.headers["x-request-id"])
    for file in ("audit.jsonl", "stderr", "stdout"):
        assert CANARY not in server.text(file)


def test_many_names(server: Server) -> None:
    """64 are told, and that there are more."""
    answer = _post(server, "/v1/chat/completions", **{f"name{number}": 1 for number in range(2000)})
    names = _ignored(answer)
    assert (200, 65, "name0", "...") == (answer.status_code, len(names), names[0], names[-1])
    answer = _post(server, "/v1/chat/completions", **{f"{number}{'n' * 90}": 1 for number in range(60)})
    assert (200, "...") == (answer.status_code, _ignored(answer)[-1])
    assert 1900 < len(answer.headers["appliance-ignored"]) < 2100


DEMANDS: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/chat/completions", {"modalities": ["text", "audio"]}, "modalities"),
    ("/v1/chat/completions", {"logprobs": True}, "logprobs"), ("/v1/chat/completions", {"n": 1000}, "n"),
    ("/v1/chat/completions", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ("/v1/chat/completions", {"return_token_ids": True}, "return_token_ids"),
    ("/v1/chat/completions", {"response_format": {"type": "xml"}}, "response_format.type"),
    ("/v1/chat/completions", {"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
    ("/v1/completions", {"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ("/v1/responses", {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    ("/v1/responses", {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ("/v1/responses", {"tools": [{"type": "web_search"}], "tool_choice": {
        "type": "allowed_tools", "mode": "required", "tools": [{"type": "web_search"}]}}, "tool_choice"),
    ("/v1/responses", {"background": True}, "background"),
    ("/v1/responses", {"previous_response_id": "resp_1"}, "previous_response_id"),
    ("/v1/messages", {"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management"),
    ("/v1/messages", {"inference_geo": "eu"}, "inference_geo"),
    ("/v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}],
                      "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice")]


@pytest.mark.parametrize(("path", "body", "param"), DEMANDS, ids=range(len(DEMANDS)))
def test_demands_are_refused_by_path(server: Server, path: str, body: dict[str, Any], param: str) -> None:
    """Those that this service cannot meet, whatever else the request asks for."""
    answer = _post(server, path, **body, made_up=1)
    error = answer.json()["error"]
    assert 400 == answer.status_code
    assert error["message"].startswith(f"{param}: ")
    if path != "/v1/messages":
        assert param == error["param"]


def test_all_bad_names_are_told(server: Server) -> None:
    """With the caller's own value where it is one of a few words, or a number."""
    answer = _post(server, "/v1/chat/completions", background=1, modalities=["audio"], temperature="hot", logprobs=1,
                   response_format={"type": "xml"})
    message = answer.json()["error"]["message"]
    assert 400 == answer.status_code
    for name in ("modalities", "temperature", "logprobs", "response_format.type"):
        assert name in message
    alone = _post(server, "/v1/chat/completions", response_format={"type": "xml"}).json()["error"]["message"]
    assert "'json_schema'" in alone
    assert alone.endswith('found: "xml"')
    assert _post(server, "/v1/chat/completions", temperature=9).json()["error"]["message"].endswith("found: 9")


def test_a_prompt_that_is_too_long_is_told_both_numbers(server: Server, tmp_path: Path, model: Path) -> None:
    """Its own, exactly, and the most that is allowed; where the policy rounds counts, that one alone."""
    with server.http() as http:
        most = http.get("/v1/models/tiny").json()["max_prompt_tokens"]
    text = "weather? " * (most // 9 + 20)  # a token for each byte, and a space has three
    for path, body in (("/v1/chat/completions", {"messages": [{"role": "user", "content": text}]}),
                       ("/v1/completions", {"prompt": text}),
                       ("/v1/messages", {"messages": [{"role": "user", "content": text}]})):
        message = _post(server, path, **body).json()["error"]["message"]
        own = int(message.removeprefix("prompt is too long: ").split()[0])
        assert f"prompt is too long: {own} tokens > {most} maximum" == message
        shorter = _post(server, path, **json.loads(json.dumps(body).replace(text, text[900:]))).json()
        usage = shorter["usage"]
        fewer = usage.get("prompt_tokens", usage.get("input_tokens"))
        assert own > most > fewer
        assert own - fewer == 1100
    rounded = _server(tmp_path, model, schema=2, privacy="token_count_rounding = 16")
    try:
        for path, body in (("/v1/completions", {"prompt": text}), ("/v1/messages", {
                "messages": [{"role": "user", "content": text}]})):
            message = _post(rounded, path, **body).json()["error"]["message"]
            assert f"prompt is too long: at most {most} tokens are allowed" == message
    finally:
        rounded.stop()


def test_head_of_the_root(server: Server) -> None:
    """Clients look there whether anybody answers, before they show a key."""
    with httpx.Client(base_url=server.url) as http:
        assert [200, 200] == [http.head("/").status_code, http.get("/").status_code]
        assert "/openapi.json" == http.get("/").json()["description"]


def test_what_messages_lacks_is_refused_in_its_shape(server: Server) -> None:
    """Also at a path that there is not."""
    with server.http() as http:
        for path in ("/v1/messages/batches", "/v1/messages/batches/x/results"):
            answer = http.post(path, json={"requests": []}, headers={"x-api-key": KEY})
            assert (404, "error", "not_found_error") == (
                answer.status_code, answer.json()["type"], answer.json()["error"]["type"])
        assert "error" in http.get("/v1/files").json()
        assert "type" not in http.get("/v1/files").json()


def test_numbers_and_switches_of_other_servers(server: Server) -> None:
    """A seed of 64 bits without sign is the same as with it; thoughts that nobody has may be turned off."""
    def said(**more: Any) -> Any:
        answer = _post(server, "/v1/chat/completions", temperature=1, **more)
        assert (200, []) == (answer.status_code, _ignored(answer)), answer.text
        return answer.json()["choices"][0]["message"]

    assert said(seed=2**64 - 3) == said(seed=-3)
    assert said(seed=1, enable_thinking=False) == said(seed=1, think=False) == said(seed=1, reasoning_effort="none")
