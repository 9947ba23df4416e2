"""Tokens of texts and texts of tokens, by the names of vLLM, where the policy allows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.service.test_service_responses import model
from tests.service.test_service_tools import TEMPLATE, TOOLS
from tests.support.server import Server, write_policy

__all__ = ["model"]
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "weather?"}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Server]:
    """A server whose policy lets tokens be told."""
    policy = write_policy(tmp_path_factory.mktemp("tokens"), {"tiny": model}, schema=2, limits="prompt_tokens = 2000",
                          model=f"tokenization = true\nchat_template = {json.dumps(TEMPLATE)}")
    running = Server(policy, [model]).wait_ready()
    yield running
    running.stop()


def _asked(server: Server, path: str, **body: Any) -> dict[str, Any]:
    with server.http() as http:
        answer: dict[str, Any] = http.post(path, json={"model": "tiny", **body}).raise_for_status().json()
    return answer


def test_a_prompt_has_the_tokens_that_are_counted(server: Server) -> None:
    """A prompt's and a chat's tokens are as many as their usage says, and give the same answer as the text."""
    client = server.client()
    told = _asked(server, "/tokenize", prompt="a blue bird", return_token_strs=True)
    usual = client.completions.create(model="tiny", prompt="a blue bird", max_tokens=5, seed=1)
    same = client.completions.create(model="tiny", prompt=told["tokens"], max_tokens=5, seed=1)
    assert usual.usage is not None
    assert (told["count"], usual.choices[0].text) == (usual.usage.prompt_tokens, same.choices[0].text)
    assert len(told["tokens"]) == len(told["token_strs"]) == told["count"] <= told["max_model_len"]
    for more in ({}, {"tools": TOOLS}, {"chat_template_kwargs": {"enable_thinking": True}}):
        chat = client.chat.completions.create(model="tiny", max_tokens=1, **CHAT, extra_body=more)
        assert chat.usage is not None
        assert chat.usage.prompt_tokens == _asked(server, "/tokenize", **CHAT, **more)["count"]


def test_by_the_names_of_other_servers(server: Server) -> None:
    """llama.cpp's `content` and pieces; lm-eval's requests, which name no model and want no token around the text."""
    told = _asked(server, "/tokenize", prompt="a blue bird")["tokens"]
    with server.http() as http:
        def post(path: str, **body: Any) -> Any:
            return http.post(path, json=body).raise_for_status().json()

        assert told[1:] == post("/tokenize", prompt="a blue bird", add_special_tokens=False)["tokens"]
        assert told[1:] == post("/tokenize", content="a blue bird")["tokens"]
        assert told == post("/tokenize", content="a blue bird", add_special=True)["tokens"]
        pieces = post("/tokenize", content="\u2602", with_pieces=True)["tokens"]
        assert list("\u2602".encode()) == [byte for each in pieces[-3:] for byte in each["piece"]]
        assert {"prompt", "content"} == post("/detokenize", tokens=told[1:]).keys()
        info = http.get("/tokenizer_info").raise_for_status().json()
        assert info == http.get("/tokenizer_info", params={"model": "tiny"}).json()
        assert (TEMPLATE, True) == (info["chat_template"], info["add_bos_token"])
        assert {"bos_token", "eos_token", "model_max_length", "tokenizer_class"} <= info.keys()
        assert told[:1] == post("/tokenize", prompt="", add_special_tokens=True)["tokens"]
        for name in ("bos_token", "eos_token"):  # lm-eval looks up their ids so, and sends them at a text's beginning
            [token] = post("/tokenize", prompt=info[name], add_special_tokens=False)["tokens"]
            assert info[name] == post("/detokenize", tokens=[token])["prompt"]
            assert [token] == post("/tokenize", content=info[name])["tokens"]
            assert 1 < len(post("/tokenize", prompt=f"{info[name]}.", add_special_tokens=False)["tokens"])
        answer = http.post("/tokenize", json={"prompt": "x", "temperature": 1})
        assert (200, "temperature") == (answer.status_code, answer.headers["appliance-ignored"])


def test_tokens_become_their_text_again(server: Server) -> None:
    """Whatever characters it has. This model's vocabulary has no piece for a space, which stays as it is marked."""
    for text in ("a blue bird", "été ☂", "<s>"):
        tokens = _asked(server, "/tokenize", prompt=text)["tokens"]
        assert text == _asked(server, "/detokenize", tokens=tokens[1:])["prompt"].replace("▁", " ").strip()


@pytest.mark.parametrize(("path", "body", "param", "code"), [
    ("/tokenize", {}, "prompt", "missing_required_parameter"),
    ("/tokenize", {"prompt": "x", **CHAT}, "prompt", "invalid_value"),
    ("/tokenize", {"messages": [{"role": "user", "content": 1}]}, "messages.0.content", "invalid_value"),
    ("/tokenize", {**CHAT, "chat_template": "x"}, "chat_template", "unsupported_parameter"),
    ("/detokenize", {"tokens": [1 << 30]}, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": []}, "tokens", "invalid_value"),
    ("/detokenize", {"tokens": [1] * 2001}, None, "context_length_exceeded"),
    ("/tokenize", {"prompt": "x " * 3000}, None, "context_length_exceeded")])
def test_refusals(server: Server, path: str, body: dict[str, Any], param: str | None, code: str) -> None:
    """By the parameter's name, as everywhere."""
    with server.http() as http:
        answer = http.post(path, json={"model": "tiny", **body})
    error = answer.json()["error"]
    assert (400, param, code) == (answer.status_code, error["param"], error["code"])
    assert path == server.audited(answer.headers["x-request-id"])["endpoint"]


def test_a_policy_that_says_nothing_forbids_it(service: Server) -> None:
    """Under schema 1 always."""
    with service.http() as http:
        answers = [http.post("/tokenize", json={"model": "tiny", "prompt": "x"}), http.get("/tokenizer_info")]
    for answer in answers:
        assert (403, "permission_denied") == (answer.status_code, answer.json()["error"]["code"])
        assert "tokenization = false" in answer.text
