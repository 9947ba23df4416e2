"""A policy that pads, rounds, redacts and limits: each promise, measured from outside."""

from __future__ import annotations

import re
import socket
import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from litestar import Litestar

from appliance.service.routes import HANDLERS
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

CHAT: dict[str, Any] = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}]}
FIXED: dict[str, Any] = {"temperature": 1.0, "seed": 7, "max_tokens": 20}
ATTEMPTS = 12  # one of which must find the machine not busy


def _on_grid(seconds: float, grid: float, jitter: float = 0.005) -> bool:
    """Whether a time is at or a little after a multiple of the grid, and not before it."""
    return -0.002 <= (seconds + 0.002) % grid - 0.002 <= jitter + grid / 2


def test_whole_answers_leave_on_the_total_grid(strict_service: Server) -> None:
    """Answers and refusals of the inference endpoints take a multiple of 400 ms, and have a multiple of 512 bytes."""
    with strict_service.http(OTHER_KEY) as http:
        for body in ({**CHAT, "max_tokens": 1}, {**CHAT, "model": "none"}, {**CHAT, "n": 3}):
            assert any(_on_grid(_timed(http, body), 0.4) for _ in range(ATTEMPTS))


@pytest.mark.parametrize("path", ["/v1/chat/completions/", "/v1//chat///completions"])
def test_no_spelling_of_a_path_escapes_the_grid(strict_service: Server, path: str) -> None:
    """Slashes too many change neither times nor sizes nor what the audit log says."""
    with strict_service.http(OTHER_KEY) as http:
        for body in ({**CHAT, "max_tokens": 1}, {**CHAT, "n": 3}):
            assert any(_on_grid(_timed(http, body, path), 0.4) for _ in range(ATTEMPTS))
        answer = http.post(path, json={**CHAT, "max_tokens": 1})
    assert "/v1/chat/completions" == strict_service.audited(answer.headers["x-request-id"])["endpoint"]


def _timed(http: httpx.Client, body: dict[str, Any], path: str = "/v1/chat/completions") -> float:
    http.get("/health")  # opens the connection
    begun = time.monotonic()
    answer = http.post(path, json=body)
    took = time.monotonic() - begun
    assert 0 == len(answer.content) % 512
    assert took >= 0.4
    return took


def test_stream_events_leave_on_the_grid(strict_service: Server) -> None:
    """The first event leaves on a multiple of 50 ms, one more at each, and the end on a multiple of 400 ms."""
    with strict_service.http(OTHER_KEY) as http:
        assert any(_is_paced(_event_times(http)) for _ in range(ATTEMPTS))


def _is_paced(times: list[float]) -> bool:
    ticks = [round(moment / 0.05) for moment in times]
    return (_on_grid(times[-1], 0.4) and all(_on_grid(moment, 0.05) for moment in times)
            and ticks == list(range(ticks[0], ticks[-1] + 1)))


def _event_times(http: httpx.Client) -> list[float]:
    """Seconds from the request to each write of a stream; each has a multiple of 512 bytes, and none comes early."""
    times = []
    http.get("/health")
    begun = time.monotonic()
    with http.stream("POST", "/v1/chat/completions", json={**CHAT, "stream": True, "max_tokens": 8}) as answer:
        for data in answer.iter_raw():
            times.append(time.monotonic() - begun)
            assert data.endswith(b"\n\n")
            assert 0 == len(data) % 512
            assert times[-1] > 0.05 * len(times) - 0.002
    return times


def test_counts_are_rounded_everywhere(strict_service: Server) -> None:
    """Usage, audit log and rate-limit headers show multiples of 16 only."""
    with strict_service.http(OTHER_KEY) as http:
        answer = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 3})
    usage = answer.json()["usage"]
    record = strict_service.audited(answer.headers["x-request-id"])
    counts = [*usage.values(), record["prompt_tokens"], record["completion_tokens"],
              2000 - int(answer.headers["x-ratelimit-remaining-tokens"])]
    assert [0] * len(counts) == [count % 16 for count in counts]
    assert (16, 16) == (usage["completion_tokens"], record["completion_tokens"])
    assert 0 == record["duration_us"] % 400_000


def test_redacts_answers_alike_streamed_and_whole(strict_service: Server, service: Server) -> None:
    """Each match of the pattern is gone from the answer, and the stream adds up to the same text."""
    client = strict_service.client(OTHER_KEY)
    whole = client.chat.completions.create(**CHAT, **FIXED).choices[0].message.content
    events = client.chat.completions.create(**CHAT, **FIXED, stream=True)
    assert whole == "".join(event.choices[0].delta.content or "" for event in events)
    assert "*" in whole
    assert re.search("[a-m][a-z]", whole) is None


