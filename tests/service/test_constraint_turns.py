"""Constraints of several tenants: whose turn it is to compile, who has left, and what the metrics tell of it."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support import waiting
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

METRIC = "appliance_constraints_waiting"
SECONDS = 10.0  # that any of these waits at most, on a busy machine; one compilation takes a tenth


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A server for many requests at a time."""
    policy = write_policy(tmp_path_factory.mktemp("turns"), {"tiny": tiny_model}, schema=2,
                          limits="concurrent_requests = 40\nqueued_requests = 100\nrequest_size = \"1 MiB\"")
    running = Server(policy, [tiny_model]).wait_ready()
    yield running
    running.stop()


def _ask(server: Server, key: str = KEY, seconds: float = 120.0, **structure: Any) -> httpx.Response:
    with httpx.Client(base_url=server.url, headers={"authorization": f"Bearer {key}"}, timeout=seconds) as http:
        return http.post("/v1/completions", json={"model": "tiny", "prompt": "ab", "max_tokens": 2, **structure})


def _costly(number: int) -> dict[str, Any]:
    """A structure that takes long to compile, and is another one for each number."""
    return {"json_schema": {"type": "object", "properties": {f"p{number}-{each}": {
        "exclusiveMinimum": each - 900719.25, "maximum": 900719.25 - each} for each in range(400)}}}


def _waiting(server: Server) -> dict[str, float]:
    with server.http(AUDITOR_KEY) as http:
        families = text_string_to_metric_families(http.get("/metrics").text)
    return {sample.labels["tenant"]: sample.value for family in families for sample in family.samples
            if sample.name == METRIC}


BOMBS: dict[str, dict[str, Any]] = {
    "a literal of 100 KB": {"grammar": 'root ::= "' + "a word of it " * 8000 + '"'},
    "a letter 100,000 times": {"grammar": 'root ::= "' + "a" * 100_000 + '"'},
    "5,000 words": {"grammar": "root ::= " + " | ".join(f'"word{each}"' for each in range(5000))},
    "words beside letters": {
        "grammar": "root ::= ([a-z] | " + " | ".join(f'"word{each}"' for each in range(5000)) + ")+"},
    "a class within classes": {"structured_outputs": {"grammar": "start: /" + "[" * 12_000 + "/"}},
    "a repeat of blanks": {"grammar": 'root ::= "a"{1,' + " " * 12_000},
    "a line of letters": {"structured_outputs": {"grammar": 'start: "a"\n' + "a" * 12_000}},
    "a line of many letters": {"structured_outputs": {"grammar": 'start: "a"\n' + "a" * 260_000}},
    "rules that lead deep": {"structured_outputs": {"grammar": 'start: a0\nX: "x"\n' + "\n".join(
        f"a{each}: a{each + 1}X" for each in range(3000)) + '\na3000: "x"'}},
    "a rule that counts": {"structured_outputs": {"grammar": 'start: a::0\na::_: a::incr(_) | "x"'}},
    "a text a million times": {"structured_outputs": {"grammar": 'start: ("' + "word " * 800 + '" ~ 1000) ~ 1000'}},
    "a constant of 4 KB, often": {"json_schema": {"type": "array", "minItems": 4096, "maxItems": 4096,
                                                  "items": {"const": "word " * 800}}},
}


@pytest.mark.parametrize("name", BOMBS)
def test_others_are_served_beside_each_bomb(name: str, server: Server) -> None:
    """`/health` answers, and another tenant's constraint is compiled, while one tenant's costs what it can."""
    with ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(_ask, server, **BOMBS[name]) for _ in range(4)]
        slowest, start = 0.0, time.monotonic()
        assert 200 == _ask(server, OTHER_KEY, guided_choice=["ab", "cd"]).status_code
        with server.http() as http:
            while not all(each.done() for each in sent):
                begun = time.monotonic()
                assert "ready" == http.get("/health").json()["status"]
                slowest = max(slowest, time.monotonic() - begun)
        assert time.monotonic() - start < SECONDS
    assert slowest < 1.0
    assert {each.result().status_code for each in sent} <= {200, 400, 500}
    for refused in (each.result().json() for each in sent if each.result().status_code == 400):
        assert "word" not in refused["error"]["message"]


def test_a_tenant_waits_for_one_compilation_of_another_at_most(server: Server) -> None:
    """However many another one has sent before; the metrics count those who wait."""
    with ThreadPoolExecutor(16) as pool:
        sent = [pool.submit(_ask, server, **_costly(number)) for number in range(16)]
        waiting.until(lambda: _waiting(server)["user"] > 10, "many that wait", lambda: _waiting(server))
        before = sum(each.done() for each in sent)
        assert 200 == _ask(server, OTHER_KEY, guided_choice=["ab", "cd"]).status_code
        assert sum(each.done() for each in sent) - before < 6
        assert {200} == {each.result().status_code for each in sent}
    assert {"user": 0.0, "other": 0.0} == _waiting(server)


def test_who_left_waits_no_longer(server: Server) -> None:
    """Requests whose clients are gone leave their queue at once, without being compiled."""
    def leave(number: int) -> None:
        with contextlib.suppress(httpx.TimeoutException):  # the first of them is answered before
            _ask(server, seconds=3.0, **_costly(100 + number))

    leaving = [threading.Thread(target=leave, args=(number,)) for number in range(24)]
    for each in leaving:
        each.start()
    waiting.until(lambda: _waiting(server)["user"] > 12, "many that wait", lambda: _waiting(server))
    for each in leaving:
        each.join()
    waiting.until(lambda: not _waiting(server)["user"], "nobody who waits", lambda: _waiting(server))

    def left() -> int:
        return [each["code"] for each in server.audit("request.refused")].count("client_closed_request")

    # How many are compiled before their clients leave depends on the machine.
    waiting.until(lambda: left() > 4, "records of those who left, and were not compiled", left)
