"""`appliance top`: its pictures against what was asked, and against metrics that a test wrote."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.main import main
from appliance.client.verdict import SIMULATED, Verdict
from appliance.monitoring import load
from appliance.monitoring.asking import Reading, _samples
from appliance.monitoring.load import Load
from appliance.monitoring.top import frame
from tests.support.server import AUDITOR_KEY, KEY, Server, write_policy

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Server]:
    """A simulated appliance that answered twice and refused once."""
    server = Server(write_policy(tmp_path_factory.mktemp("top"), {"tiny": tiny_model}), [tiny_model]).wait_ready()
    with server.http() as http:
        for more in ({}, {}, {"temperature": 99}):
            http.post("/v1/chat/completions", json={**CHAT, **more})
    yield server
    server.stop()


def _words(server: Server, folder: Path, key: str = AUDITOR_KEY) -> list[str]:
    (folder / "key").write_text(key)
    return [server.url, "--policy", str(server.policy), "--api-key-file", str(folder / "key")]


def test_a_picture_of_a_live_service(running: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its verdict, its requests by status and code, a line for the model and one for the tenant that asked."""
    words = ["top", *_words(running, tmp_path), "--once", "--accept", "simulated"]
    assert 0 == main(words)
    said = capsys.readouterr().out
    assert said.startswith(f"{running.url}  SIMULATED  ready  up ")
    assert re.search(r"^requests a minute [\d.]+ \(200: [\d.]+, 400: [\d.]+\)", said, re.MULTILINE)
    assert re.search(r"^refused invalid_value 1$", said, re.MULTILINE)
    assert re.search(r"^tiny +0  +0/\d+ +\d+% +[\d.]+ +[\d.]+ +≤ ", said, re.MULTILINE)
    assert re.search(r"^user +[\d.]+ +0 +-$", said, re.MULTILINE)


def test_what_is_not_verified_is_not_asked(running: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The key does not leave: the exit code is the verdict's. A key without the right is named."""
    assert 5 == main(["top", *_words(running, tmp_path), "--once", "--json"])
    assert "simulated" == json.loads(capsys.readouterr().out)["code"]
    assert 2 == main(["top", *_words(running, tmp_path, KEY), "--once", "--accept", "simulated"])
    assert "/metrics has status 403" in capsys.readouterr().err


BEFORE = """
# TYPE appliance_requests_total counter
appliance_requests_total{endpoint="/v1/models",status="200"} 10
# TYPE appliance_first_token_seconds histogram
appliance_first_token_seconds_bucket{le="0.1",model="m"} 5
appliance_first_token_seconds_bucket{le="1.0",model="m"} 5
appliance_first_token_seconds_bucket{le="+Inf",model="m"} 5
"""
AFTER = """
# TYPE appliance_requests_total counter
appliance_requests_total{endpoint="/v1/models",status="200"} 16
# TYPE appliance_first_token_seconds histogram
appliance_first_token_seconds_bucket{le="0.1",model="m"} 6
appliance_first_token_seconds_bucket{le="1.0",model="m"} 14
appliance_first_token_seconds_bucket{le="+Inf",model="m"} 15
# TYPE appliance_audit_last_timestamp_seconds gauge
appliance_audit_last_timestamp_seconds{kind="cosignature",witness="w1\\n"} 1000
# TYPE process_start_time_seconds gauge
process_start_time_seconds 820
"""


def _reading(text: str, at: float) -> Reading:
    verdict = Verdict(SIMULATED, "http://127.0.0.1:1", datetime(2026, 1, 1, tzinfo=UTC), bytes(48))
    return Reading(verdict, {"status": "ready"}, _samples(text), at=at, time=1120.0)


def test_the_load_is_that_between_two_looks() -> None:
    """Rates, quantiles and ages by hand: 6 requests in 3 s; one of ten first tokens within 0.1 s, nine within 1 s."""
    between = Load(_reading(AFTER, 13.0), _reading(BEFORE, 10.0))
    assert 2.0 == between.rate("appliance_requests_total", status="200")
    first = "appliance_first_token_seconds"
    assert [0.1, 1.0, 1.0, math.inf] == [between.quantile(first, part, model="m") for part in (0.1, 0.2, 0.9, 1)]
    assert math.isnan(between.quantile(first, 0.5, model="x"))
    assert {"w1\n": 120.0} == between.age("cosignature")
    assert 6.0 == Load(_reading(BEFORE.replace(" 10", " 6"), 13.0), _reading(BEFORE, 10.0)).count(
        "appliance_requests_total")  # it booted again
    assert 16 / 300 == Load(_reading(AFTER, 13.0)).rate("appliance_requests_total")
    assert "cosignature of w1? 2 min ago" in frame(between)  # nothing of it moves the terminal


@pytest.mark.parametrize(("said", "words"), [
    (load.span(5), "5 s"), (load.span(7200), "2 h"), (load.span(-3), "0 s"), (load.nbytes(100), "100 bytes"),
    (load.nbytes(3 << 20), "3.0 MiB"), (load.bound(0.25), "≤ 250 ms"), (load.bound(2.5), "≤ 2.5 s"),
    (load.bound(math.inf), "more"), (load.bound(math.nan), "-")])
def test_words_for_numbers(said: str, words: str) -> None:
    """Short, with their unit."""
    assert words == said
