"""Load: many clients at once, half of them rude, for minutes; the server stays sound, and forgets nothing it should."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from appliance.boot.planning import budget
from appliance.models.catalogue import Catalogue
from appliance.policy import load
from tests.support import waiting
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, no_roots, write_policy

SECONDS = float(os.environ.get("APPLIANCE_LOAD_SECONDS", "120"))
CLIENTS = 24


def _resident(server: Server, field: str = "VmRSS") -> int:
    """Kilobytes of memory that the server's process holds; VmHWM: or has held."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(f"{field}:")))


@pytest.mark.slow
def test_long_requests_take_no_more_than_the_plan_says(tmp_path: Path, tiny_model: Path) -> None:
    """Eight clients send what takes most for its size, all at once: too long by far, as long as may be, and lists. The
    process grows by less than the sum has for it (`boot/planning/budget.py`), and answers after that."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, limits=(
        'concurrent_requests = 8\n  prompt_tokens = 400\n  generation_tokens = 8\n  request_size = "1MiB"'))
    lines = budget.divide(load(policy).policy, Catalogue({"tiny": tiny_model}), None).lines
    allowed = next(line.nbytes for line in lines
                   if line.what.startswith("loading, then reading"))
    bodies = [json.dumps({"model": "tiny", "prompt": prompt, "max_tokens": 1}).encode()
              for prompt in ("a" * 1_000_000, " " * 1_000_000, "ab, c! " * 140_000, [1000] * 140_000, [[]] * 240_000)]
    bodies.append(b'{"model": "tiny", "prompt": "' + "\U0001f600".encode() * 250_000 + b'"}')

    def ask(number: int) -> set[int]:
        with server.http() as http:
            return {http.post("/v1/completions", content=bodies[(number + turn) % len(bodies)],
                              headers={"content-type": "application/json"}).status_code for turn in range(12)}

    server = Server(policy, [tiny_model], fresh=True).wait_ready()
    server.client().completions.create(model="tiny", prompt="a", max_tokens=8)
    before = _resident(server)
    with ThreadPoolExecutor(8) as pool:
        statuses = set().union(*pool.map(ask, range(8)))
    grown = _resident(server, "VmHWM") - before
    answer = server.client().completions.create(model="tiny", prompt="a", max_tokens=8)
    assert 0 == server.stop()
    assert 400 in statuses <= {400, 429, 503}
    assert answer.usage is not None
    assert grown << 10 < allowed + 8 * (1 << 20)  # and a body of each client


@pytest.mark.slow
def test_log_probabilities_take_no_more_than_the_plan_says(tmp_path: Path, tiny_model: Path) -> None:
    """Sixteen whole answers, with twenty alternatives of every token, under way at once: the process grows by less than
    the sum has for requests, answers, keys and values, and passes."""
    many, tokens = 16, 440
    policy = write_policy(
        tmp_path, {"tiny": tiny_model}, model="sampling { max_logprobs = 20 }",
        limits=f'concurrent_requests = {many}\n  prompt_tokens = 64\n  generation_tokens = {tokens}\n'
               '  request_size = "64KiB"')
    lines = budget.divide(load(policy).policy, Catalogue({"tiny": tiny_model}), None).lines
    allowed = sum(line.nbytes for line in lines
                  if line.what.startswith(("requests", "answers", "tiny: keys", "tiny: activations")))
    bias = {str(token): -100 for token in range(3)}  # no token that ends an answer

    def ask(number: int) -> int:
        with server.http(KEY if number else OTHER_KEY) as http:
            answer = http.post("/v1/chat/completions", json={
                "model": "tiny", "messages": [{"role": "user", "content": "abc"}], "max_tokens": tokens,
                "seed": number, "logit_bias": bias, "logprobs": True, "top_logprobs": 20})
        return len(answer.json()["choices"][0]["logprobs"]["content"])

    server = Server(policy, [tiny_model]).wait_ready()
    server.client().completions.create(model="tiny", prompt="a", max_tokens=8)
    before = _resident(server)
    with ThreadPoolExecutor(many) as pool:
        logged = list(pool.map(ask, range(many)))
    grown = _resident(server, "VmHWM") - before
    assert 0 == server.stop()
    assert [tokens] * many == logged
    assert grown << 10 < allowed


def _unsent(port: int) -> list[int]:
    """Bytes that the kernel holds for each client of a port of the loopback. The table is read in pieces, so a row may
    stand there twice where others come and go."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return list({row[2]: int(row[4].split(":")[0], 16) for row in rows
                 if row[1].endswith(f":{port:04X}") and row[3] != "0A"}.values())