def test_redacts_prompts(strict_service: Server) -> None:
    """Prompts that redaction makes equal get equal answers, and so the same count; token ids are refused."""
    client = strict_service.client(OTHER_KEY)
    answers = [client.completions.create(model="tiny", prompt=f"x {word} y", **FIXED).choices[0].text
               for word in ("ab", "cd", "zz")]
    assert answers[0] == answers[1] != answers[2]
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="tiny", prompt=[1, 2])
    assert ("unsupported_parameter", "prompt") == (caught.value.code, caught.value.param)


def test_drops_fields_of_the_policy(strict_service: Server) -> None:
    """A field that the policy drops does not reach the code that would refuse it."""
    client = strict_service.client(OTHER_KEY)
    client.chat.completions.create(**CHAT, max_tokens=1, tools=[{"type": "function", "function": {"name": "f"}}])


@pytest.mark.parametrize(("more", "code"), [
    ({"max_tokens": 65}, "generation_length_exceeded"),
    ({"messages": [{"role": "user", "content": "hello " * 200}]}, "context_length_exceeded"),
])
def test_lengths_are_limited(strict_service: Server, more: dict[str, Any], code: str) -> None:
    """Prompts and answers are bounded by the policy."""
    with pytest.raises(openai.BadRequestError) as caught:
        strict_service.client(OTHER_KEY).chat.completions.create(**{**CHAT, **more})
    assert code == caught.value.code


def test_rates_are_limited_for_each_key(strict_service: Server) -> None:
    """The key that asked too often is told when to come back; another key is not affected."""
    client = strict_service.client(KEY)


    def ask(_: int) -> str | None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(**CHAT, max_tokens=65)
        return caught.value.code

    with ThreadPoolExecutor(2) as pool:
        assert ["generation_length_exceeded"] * 40 == list(pool.map(ask, range(40)))
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**CHAT, max_tokens=65)
    headers = caught.value.response.headers
    assert ("rate_limit_exceeded", "40", "0") == (
        caught.value.code, headers["x-ratelimit-limit-requests"], headers["x-ratelimit-remaining-requests"])
    assert 1 <= int(headers["retry-after"]) <= 59
    strict_service.client(OTHER_KEY).models.list()


def test_concurrency_is_limited(strict_service: Server) -> None:
    """With two requests in progress a third is refused with 429, and passes when one is over."""
    client = strict_service.client(OTHER_KEY)
    streams = [client.chat.completions.create(**CHAT, max_tokens=4, stream=True) for _ in range(2)]
    for stream in streams:
        next(iter(stream))
    with pytest.raises(openai.RateLimitError) as caught:
        client.chat.completions.create(**CHAT, max_tokens=1)
    assert "too_many_requests" == caught.value.code
    for stream in streams:
        stream.close()
    waiting.until(lambda: not _refused(lambda: client.chat.completions.create(**CHAT, max_tokens=1)), "free place")


def _refused(ask: Callable[[], object]) -> str:
    """The code of a request that finds no place; empty for one that is answered."""
    try:
        ask()
    except openai.RateLimitError as error:
        return str(error.code)
    return ""


def test_metrics_are_padded_and_rounded(strict_service: Server) -> None:
    """A scrape shows rounded counts and durations on the grid."""
    with strict_service.http(AUDITOR_KEY) as http:
        text = http.get("/metrics").text
    for line in text.splitlines():
        if line.startswith("appliance_tokens_total"):
            assert 0 == float(line.split()[-1]) % 16
        if line.startswith("appliance_request_seconds_sum") and "completions" in line:
            assert float(line.split()[-1]) / 0.4 == pytest.approx(round(float(line.split()[-1]) / 0.4))


SLOW_PRIVACY = 'timing_padding {\n first_token = "100ms"\n total = "2s"\n }'


@pytest.fixture
def slow(tmp_path: Path, tiny_model: Path) -> Any:
    """A server of one test, whose streams last two seconds by its policy; also on a Unix socket."""
    listeners = f"""listen "api" {{
    kind = "tcp"
    port = 8080
  }}
  listen "local" {{
    kind = "unix"
    path = "{tmp_path}/api.sock"
  }}"""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}, privacy=SLOW_PRIVACY, listeners=listeners,
                                 service='drain_timeout = "20s"'), [tiny_model]).wait_ready()
    yield server
    server.stop()


