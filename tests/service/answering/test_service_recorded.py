"""No answer ends before its record is written: twelve clients, and an audit log that fails under them."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.auditor.statedisk import examine
from appliance.keys.providers import Secret
from appliance.state.disk import StateDisk
from appliance.state.frames import AUDIT, MIN_DISK_BYTES
from appliance.state.room import OWN_BYTES, UNDER_WAY_BYTES
from tests.support import written
from tests.support.server import AUDITOR_KEY, KEY, Server, write_policy

CLIENTS, LIMITS = 12, "concurrent_requests = 16"
SECRET = bytes(range(7, 39))
STATE = """
state {{
  device = "{device}"
  key {{
    provider = "file"
    path     = "{key}"
  }}
}}
audit {{
  sink = "state"
}}
"""
PADDED = 'timing_padding {\n first_token = "50ms"\n total = "200ms"\n jitter = "60ms"\n}'
Records = Callable[[], list[dict[str, Any]]]


@dataclass
class Seen:
    """What a client has of one request."""

    request: str
    status: int
    body: bytes

    @property
    def content(self) -> bool:
        """Whether any of it is an answer's."""
        return self.status == 200 and bool(self.body)

    @property
    def ended(self) -> bool:
        """Whether the end of an answer is there."""
        return b"[DONE]" in self.body or b'"finish_reason":"' in self.body


def _client(url: str, streamed: bool) -> list[Seen]:
    """Ask until the service refuses, or is gone."""
    seen: list[Seen] = []
    body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "stream": streamed}
    with httpx.Client(base_url=url, headers={"authorization": f"Bearer {KEY}"}, timeout=600) as http:
        while not seen or seen[-1].status == 200:
            with http.stream("POST", "/v1/chat/completions", json=body) as response:
                seen.append(Seen(response.headers["x-request-id"], response.status_code, b""))
                with contextlib.suppress(httpx.HTTPError):  # cut off
                    for part in response.iter_raw():
                        seen[-1].body += part
    return seen


@pytest.fixture
def device() -> Iterator[Path]:
    """A state disk with room for a boot and some thirty records, beside what is kept for the log's own and for answers
    in progress; policies name devices below /dev."""
    path = Path(f"/dev/shm/appliance-test-recorded-{os.getpid()}")  # noqa: S108
    path.write_bytes(b"")
    os.truncate(path, MIN_DISK_BYTES)
    disk = StateDisk(path, Secret(bytearray(SECRET)))
    while disk.free > 40_000 + OWN_BYTES + UNDER_WAY_BYTES:
        disk.append(AUDIT, b"x" * 10_000)
    disk.close()
    yield path
    path.unlink()


def _on_disk(device: Path) -> list[dict[str, Any]]:
    frames = examine(device, Secret(bytearray(SECRET)))[2]
    return [json.loads(frame.payload) for frame in frames if frame.kind == AUDIT and frame.payload[:1] == b"{"]


@pytest.mark.parametrize(("sink", "privacy"), [("file", ""), ("stdout", ""), ("state", ""), ("file", PADDED)])
def test_what_twelve_clients_got_is_recorded(sink: str, privacy: str, tmp_path: Path, tiny_model: Path,
                                             device: Path) -> None:
    """The log fills up under them, each way: every answer that ended has its record, of every other byte there is one
    that says that it left, and who got neither was told so."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, limits=LIMITS, privacy=privacy)
    if sink == "state":
        key = tmp_path / "key"
        key.write_text(SECRET.hex())
        key.chmod(0o600)
        policy.write_text(policy.read_text() + STATE.format(device=device, key=key))
        server, records = Server(policy, [tiny_model], measured=False), lambda: _on_disk(device)
    else:
        log = Path("stdout") if sink == "stdout" else tmp_path / "audit.jsonl"
        server = Server(policy, [tiny_model], audit_bytes=20_000, log=log)
        records = _lines(tmp_path / log)
    server.wait_ready()
    with ThreadPoolExecutor(CLIENTS) as pool:
        found = list(pool.map(lambda number: _client(server.url, number % 2 == 0), range(CLIENTS)))
    seen = [each for client in found for each in client]
    server.stop()
    done = {each["request"] for each in records() if each["event"] == "request.done"}
    named = {each["request"] for each in records() if "request" in each}
    assert set() == {each.request for each in seen if each.ended} - done
    assert set() == {each.request for each in seen if each.content} - named
    assert sum(each.ended for each in seen) > 5
    code, event = ("state_full", "state_full") if sink == "state" else ("audit_unavailable", "unaudited")
    assert all(code.encode() in each.body for each in seen if not each.ended)
    assert event in [json.loads(line)["event"] for line in server.text("stderr").splitlines() if line[:1] == "{"]


def _lines(path: Path) -> Records:
    """A log's whole lines: the last may be cut, where its sink took a part of it."""
    return lambda: written.records(path)


def test_an_answer_is_recorded_when_its_client_has_it(tmp_path: Path, tiny_model: Path) -> None:
    """Streamed or not, the record is there with the answer's last byte; a stream's start has one of its own."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model]).wait_ready()
    try:
        for number in range(20):
            streamed = number % 2 == 0
            body = {"model": "tiny", "prompt": "a", "max_tokens": 2, "stream": streamed}
            with server.http() as http:
                request = http.post("/v1/completions", json=body).headers["x-request-id"]
            events = [each["event"] for each in server.audit() if each.get("request") == request]
            assert ["stream.started"] * streamed + ["request.done"] == events
    finally:
        assert 0 == server.stop()


def test_a_stream_that_its_client_left_is_recorded_as_cut(tmp_path: Path, tiny_model: Path) -> None:
    """What was streamed before stands in the record, with an end of its own."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model]).wait_ready()
    body = {"model": "tiny", "prompt": "a", "max_tokens": 400, "stream": True}
    try:
        with server.http() as http, http.stream("POST", "/v1/completions", json=body) as response:
            request = response.headers["x-request-id"]
            next(response.iter_raw())
        record = server.audited(request)
        assert ("request.done", "cancelled", True) == (record["event"], record["finish"], record["streamed"])
        assert 1 <= record["completion_tokens"] < 400
    finally:
        assert 0 == server.stop()


def test_durations_are_the_multiples_that_answers_were_held_to(tmp_path: Path, tiny_model: Path) -> None:
    """A duration is a multiple of the padding, and jitter on top makes none of it: no client had its answer before."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}, privacy=PADDED), [tiny_model]).wait_ready()
    found = []
    try:
        for body in 8 * [{"stream": True}, {"stream": False}, {"temperature": 99}]:
            with server.http() as http:
                begun = time.monotonic()
                response = http.post("/v1/completions", json={"model": "tiny", "prompt": "a", "max_tokens": 2, **body})
                took = time.monotonic() - begun
            record = server.audited(response.headers["x-request-id"])
            found.append((record["duration_us"] % 200_000, record["duration_us"] <= took * 1e6))
        with server.http(AUDITOR_KEY) as http:
            seconds = http.get("/metrics").text
    finally:
        assert 0 == server.stop()
    assert [(0, True)] * 24 == found
    total = sum(each["duration_us"] for each in server.audit() if each.get("endpoint") == "/v1/completions"
                and "duration_us" in each)
    name = 'appliance_request_seconds_sum{endpoint="/v1/completions"}'
    line, = [line for line in seconds.splitlines() if line.startswith(name)]
    assert pytest.approx(total / 1e6) == float(line.split()[1])