def test_what_nobody_reads_is_not_made(tmp_path: Path, tiny_model: Path) -> None:
    """Of refusals that are padded to 1 MiB, the kernel holds little for clients without a key that do not read, and the
    process no more; who reads gets all of it."""
    many, size = 60, 1 << 20
    policy = write_policy(tmp_path, {"tiny": tiny_model}, privacy='size_padding = "1MiB"')
    server = Server(policy, [tiny_model]).wait_ready()
    port, before, took = int(server.url.rpartition(":")[2]), _resident(server), []
    with contextlib.ExitStack() as stack:
        request = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        came = [stack.enter_context(_slow(port, request)) for _ in range(many)]
        waiting.until(lambda: many == sum(size > 0 for size in _unsent(port)), "answers to all of them",
                      lambda: _unsent(port))
        time.sleep(0.5)  # for more than that, if it came; not until rest: who reads nothing for 30 s is cut off
        unsent, grown = list(filter(None, _unsent(port))), _resident(server) - before  # without who asked: is it ready?
        for _ in range(3):
            answer = bytearray()
            while part := came[len(took)].recv(1 << 16):
                answer += part
            took.append(bytes(answer))
    assert 0 == server.stop()
    assert many == len(unsent)
    assert max(unsent) < 128 << 10
    assert grown << 10 < many * (96 << 10)
    for head, _, body in (answer.partition(b"\r\n\r\n") for answer in took):
        assert head.startswith(b"HTTP/1.1 401")
        assert b"content-length: 1048576" in head.lower()
        assert (size, "invalid_api_key") == (len(body), json.loads(body)["error"]["code"])


@pytest.mark.slow
def test_what_was_asked_is_not_kept_as_objects(tmp_path: Path, tiny_model: Path) -> None:
    """Chats of thousands of short messages, of which the template writes the last, are under way as long as their
    clients do not read: each takes no more than the sum has for requests, answers and connections, beside what reading
    one takes."""
    many = 16
    policy = write_policy(tmp_path, {"tiny": tiny_model}, model='chat_template = "{{ messages[-1].content }}"', limits=(
        f'concurrent_requests = {many}\n  prompt_tokens = 16\n  generation_tokens = 480\n  request_size = "128KiB"'))
    loaded = load(policy).policy
    lines = {line.what.partition(",")[0]: line.nbytes
             for line in budget.divide(loaded, Catalogue({"tiny": tiny_model}), None).lines}
    allowed = lines["requests"] + lines["answers"] + many * lines["connections"] // budget.connections(loaded.limits)
    allowed += 48 * loaded.limits.request_size_bytes  # the sum's, for the one that is read
    body = json.dumps({"model": "tiny", "stream": True, "logit_bias": {str(token): -100 for token in range(3)},
                       "messages": [{"role": "user", "content": "a"}] * 4096}, separators=(",", ":")).encode()
    server = Server(policy, [tiny_model]).wait_ready()
    server.client().chat.completions.create(model="tiny", messages=[{"role": "user", "content": "a"}])
    port, before = int(server.url.rpartition(":")[2]), _resident(server)
    with contextlib.ExitStack() as stack:
        came = [stack.enter_context(_slow(port, (
            f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {KEY if number else OTHER_KEY}\r\n"
            f"content-length: {len(body)}\r\n\r\n").encode() + body)) for number in range(many)]
        heads = [connection.recv(12, socket.MSG_PEEK | socket.MSG_WAITALL) for connection in came]
        waiting.at_rest(server.process.pid)
        grown, heads = _resident(server) - before, {connection.recv(12) for connection in came}
    assert 0 == server.stop()
    assert {b"HTTP/1.1 200"} == heads
    assert grown << 10 < allowed


