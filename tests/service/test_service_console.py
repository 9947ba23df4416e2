"""What an operator sees of a running service: lines on the console, refusals by parameter, and the load in metrics."""

from __future__ import annotations

import io
import json
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from appliance.api import wire
from appliance.api.adapters.parameters import NAMES, known
from appliance.api.wishes import table
from appliance.service.admission.privacy import Timing
from appliance.service.console import Console
from appliance.service.parts.exchange import Exchange
from appliance.service.parts.metrics import Metrics
from tests.support import written
from tests.support.server import AUDITOR_KEY, Server, write_policy

CANARY = "Zq7canaryWORDx9"
CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


def _events(server: Server) -> dict[str, dict[str, Any]]:
    """What the console said, by event."""
    found = [json.loads(line) for line in written.lines(server.folder / "stderr") if line.startswith("{")]
    return {each["event"]: each for each in found}


def test_the_console_tells_of_the_end(tmp_path: Path, tiny_model: Path) -> None:
    """A line when it drains and one when it has stopped, with the refusals by code: none for a single request."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model]).wait_ready()
    with server.http() as http:
        for body in (CHAT, {**CHAT, "temperature": 99}, {**CHAT, "top_p": 7}, {**CHAT, "model": CANARY}):
            http.post("/v1/chat/completions", json=body)
    assert "ready" == list(_events(server))[-1]
    assert 0 == server.stop()
    events = _events(server)
    assert ["ready", "draining", "stopped"] == list(events)[-3:]
    assert 0 == events["draining"]["in_flight"]
    assert (1, 3, {"invalid_value": 2, "model_not_found": 1}) == tuple(
        events["stopped"][name] for name in ("requests", "refused", "refusals"))
    assert CANARY not in server.text("stderr")


SAID = [
    ("draining", {"in_flight": 3, "seconds": 30.0}, "draining: 3 requests in progress, which may take 30 s; a second "
                                                    "signal cancels them\n"),
    ("stopped", {"requests": 5, "refused": 3, "refusals": {"x": 1, "a": 2}, "abandoned": []},
     "stopped: 5 requests answered, 3 refused (a 2, x 1)\n"),
    ("stopped", {"requests": 5, "refused": 0, "refusals": {}, "abandoned": ["demo"]},
     "stopped: 5 requests answered, 0 refused; a pass did not end of demo\n"),
    ("unaudited", {"reason": "audit log: No space left on device"},
     "unaudited: audit log: No space left on device; every request is refused until the appliance is started again\n"),
    ("state_reserve", {"free_bytes": 300000},
     "state disk nearly full: 300000 bytes are left, which are kept for requests with a key; make it larger soon\n"),
    ("state_full", {"free_bytes": 190000},
     "state disk full: 190000 bytes are left, for the end of the log; requests with a key are refused until the disk "
     "is larger and the appliance was started again\n"),
    ("model_failed", {"model": "demo", "code": "model_tampered"},
     "model demo failed: model_tampered; it answers no more until the next boot\n"),
]


@pytest.mark.parametrize(("event", "facts", "line"), SAID)
def test_lines_for_people(event: str, facts: dict[str, Any], line: str) -> None:
    """In words, or as one JSON object."""
    words, objects = io.StringIO(), io.StringIO()
    Console(words, as_json=False).tell(event, **facts)
    Console(objects, as_json=True).tell(event, **facts)
    assert line == words.getvalue()
    assert {"event": event, **facts} == json.loads(objects.getvalue())


def test_a_slow_step_says_how_far_it_is_where_there_is_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line from time to time: a guest's console else looks like one that hangs. JSON lines stay as they are."""
    now = [100.0]
    monkeypatch.setattr("appliance.service.console.time.monotonic", lambda: now[0])
    words, objects = io.StringIO(), io.StringIO()
    for console in (Console(words, as_json=False), Console(objects, as_json=True)):
        console.progress("self-test", 0, 0, "")
        for done in range(81):
            now[0] += 0.3
            console.progress("self-test", done, 81, "answers")
        console.progress("self-test", 0, 0, "passed")
    lines = words.getvalue().splitlines()
    assert ["33 of 81 answers", "67 of 81 answers"] == [line.split(maxsplit=1)[1] for line in lines[:-1]]
    assert "passed" in lines[-1]
    assert ["step"] == [json.loads(line)["event"] for line in objects.getvalue().splitlines()]


def test_a_console_that_has_gone_ends_nothing(tmp_path: Path) -> None:
    """A reader of standard error may leave before the service does."""
    with (tmp_path / "out").open("w") as out:
        console = Console(out, as_json=True)
    console.tell("draining", in_flight=0, seconds=1.0)