def test_drains_on_sigterm(slow: Server) -> None:
    """After SIGTERM nothing new is accepted, what is in progress ends as it should, and the exit code is 0."""
    local = httpx.HTTPTransport(uds=str(slow.folder / "api.sock"))
    with httpx.Client(transport=local, base_url="http://local") as unix:
        assert 200 == unix.get("/health").status_code
    stream = slow.client().chat.completions.create(**CHAT, max_tokens=4, stream=True)
    next(iter(stream))
    slow.process.terminate()

    def closed() -> bool:
        try:
            with slow.http() as http:
                http.get("/health")
        except httpx.ConnectError:
            return True
        except httpx.NetworkError:
            return False  # the kernel accepted it, and the service did not any more: the next one is refused
        return False

    waiting.until(closed, "end of accepting")
    assert "length" == [event.choices[0].finish_reason for event in stream][-1]
    assert 0 == slow.stop()
    assert [1] == [record["in_flight"] for record in slow.audit("service.draining")]
    assert "audit.closed" == slow.audit()[-1]["event"]
    assert not (slow.folder / "api.sock").exists()


def test_a_drain_lasts_as_long_as_the_policy_says(tmp_path: Path, tiny_model: Path) -> None:
    """To parts of a second: what would take longer is cut off then, not before."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}, privacy='timing_padding {\n total = "60s"\n }',
                                 service='drain_timeout = "2500ms"'), [tiny_model]).wait_ready()
    try:
        threading.Timer(1, server.process.terminate).start()
        with server.http() as http:
            answer = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
        assert (503, "shutting_down") == (answer.status_code, answer.json()["error"]["code"])
        assert 0 == server.process.wait(waiting.STALL_SECONDS)
        (began,), (ended,) = server.audit("service.draining"), server.audit("request.refused")
        assert ended["mono_us"] - began["mono_us"] >= 2_500_000
    finally:
        server.stop()


def test_second_sigterm_gives_up(slow: Server) -> None:
    """A second SIGTERM ends the service at once: before what it waits for has come to its end."""
    stream = slow.client().chat.completions.create(**CHAT, max_tokens=4, stream=True)
    next(iter(stream))
    _terminate_twice(slow)
    assert 0 == slow.process.wait(waiting.STALL_SECONDS)
    assert ["shutting_down"] == [each["code"] for each in slow.audit("request.refused")]
    (began,), (ended,) = slow.audit("service.draining"), slow.audit("service.stopped")
    assert ended["mono_us"] - began["mono_us"] < 1_900_000


def _terminate_twice(running: Server) -> None:
    """The second when the first was heeded: two signals at once are one."""
    running.process.terminate()
    waiting.until(lambda: running.audit("service.draining"), "drain")
    running.process.terminate()


def test_a_stream_that_is_cut_off_is_told(slow: Server) -> None:
    """Its last event is an error, which the official client raises."""
    stream = slow.client().chat.completions.create(**CHAT, max_tokens=4, stream=True)
    next(iter(stream))
    _terminate_twice(slow)
    with pytest.raises(openai.APIError) as caught:
        list(stream)
    assert 0 == slow.process.wait(waiting.STALL_SECONDS)
    assert "shutting_down" == caught.value.code
    assert [(200, "shutting_down")] == [(each["status"], each["code"]) for each in slow.audit("request.refused")]


def test_what_is_cut_off_is_told(slow: Server) -> None:
    """A request without an answer when the service gives up gets a refusal in OpenAI's shape, and is recorded so."""
    threading.Timer(1, _terminate_twice, [slow]).start()
    with slow.http() as http:
        answer = http.post("/v1/chat/completions", json={**CHAT, "max_tokens": 1})
    assert (503, "shutting_down") == (answer.status_code, answer.json()["error"]["code"])
    assert 0 == slow.process.wait(waiting.STALL_SECONDS)
    assert [(503, "shutting_down")] == [(each["status"], each["code"]) for each in slow.audit("request.refused")]


def test_slow_bodies_are_bounded(strict_service: Server) -> None:
    """As many bodies may be on their way at once as requests may be in progress, for which the plan of the memory has
    room; the next is refused, and accepted when they are gone."""
    host, port = strict_service.url.removeprefix("http://").split(":")
    head = (f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {OTHER_KEY}\r\n"
            "content-type: application/json\r\ncontent-length: 100\r\n\r\n{")
    slow = [socket.create_connection((host, int(port))) for _ in range(2)]
    for connection in slow:
        connection.sendall(head.encode())
    client = strict_service.client(OTHER_KEY)

    def ask() -> str:
        return _refused(lambda: client.completions.create(model="tiny", prompt="x", max_tokens=1))

    assert "too_many_requests" == waiting.until(ask, "refusal, once both have come")
    for connection in slow:
        connection.close()
    waiting.until(lambda: not ask(), "free place")


def test_the_framework_deprecates_nothing_that_is_used() -> None:
    """A service under `python -W error` would stop at its last step."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Litestar(route_handlers=HANDLERS, openapi_config=None, logging_config=None)