LONG = '''size_padding = "256KiB"
  timing_padding {
    first_token = "50ms"
    total       = "500ms"
  }'''


def test_long_answers_leave_on_the_grid(tmp_path: Path, tiny_model: Path) -> None:
    """What an answer has beyond 256 KiB leaves on the grid's next multiple, all of it and its spaces together."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, privacy=LONG, model="sampling { max_logprobs = 20 }")
    server = Server(policy, [tiny_model]).wait_ready()
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "a"}], "max_tokens": 200, "seed": 1,
                       "logit_bias": {str(token): -100 for token in range(3)}, "logprobs": True, "top_logprobs": 20})
    gaps = []
    for _ in range(12):  # a busy machine can be late
        came, times = b"", list[tuple[int, float]]()
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])), timeout=600) as connection:
            connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                               f"connection: close\r\nauthorization: Bearer {KEY}\r\n"
                               f"content-length: {len(body)}\r\n\r\n{body}".encode())
            while part := connection.recv(1 << 14):
                came += part
                times.append((len(came), time.monotonic()))
        content, head = came.partition(b"\r\n\r\n")[2], came.index(b"\r\n\r\n") + 4
        assert 512 << 10 == len(content)
        assert 256 << 10 < len(content.rstrip()) < 320 << 10
        first = [at for nbytes, at in times if nbytes <= head + (256 << 10)]
        later = [at for nbytes, at in times if nbytes > head + (256 << 10)]
        gaps.append([round(at - first[0], 1) for at in (first[-1], later[0], later[-1])])
        if gaps[-1] == [0.0, 0.5, 0.5]:
            break
    assert 0 == server.stop()
    assert [0.0, 0.5, 0.5] == gaps[-1], gaps


def _slow(port: int, request: bytes) -> socket.socket:
    """A client that has asked, and has little room for what it does not read."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", port))
    connection.sendall(request)
    return connection


def _status(connection: socket.socket) -> bytes:
    """The begin of an answer, upon which the client leaves."""
    with connection:
        return connection.recv(12)


def test_no_file_for_a_connection(tmp_path: Path, tiny_model: Path) -> None:
    """Where connections take all files that the process may have, that is reported once a second, not by the thousand;
    who is connected is served, and once there are files again, others are."""
    server = Server(write_policy(tmp_path, {"tiny": tiny_model}), [tiny_model], measured=False).wait_ready()
    usual = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    with server.http() as kept:
        assert 200 == kept.get("/health").status_code
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        with socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2]))):
            begun = time.monotonic()
            waiting.until(lambda: 3 <= len(server.audit("runtime.exception")), "three reports")
            most = time.monotonic() - begun + 2
            assert 200 == kept.get("/health").status_code
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, usual)
        assert 200 == server.http().get("/health").status_code
    reports = server.audit("runtime.exception")
    assert 0 == server.stop()
    assert {("OSError", "asyncio")} == {(report["type"], report["where"]) for report in reports}
    assert 3 <= len(reports) <= most


