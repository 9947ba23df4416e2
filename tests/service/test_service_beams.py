"""Beam search over HTTP: by the names and the meaning of vLLM, within the policy's bounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

PROMPT = "the quick brown fox"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server with five places; searches of up to four texts."""
    policy = write_policy(
        tmp_path_factory.mktemp("beams"), {"tiny": tiny_model}, schema=2, audit="receipts = true",
        limits="concurrent_requests = 5\n  generation_tokens = 40\n  choices = 8",
        model="context_length = 256\n  context_shift = true\n  sampling {\n    max_beams = 4\n    max_logprobs = 5\n"
              "    bound \"length_penalty\" {\n      max = 2\n    }\n  }\n  prefix_cache {\n    size = \"4MiB\"\n  }")
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _post(server: Server, body: dict[str, Any], path: str = "/v1/completions", **headers: str) -> Any:
    with server.http() as http:
        return http.post(path, json={"model": "tiny", "use_beam_search": True, **body}, headers=headers)


def _texts(server: Server, **more: Any) -> list[str]:
    found = _post(server, {"prompt": PROMPT, "max_tokens": 12, **more})
    assert 200 == found.status_code, found.text
    choices = found.json()["choices"]
    assert list(range(len(choices))) == [each["index"] for each in choices]
    assert {"stop", "length"} >= {each["finish_reason"] for each in choices}
    return [each["text"] for each in choices]


def test_the_best_texts_whatever_else_is_asked(server: Server) -> None:
    """`n` texts, the best first: the same ones each time, from the cache too; a wider search begins with none worse.
    Temperature and seed have no effect; `usage` counts the tokens of all."""
    four = _texts(server, n=4)
    assert 4 == len(set(four))
    assert four == _texts(server, n=4, temperature=0) == _texts(server, n=4, temperature=1.5, seed=7)
    greedy = server.client().completions.create(model="tiny", prompt=PROMPT, max_tokens=1, temperature=0)
    assert [greedy.choices[0].text] == _texts(server, n=1, max_tokens=1)
    usage = _post(server, {"prompt": PROMPT, "n": 3, "max_tokens": 5}).json()["usage"]
    assert 10 <= usage["completion_tokens"] <= 15


def test_chats_and_lists_of_prompts(server: Server) -> None:
    """A chat has the texts as messages; each prompt of a list has a search of its own."""
    chat = _post(server, {"messages": [{"role": "user", "content": "abc"}], "n": 2, "max_tokens": 6},
                 "/v1/chat/completions")
    assert 200 == chat.status_code, chat.text
    assert 2 == len({each["message"]["content"] for each in chat.json()["choices"]})
    both = _texts(server, prompt=[PROMPT, "x y z"], n=2)
    assert both == [*_texts(server, n=2), *_texts(server, prompt="x y z", n=2)]


def test_length_penalty(server: Server) -> None:
    """It is taken within the policy's bounds, alone with a search, and as vLLM's default beside none."""
    assert 2 == len(_texts(server, n=2, length_penalty=0))
    for body, code in (({"length_penalty": 2.5}, "invalid_value"), ({"length_penalty": -3}, "invalid_value"),
                       ({"use_beam_search": False, "length_penalty": 2}, "unsupported_parameter")):
        found = _post(server, {"prompt": "a", "n": 2, **body})
        assert (400, code, "length_penalty") == (found.status_code, found.json()["error"]["code"],
                                                 found.json()["error"]["param"])
    assert 200 == _post(server, {"prompt": "a", "max_tokens": 1, "use_beam_search": False,
                                 "length_penalty": 1.0}).status_code


@pytest.mark.parametrize(("more", "param"), [
    ({"n": 5}, "use_beam_search"), ({"stream": True}, "stream"), ({"stop": "a"}, "stop"), ({"logprobs": 1}, "logprobs"),
    ({"top_k": 5}, "top_k"), ({"repetition_penalty": 1.1}, "repeat_penalty"), ({"logit_bias": {"5": 1}}, "logit_bias"),
    ({"best_of": 3}, "best_of"), ({"echo": True}, "echo"), ({"guided_regex": "a+"}, "response_format"),
    ({"samplers": ["top_k"]}, "samplers"), ({"token_healing": 1}, "token_healing")])
def test_what_goes_with_no_search(server: Server, more: dict[str, Any], param: str) -> None:
    """Each is refused by its name."""
    found = _post(server, {"prompt": "a", "n": 2, "max_tokens": 2, **more})
    assert (400, param) == (found.status_code, found.json()["error"]["param"]), found.text


def test_no_receipt_and_neutral_values(server: Server) -> None:
    """A search cannot be computed again by the receipt's rules, so it has none; values that change nothing pass."""
    found = _post(server, {"prompt": "a", "n": 1, "max_tokens": 2}, **{"appliance-receipt": "1"})
    assert (400, "use_beam_search") == (found.status_code, found.json()["error"]["param"])
    assert _texts(server, n=2) == _texts(server, n=2, top_p=1, top_k=0, presence_penalty=0, stop=[], logit_bias={})


def test_places_are_given_back(server: Server) -> None:
    """A search counts as its width: two of four at the same time wait for each other, and both are answered."""
    from concurrent.futures import ThreadPoolExecutor

    def ask(key: str) -> int:
        return len(server.client(key).completions.create(
            model="tiny", prompt=PROMPT, max_tokens=40, n=4, extra_body={"use_beam_search": True}).choices)

    with ThreadPoolExecutor(4) as pool:
        assert [4] * 4 == list(pool.map(ask, [KEY, OTHER_KEY, KEY, OTHER_KEY]))
    with server.http(AUDITOR_KEY) as http:
        assert "appliance_cache_slots_used{model=\"tiny\"} 0.0" in http.get("/metrics").text


def test_a_policy_may_allow_none(tmp_path: Path, tiny_model: Path) -> None:
    """By `max_beams` = 0, and under schema 1."""
    for schema, model in ((2, "sampling {\n max_beams = 0\n }"), (1, "")):
        server = Server(write_policy(tmp_path, {"tiny": tiny_model}, schema=schema, model=model),
                        [tiny_model]).wait_ready()
        found = _post(server, {"prompt": "a", "max_tokens": 1})
        assert 0 == server.stop()
        assert (400, "use_beam_search") == (found.status_code, found.json()["error"]["param"])
        assert "the policy allows none" in found.json()["error"]["message"]