REFUSED = [  # a change of the request, the parameter that its record names
    ({"temperature": 99}, "temperature"), ({"n": 2}, "n"), ({CANARY: 1, "best_of": 3}, "best_of"),
    ({"stop": [CANARY, 7]}, "stop"),
    ({"messages": [{"role": CANARY, "content": "x"}]}, "messages.role"),
    ({"messages": [{"role": "user", "content": [{"type": CANARY}]}]}, "messages.content.type"),
    ({"messages": None}, "messages"), ({"structured_outputs": {"structural_tag": CANARY}},
                                       "structured_outputs.structural_tag"),
    ({"chat_template_kwargs": {CANARY: [1]}}, "chat_template_kwargs"), ({"logit_bias": {CANARY: 1}}, "logit_bias"),
    ({"model": CANARY}, "model"), ({"max_tokens": 10**9}, "max_tokens"),
]


@pytest.mark.parametrize(("change", "param"), REFUSED)
def test_a_refusal_is_recorded_with_its_parameter(change: dict[str, Any], param: str | None, service: Server) -> None:
    """By a name of a closed list, in which nothing is that a client made up."""
    with service.http() as http:
        response = http.post("/v1/chat/completions", json={**CHAT, **change})
    record = service.audited(response.headers["x-request-id"])
    assert (response.json()["error"]["code"], param) == (record["code"], record.get("param"))
    assert CANARY not in json.dumps(record)


def test_the_list_of_parameters_is_the_apis() -> None:
    """Every field of every request type is in it; paths lead to the longest name, and others to none."""
    assert {*wire.ChatRequest.model_fields, *wire.CompletionRequest.model_fields, *table.ROWS} <= NAMES
    assert ("messages.content.text", "messages.content", "metadata", None, None) == tuple(
        known(path) for path in (
            "messages.12.content.0.text", "messages.3.content.x", "metadata.user", "x.model", None))


Samples = dict[tuple[str, ...], float]


def _metrics(http: httpx.Client) -> Samples:
    """Each sample by its name and the values of its labels, as Prometheus' own parser reads them."""
    return {(sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(http.get("/metrics").text) for sample in family.samples}


NO_END = {str(token): -100 for token in range(3)}  # no token that ends an answer
PADDED = 'token_count_rounding = 16\n timing_padding {\n first_token = "50ms"\n total = "100ms"\n }'
USED, WAITING, SLOTS = ((f"appliance_{name}", "tiny") for name in (
    "cache_slots_used", "requests_waiting", "cache_slots"))
RATE, TOKENS = (("appliance_tokens" + name, "completion", "tiny") for name in ("_per_second", "_total"))


@pytest.mark.parametrize("privacy", ["", PADDED])
def test_metrics_tell_of_the_load(privacy: str, tmp_path: Path, tiny_model: Path) -> None:
    """Waiting requests, sequences in the cache and tokens per second are there while it works, and add up after it."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, privacy=privacy, limits="concurrent_requests = 12")
    server, enough = Server(policy, [tiny_model]).wait_ready(), threading.Event()

    def ask() -> None:
        while not enough.is_set():
            server.client().completions.create(model="tiny", prompt="a", max_tokens=33, logit_bias=NO_END)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    try:
        with server.http(AUDITOR_KEY) as http:
            seen = [_metrics(http)]
            for thread in threads:
                thread.start()
            while not (seen[-1].get(TOKENS) and any(each[USED] for each in seen)):
                seen.append(_metrics(http))
            enough.set()
            for thread in threads:
                thread.join()
            while seen[-1][USED]:  # its requests are over a moment after their answers
                seen.append(_metrics(http))
    finally:
        enough.set()
        assert 0 == server.stop()
    assert (0, 0, 0) == (seen[0][USED], seen[0][WAITING], seen[0][RATE])
    assert 1 <= max(each[USED] for each in seen) <= seen[0][SLOTS]
    assert all(0 <= each[WAITING] <= 8 for each in seen)
    assert 0 < max(each[RATE] for each in seen) <= seen[-1][TOKENS] / 60
    assert 0 == seen[-1][TOKENS] % (48 if privacy else 33)  # rounded for each request, and nothing between


def test_tokens_per_second_are_those_of_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ended a minute ago counts no more."""
    now, metrics = [1000.0], Metrics()
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for tokens in (600, 1200):
        exchange = Exchange("/v1/completions", Timing())
        exchange.model, exchange.course.completion_tokens = "tiny", tokens
        metrics.record(exchange)
        now[0] += 40
    found = []
    for _ in range(3):
        found.append(metrics.per_second("tiny", "completion"))
        now[0] += 30
    assert [20.0, 0.0, 0.0] == found