def test_refused_requests_are_given_back(tmp_path: Path, tiny_model: Path) -> None:
    """What was read of requests that are refused does not stay with the connections of clients that left: many that
    arrive in one moment take what the plan has for their bodies, and for one that is read."""
    many, size = 8, 8 << 20
    policy = write_policy(tmp_path, {"tiny": tiny_model},
                          limits=f'concurrent_requests = {many}\n  request_size = "{size >> 10}KiB"',
                          listeners=f'listen "api" {{\n kind = "unix"\n path = "{tmp_path}/socket"\n }}')
    body = (b'{"model":"tiny","metadata":[' + b"[]," * 2_790_000 + b"[]]}").ljust(size)
    heads = [(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n"
              f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n").encode()
             for key in [OTHER_KEY] + [KEY] * (many - 1)]  # all that one tenant may have, and one more
    lines = budget.divide(load(policy).policy, Catalogue({"tiny": tiny_model}), None).lines
    allowed = next(line.nbytes for line in lines
                   if line.what.startswith("loading, then reading"))
    server = Server(policy, [tiny_model]).wait_ready()
    before = _resident(server)
    with contextlib.ExitStack() as stack:
        came = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(many)]
        for connection, head in zip(came, heads, strict=True):
            connection.connect(f"{tmp_path}/socket")
            connection.sendall(head + body[:-1])
        time.sleep(1)
        server.process.send_signal(signal.SIGSTOP)
        for connection in came:
            connection.sendall(body[-1:])
        server.process.send_signal(signal.SIGCONT)
        with ThreadPoolExecutor(many) as pool:
            statuses = set(pool.map(_status, came))
    grown = _resident(server, "VmHWM") - before
    assert 0 == server.stop()
    assert {b"HTTP/1.1 400"} == statuses
    assert grown << 10 < many * size + allowed


def _client(server: Server, seed: int, until: float) -> dict[int, int]:
    """One client's requests, polite and rude ones; how often it saw which status."""
    numbers, seen = random.Random(seed), dict[int, int]()
    headers = {"authorization": f"Bearer {KEY}"}
    while time.monotonic() < until:
        body: dict[str, Any] = {"model": "tiny", "prompt": "x" * numbers.randint(1, 60),
                                "max_tokens": numbers.randint(1, 60), "stream": numbers.random() < 0.5}
        if numbers.random() < 0.2:
            body[numbers.choice(["n", "stop", "model", "seed"])] = "wrong"
        http = httpx.Client(base_url=server.url, timeout=numbers.choice([0.02, 0.2, 30]), headers=headers,
                            verify=no_roots())
        with contextlib.suppress(httpx.HTTPError), http, http.stream("POST", "/v1/completions", json=body) as answer:
            seen[answer.status_code] = seen.get(answer.status_code, 0) + 1
            for _ in answer.iter_raw():
                if numbers.random() < 0.02:
                    break
    return seen


@pytest.mark.soak
def test_stays_sound_under_load(tmp_path: Path, tiny_model: Path) -> None:
    """After minutes of polite and rude clients nothing is in progress, memory is bounded, and answers are the same."""
    policy = write_policy(tmp_path, {"tiny": tiny_model}, limits="concurrent_requests = 8")
    server = Server(policy, [tiny_model]).wait_ready()
    asked: dict[str, Any] = {"model": "tiny", "prompt": "abc", "max_tokens": 20, "seed": 5}
    first = server.client().completions.create(**asked).choices[0].text
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(lambda seed: _client(server, seed, time.monotonic() + SECONDS / 4), range(CLIENTS)))
        settled = _resident(server)
        seen = list(pool.map(lambda seed: _client(server, seed, time.monotonic() + SECONDS), range(CLIENTS)))
    statuses = {status for part in seen for status in part}
    assert {200, 400, 404} <= statuses <= {200, 400, 404, 429}
    time.sleep(2)
    assert first == server.client().completions.create(**asked).choices[0].text
    with server.http(AUDITOR_KEY) as http:
        assert "appliance_requests_in_flight 1.0" in http.get("/metrics").text
    assert _resident(server) < settled * 1.2 + 20_000
    assert 0 == server.stop()
    assert 0 == server.audit("audit.closed")[0]["dropped"]
    assert not server.audit("runtime.exception")
