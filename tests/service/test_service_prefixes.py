"""The prefix cache of a served model: who finds what, what `usage` tells, and what is left in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.boot.planning import budget
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from tests.support.server import OTHER_KEY, Server, write_policy

TEXT = "the quick brown fox jumps over the lazy dog. " * 5
ROUNDING = 50


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server that keeps prefixes, and rounds what it counts."""
    policy = write_policy(tmp_path_factory.mktemp("prefixes"), {"tiny": tiny_model}, schema=2,
                          limits="prompt_tokens = 1500", privacy=f"token_count_rounding = {ROUNDING}",
                          model='prefix_cache {\n    size = "8MiB"\n    lifetime = "1h"\n  }')
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _chat(server: Server, text: str, **more: Any) -> Any:
    return server.client(**more).chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": text}], max_tokens=5, seed=1, temperature=0.5)


def test_a_tenant_finds_its_own_texts_only(server: Server) -> None:
    """The second request of a tenant finds the first one's pages, another tenant's does not; the answers are the same,
    and counts are multiples of what the policy rounds to."""
    first, second, other = _chat(server, TEXT), _chat(server, TEXT + "and so on"), _chat(
        server, TEXT + "and so on", key=OTHER_KEY)
    cached = [each.usage.prompt_tokens_details.cached_tokens for each in (first, second, other)]
    assert (0, 0) == (cached[0], cached[2])
    assert 0 < cached[1] <= second.usage.prompt_tokens
    assert 0 == cached[1] % ROUNDING
    assert second.choices[0].message == other.choices[0].message
    assert second.usage.prompt_tokens == other.usage.prompt_tokens
    assert second.usage.total_tokens == second.usage.prompt_tokens + second.usage.completion_tokens


def test_the_other_interfaces_tell_it(server: Server) -> None:
    """Responses and messages say the same count by their own names."""
    body = {"model": "tiny", "temperature": 0.5}
    with server.http() as http:
        http.post("/v1/responses", json={**body, "input": TEXT, "max_output_tokens": 5}).raise_for_status()
        told = http.post("/v1/responses", json={**body, "input": TEXT, "max_output_tokens": 5}).json()["usage"]
        message = http.post("/v1/messages", json={**body, "max_tokens": 5, "messages": [
            {"role": "user", "content": TEXT}]}).json()["usage"]
    cached = told["input_tokens_details"]["cached_tokens"]
    assert 0 < cached <= told["input_tokens"]
    assert (cached, told["input_tokens"] - cached) == (message["cache_read_input_tokens"], message["input_tokens"])


def test_without_it_nothing_is_told(tmp_path: Path, tiny_model: Path) -> None:
    """No count of a cache where the policy has none; and the sum of the boot has a line where it has one."""
    policies = [load(write_policy(tmp_path, {"tiny": tiny_model}, schema=2, model=more)).policy
                for more in ("", 'prefix_cache { size = "64MiB" }')]
    sums = [budget.divide(policy, Catalogue({"tiny": tiny_model}), None, threads=1) for policy in policies]
    assert 64 << 20 == sums[1].nbytes - sums[0].nbytes
    assert ["tiny: keys and values of earlier texts"] == [
        line.what for line in sums[1].lines if line.what not in {each.what for each in sums[0].lines}]
