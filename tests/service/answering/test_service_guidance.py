"""Classifier-free guidance through the API: what the negative prompt is, and what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.server import KEY, Server, write_policy

MODEL = 'sampling {\n bound "guidance_scale" { max = 4 }\n max_logprobs = 1\n }'
BODY: dict[str, Any] = {"model": "tiny", "prompt": "aa bb aa bb aa", "max_tokens": 12, "seed": 5, "temperature": 1.2}
CHAT: list[Any] = [{"role": "system", "content": "bb"}, {"role": "user", "content": "aa"}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """One that redacts, and counts tokens."""
    policy = write_policy(
        tmp_path_factory.mktemp("guidance"), {"tiny": tiny_model}, schema=2, model=MODEL,
        limits="tokens_per_minute = 60000", privacy='redaction {\n pattern "c" {\n regex = "c{2,3}"\n '
                                                    'replacement = "c"\n }\n apply_to = ["prompt"]\n }')
    server = Server(policy, [tiny_model]).wait_ready()
    yield server
    server.stop()


def _completion(server: Server, **more: Any) -> Any:
    return server.client().completions.create(**BODY, extra_body=more)


def _text(server: Server, **more: Any) -> str:
    return str(_completion(server, **more).choices[0].text)


def _chat(server: Server, messages: list[Any], **more: Any) -> str:
    done = server.client().chat.completions.create(model="tiny", messages=messages, seed=3, max_tokens=12,
                                                   temperature=1.2, extra_body=more)
    return done.choices[0].message.content or ""


def test_completions(server: Server) -> None:
    """A text changes the answer, and so does none; at 1 nothing does. Other servers' names pass."""
    plain, guided = _text(server), _text(server, guidance_scale=3, negative_prompt="bb")
    assert len({plain, guided, _text(server, guidance_scale=3)}) == 3
    assert plain == _text(server, guidance_scale=1, negative_prompt="bb") == _text(server, negative_prompt="bb")
    assert guided == _text(server, cfg_scale=3, cfg_negative_prompt="bb")
    assert _text(server, guidance_scale=3) == _text(server, guidance_scale=3, negative_prompt="")
    assert plain == _text(server, guidance_scale=3, negative_prompt=BODY["prompt"])  # the same on both sides


def test_a_chat_without_its_system(server: Server) -> None:
    """The negative prompt is the chat in which the system says something else, or nothing."""
    guided = _chat(server, CHAT, guidance_scale=3)
    assert guided != _chat(server, CHAT)
    assert guided != _chat(server, CHAT, guidance_scale=3, negative_prompt="aa aa")
    assert _chat(server, CHAT) == _chat(server, CHAT, guidance_scale=3, negative_prompt="bb")
    with pytest.raises(openai.BadRequestError, match="the system alone says something") as caught:
        _chat(server, CHAT[:1], guidance_scale=3)
    assert "negative_prompt" == caught.value.param
    assert _chat(server, CHAT[:1], guidance_scale=3, negative_prompt="aa")
    assert _chat(server, CHAT[1:]) == _chat(server, CHAT[1:], guidance_scale=3)


def test_it_is_redacted(server: Server) -> None:
    """As the prompt is: token ids are refused, where the prompt could not be any either."""
    assert _text(server, guidance_scale=3, negative_prompt="b ccc b") == _text(
        server, guidance_scale=3, negative_prompt="b c b")
    with pytest.raises(openai.BadRequestError) as caught:
        _text(server, guidance_scale=3, negative_prompt=[1, 5])
    assert ("unsupported_parameter", "negative_prompt") == (caught.value.code, caught.value.param)


def test_usage_and_limits_count_both(server: Server) -> None:
    """Both prompts in `usage`; the limit of tokens is charged for the answer twice."""
    alone, both = _completion(server).usage, _completion(server, guidance_scale=3, negative_prompt="aa bb").usage
    other = server.client().completions.create(**{**BODY, "prompt": "aa bb"}).usage
    assert both.prompt_tokens == alone.prompt_tokens + other.prompt_tokens
    assert both.completion_tokens == 12

    def left(**more: Any) -> int:
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=server.url, headers=headers) as client:
            return int(client.post("/v1/completions", json={**BODY, **more}).headers["x-ratelimit-remaining-tokens"])
    before, plain, guided = left(), left(), left(guidance_scale=3, negative_prompt="aa bb")
    assert before - plain == alone.prompt_tokens + 12
    assert plain - guided == both.prompt_tokens + 24


def test_bounds(server: Server) -> None:
    """The policy's, by name; and of the negative prompt its length."""
    for more, param, code in (({"guidance_scale": 5}, "guidance_scale", "invalid_value"),
                              ({"negative_prompt": 4}, "negative_prompt", "invalid_value"),
                              ({"guidance_scale": 2, "negative_prompt": "aa " * 9000}, None,
                               "context_length_exceeded")):
        with pytest.raises(openai.BadRequestError) as caught:
            _text(server, **more)
        assert code == caught.value.code
        assert param is None or (caught.value.param or "").startswith(param)


def test_one_place_is_too_few(tmp_path: Path, tiny_model: Path) -> None:
    """Where the policy has one request at a time, guidance is refused by name; neutral values are not."""
    with_one = write_policy(tmp_path, {"tiny": tiny_model}, schema=2, limits="concurrent_requests = 1")
    server = Server(with_one, [tiny_model]).wait_ready()
    try:
        with pytest.raises(openai.BadRequestError) as caught:
            _text(server, guidance_scale=2)
        assert ("unsupported_parameter", "guidance_scale") == (caught.value.code, caught.value.param)
        assert _text(server) == _text(server, guidance_scale=1, negative_prompt="a")
    finally:
        server.stop()
