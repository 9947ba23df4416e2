"""A tenant's own limits: requests in progress, and the tokens of prompt and answer together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.server import OTHER_KEY, Server, write_policy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server whose first tenant has limits of its own."""
    policy = write_policy(tmp_path_factory.mktemp("limits"), {"tiny": tiny_model}, schema=2,
                          limits="generation_tokens = 40\nconcurrent_requests = 8\nchoices = 8")
    text = policy.read_text()
    at = text.index("{", text.index("tenant \"")) + 1
    policy.write_text(text[:at] + "\n    concurrent_requests = 2\n    context_length = 30" + text[at:])
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _complete(server: Server, key: str | None = None, **asked: Any) -> httpx.Response:
    with server.http(*(() if key is None else (key,))) as http:
        return http.post("/v1/completions", json={"model": "tiny", "seed": 1, "ignore_eos": False, **asked})


def test_an_answer_ends_at_the_tenants_own_bound(server: Server) -> None:
    """Prompt and answer have its tokens together; a prompt beyond is refused; another tenant has the policy's."""
    prompt = list(range(5, 25))
    own = _complete(server, prompt=prompt, max_tokens=40).json()
    assert own["usage"]["total_tokens"] <= 30
    assert _complete(server, OTHER_KEY, prompt=prompt, max_tokens=40).json()["usage"]["total_tokens"] > 30
    refused = _complete(server, prompt=list(range(5, 40)), max_tokens=4)
    assert (400, "context_length_exceeded") == (refused.status_code, refused.json()["error"]["code"])
    assert 200 == _complete(server, OTHER_KEY, prompt=list(range(5, 40)), max_tokens=4).status_code


def test_a_request_that_never_fits_is_refused(server: Server) -> None:
    """One that counts as more requests than the tenant may have in progress would wait for ever."""
    refused = _complete(server, prompt="abc", n=8, max_tokens=40)
    assert (400, "n") == (refused.status_code, refused.json()["error"]["param"])
    assert "at most 2 of the tenant's requests" in refused.json()["error"]["message"]
    assert 8 == len(_complete(server, OTHER_KEY, prompt="abc", n=8, max_tokens=40).json()["choices"])
    assert 2 == len(_complete(server, prompt="abc", n=2, max_tokens=20).json()["choices"])
