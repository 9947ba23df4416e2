"""When an answer may end: `ignore_eos`, `min_tokens` and `stop_token_ids` of vLLM; and counts in each event."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.service.test_service_responses import model
from tests.support.server import Server, write_policy

__all__ = ["model"]
END = 2  # the token that ends this model's answers
LETTERS = {"logit_bias": {str(3 + ord(letter)): 100 for letter in "abcdefgh"}}  # a token for each byte
USER = [{"role": "user", "content": "weather?"}]
SHAPES: dict[str, tuple[dict[str, Any], str]] = {
    "/v1/chat/completions": ({"messages": USER}, "max_tokens"),
    "/v1/completions": ({"prompt": "weather?"}, "max_tokens"),
    "/v1/responses": ({"input": "weather?"}, "max_output_tokens"), "/v1/messages": ({"messages": USER}, "max_tokens")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose counts are exact."""
    running = Server(write_policy(tmp_path_factory.mktemp("ending"), {"tiny": model}, schema=2), [model]).wait_ready()
    yield running
    running.stop()


def _post(server: Server, path: str, tokens: int, **more: Any) -> httpx.Response:
    body, bound = SHAPES[path]
    with server.http() as http:
        return http.post(path, json={"model": "tiny", "seed": 3, "temperature": 1, bound: tokens, **body, **more})


def _count(answer: httpx.Response) -> int:
    assert 200 == answer.status_code, answer.text
    usage = answer.json()["usage"]
    found: int = usage["completion_tokens"] if "completion_tokens" in usage else usage["output_tokens"]
    return found


@pytest.mark.parametrize("path", SHAPES)
def test_an_answer_ends_when_it_may(server: Server, path: str) -> None:
    """With an end that is all but certain: at once; never; after so many tokens."""
    certain = {"logit_bias": {str(END): 100}}
    assert 0 == _count(_post(server, path, 9, **certain))
    assert 9 == _count(_post(server, path, 9, **certain, ignore_eos=True))
    assert 5 == _count(_post(server, path, 9, **certain, min_tokens=5))
    assert 9 == _count(_post(server, path, 9, **certain, min_tokens=9))
    assert 0 == _count(_post(server, path, 9, **certain, ignore_eos=False, min_tokens=0, stop_token_ids=[]))


def test_the_same_tokens_until_then(server: Server) -> None:
    """A text that would not have ended is the same; a token that ends it is no part of it, nor comes before it may."""
    def ask(**more: Any) -> dict[str, Any]:
        answer = _post(server, "/v1/completions", 9, **LETTERS, **more)
        assert 200 == answer.status_code, answer.text
        found: dict[str, Any] = answer.json()["choices"][0]
        return found

    whole = ask()
    assert whole == ask(ignore_eos=True) == ask(min_tokens=4) == ask(stop_token_ids=[END])
    third = 3 + whole["text"].encode()[2]
    stopped = ask(stop_token_ids=[third])
    place = whole["text"].encode().index(third - 3)
    assert ("stop", whole["text"][:place]) == (stopped["finish_reason"], stopped["text"])
    later = ask(stop_token_ids=[third], min_tokens=7)
    assert third - 3 not in later["text"].encode()[:7]
    assert len(later["text"]) >= 7
    assert ask(stop=[whole["text"][1]])["text"] == whole["text"][:whole["text"].index(whole["text"][1])]
    assert len(ask(stop=list(whole["text"]), min_tokens=6)["text"]) >= 6


SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"enum": [1, 2]}}}
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"min_tokens": 10}, "min_tokens"), ({"stop_token_ids": [1 << 20]}, "stop_token_ids"),
    ({"stop_token_ids": ["x"]}, "stop_token_ids.0"), ({"min_tokens": -1}, "min_tokens"),
    ({"ignore_eos": True, "response_format": SCHEMA}, "ignore_eos"),
    ({"min_tokens": 2, "response_format": SCHEMA}, "min_tokens"),
    ({"stop_token_ids": [70], "response_format": SCHEMA}, "stop_token_ids")]


@pytest.mark.parametrize(("body", "param"), REFUSED, ids=range(len(REFUSED)))
def test_what_cannot_be(server: Server, body: dict[str, Any], param: str) -> None:
    """More tokens than there may be, ids that are none, and a structure, which says itself where it ends."""
    answer = _post(server, "/v1/chat/completions", 9, **body)
    assert (400, param) == (answer.status_code, answer.json()["error"]["param"])
    neutral = _post(server, "/v1/chat/completions", 60, response_format=SCHEMA, stop_token_ids=[END])
    assert 200 == neutral.status_code


CONTINUOUS = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_counts_in_each_event(server: Server, path: str) -> None:
    """They are those of the tokens so far, of which each is a letter here, as a load generator wants them."""
    answer = _post(server, path, 8, **LETTERS, **CONTINUOUS)
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    said = ""
    for event in events[:-1]:
        said += event["choices"][0].get("text") or event["choices"][0].get("delta", {}).get("content") or ""
        assert len(said) == event["usage"]["completion_tokens"]
    assert "appliance-ignored" not in answer.headers
    assert (8, 8) == (len(said), events[-1]["usage"]["completion_tokens"])
    assert 1 == len({event["usage"]["prompt_tokens"] for event in events})
    assert [] == events[-1]["choices"]
    alone = _post(server, path, 8, ignore_eos=True, stream=True, stream_options={"continuous_usage_stats": True})
    assert all(json.loads(line[6:])["usage"] for line in alone.text.splitlines() if line.startswith("data: {"))


def test_counts_that_the_policy_rounds_are_not_told_there(strict_service: Server) -> None:
    """The wish is named instead."""
    with strict_service.http() as http:
        answer = http.post("/v1/completions", json={"model": "tiny", "prompt": "x", "max_tokens": 4, **CONTINUOUS})
    assert "stream_options.continuous_usage_stats" == answer.headers["appliance-ignored"]
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [None] * (len(events) - 1) == [event["usage"] for event in events[:-1]]
