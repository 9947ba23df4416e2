"""`/v1/usage` and the metrics of cache and queue, over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from appliance.service.counting.usage import RequestCounts
from appliance.service.parts.wiring import Books
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, sha256, write_policy

ROUNDING = 50
TEXT = "the quick brown fox jumps over the lazy dog. " * 4


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server that keeps prefixes, and rounds what it counts."""
    policy = write_policy(tmp_path_factory.mktemp("usage"), {"tiny": tiny_model}, schema=2,
                          limits="concurrent_requests = 2\n  prompt_tokens = 500\n  generation_tokens = 12",
                          privacy=f"token_count_rounding = {ROUNDING}",
                          model='context_length = 512\n  prefix_cache {\n    size = "8MiB"\n  }')
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _rows(server: Server, key: str, query: str = "") -> list[dict[str, Any]]:
    with server.http(key) as http:
        found = http.get(f"/v1/usage{query}")
    assert 200 == found.status_code
    assert "list" == found.json()["object"]
    rows: list[dict[str, Any]] = found.json()["data"]
    return rows


def _metrics(server: Server) -> dict[str, float]:
    with server.http(AUDITOR_KEY) as http:
        lines = http.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def test_a_key_sees_what_it_used(server: Server) -> None:
    """The sums of a key are those of its answers' `usage`; refusals count, and content stands nowhere."""
    client = server.client()
    told = [client.completions.create(model="tiny", prompt=TEXT, max_tokens=5, seed=seed).usage for seed in (1, 2)]
    with server.http() as http:
        assert 400 == http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "n": 99}).status_code
        assert 404 == http.post("/v1/completions", json={"model": "nope", "prompt": "a"}).status_code

    def counted() -> bool:
        return 4 == sum(row["requests"] for row in _rows(server, KEY))
    waiting.until(counted, "four requests that are counted")
    nameless, tiny = _rows(server, KEY, "?days=1")
    day = datetime.now(UTC).date().isoformat()
    assert {"object": "usage", "day": day, "tenant": "user", "api_key_sha256": sha256(KEY), "model": None,
            "requests": 1, "refused": 1, "prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0} == nameless
    cached = [each.prompt_tokens_details.cached_tokens for each in told]
    assert (3, 1) == (tiny["requests"], tiny["refused"])
    assert sum(each.prompt_tokens for each in told) == tiny["prompt_tokens"]
    assert sum(each.completion_tokens for each in told) == tiny["completion_tokens"]
    assert (0, sum(cached)) == (cached[0], tiny["cached_tokens"])
    assert 0 < cached[1]
    assert {0} == {tiny[name] % ROUNDING for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}


def test_who_sees_whose(server: Server) -> None:
    """A user sees its own key; who may read metrics sees all, without what others found in the cache."""
    for key in (KEY, OTHER_KEY):
        server.client(key).completions.create(model="tiny", prompt="abc", max_tokens=1)
    waiting.until(lambda: _rows(server, OTHER_KEY) and _rows(server, KEY), "rows of both keys")
    assert {"user"} == {row["tenant"] for row in _rows(server, KEY)}
    for key, own in ((OTHER_KEY, "other"), (AUDITOR_KEY, "auditor")):
        rows = _rows(server, key)
        assert {"user", "other"} == {row["tenant"] for row in rows}
        assert all((row["cached_tokens"] is None) == (row["tenant"] != own) for row in rows)


def test_held_numbers_show_no_request(tmp_path: Path, tiny_model: Path) -> None:
    """Within an interval a reader sees the same bytes of metrics, and no row of another's key; its own rows go on."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=2, privacy='metrics_interval = "1h"')
    server = Server(policy, [tiny_model]).wait_ready()
    try:
        with server.http(AUDITOR_KEY) as http:
            before = http.get("/metrics").content
            server.client().completions.create(model="tiny", prompt="abc", max_tokens=1)
            waiting.until(lambda: _rows(server, KEY), "a row of the key itself")
            assert before == http.get("/metrics").content
        assert {"user"}.isdisjoint(row["tenant"] for row in _rows(server, AUDITOR_KEY))
    finally:
        server.stop()


def test_an_interval_ends() -> None:
    """What was counted shows at the next multiple, metrics and usage at once."""
    async def told() -> None:
        books = Books()
        task = asyncio.create_task(books.hold(200))
        await asyncio.sleep(0)
        books.metrics.ready.set(7)
        books.ledger.add(b"key", "user", None, RequestCounts(1))
        held = books.metrics.text(), books.ledger.rows(key=b"", everybody=True).data
        assert b"appliance_ready 7" not in held[0]
        assert [] == held[1]
        while held[0] == books.metrics.text():
            await asyncio.sleep(0.01)
        assert b"appliance_ready 7" in books.metrics.text()
        assert ["user"] == [row.tenant for row in books.ledger.rows(key=b"", everybody=True).data]
        task.cancel()
    asyncio.run(asyncio.wait_for(told(), 30))


def test_refusals(server: Server) -> None:
    """Without a key nothing is told, and bad days are refused by name."""
    with server.http(None) as http:
        assert 401 == http.get("/v1/usage").status_code
    with server.http() as http:
        for query in ("days=0", "days=x", "days=1&days=2", "days=99999999999"):
            found = http.get(f"/v1/usage?{query}")
            assert (400, "days") == (found.status_code, found.json()["error"]["param"])
        assert 405 == http.post("/v1/usage").status_code


def test_metrics_of_pages_and_queue(server: Server) -> None:
    """Pages are those of the policy's places; those of requests under way are claimed by rounded lengths and given
    back; the time in the queue is counted; hits of the first minutes are not told."""
    found = _metrics(server)
    slots = found['appliance_cache_slots{model="tiny"}']
    assert 512 // 64 * slots == found['appliance_cache_pages{model="tiny"}']
    assert 0 < found['appliance_prefix_pages{model="tiny"}']
    assert 0 == found['appliance_prefix_hits{model="tiny"}']
    with server.client().completions.create(model="tiny", prompt="a" * 60, max_tokens=12, stream=True, n=1,
                                            seed=3) as stream:
        next(iter(stream))
        during = _metrics(server)
        assert during['appliance_cache_pages_claimed{model="tiny"}'] in {0, 2}  # 50 and 12 positions, or 100 and 12
        list(stream)
    waiting.until(lambda: 0 == _metrics(server)['appliance_cache_pages_claimed{model="tiny"}'], "pages given back")
    after = _metrics(server)
    assert found['appliance_queue_seconds_count{model="tiny"}'] < after['appliance_queue_seconds_count{model="tiny"}']
    assert {0.0} == {value for name, value in after.items() if name.startswith("appliance_tenant_requests_waiting{")}
