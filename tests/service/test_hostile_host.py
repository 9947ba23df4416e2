"""A host that disturbs a service at its work: by signals, by a clock that it turns, by want of memory and of files.
Nobody gets a wrong answer, nothing that was limited is free, and all that clients got is recorded."""

from __future__ import annotations

import json
import resource
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from appliance.audit.chain import Chain
from tests.support import waiting
from tests.support.extent import some
from tests.support.server import AUDITOR_KEY, KEY, OTHER_KEY, Server, write_policy

ROOT = Path(__file__).parents[2]
TOKENS = 440
STREAM = {"model": "tiny", "prompt": "once", "max_tokens": TOKENS, "seed": 3, "temperature": 1.0, "stream": True,
          "logit_bias": {str(token): -100 for token in range(3)}}
LIMITS = f"generation_tokens = {TOKENS}\n  prompt_tokens = 64"
UNHEARD = [signal.SIGCHLD, signal.SIGCONT, signal.SIGWINCH, signal.SIGURG, signal.SIGPIPE, signal.SIGXFSZ]
POLITE = [signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
DEADLY = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGQUIT, signal.SIGVTALRM, signal.SIGPROF,
          signal.SIGIO, signal.SIGRTMIN]


class Stream:
    """A stream whose client has little room for it, and has read no more than its beginning: so it is under way."""

    def __init__(self, server: Server) -> None:
        body = json.dumps(STREAM)
        self._socket, self.data = socket.socket(), b""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(waiting.STALL_SECONDS)
        self._socket.connect(("127.0.0.1", int(server.url.rpartition(":")[2])))
        self._socket.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n"
                             f"content-type: application/json\r\nconnection: close\r\n"
                             f"content-length: {len(body)}\r\n\r\n{body}".encode())
        while self.data.count(b"data: {") < 2:
            self._read()
        self.request = self.data.partition(b"x-request-id: ")[2].partition(b"\r\n")[0].decode()

    def _read(self) -> bool:
        part = self._socket.recv(1024)
        self.data += part
        return bool(part)

    def rest(self) -> None:
        """Read it to its end, or to where it breaks off."""
        with self._socket:
            try:
                while self._read():
                    pass
            except ConnectionError:
                pass

    @property
    def text(self) -> str:
        """What the model wrote, so far."""
        lines = [line for line in self.data.split(b"\n") if line.startswith(b"data: {")]
        events = [json.loads(line[6:]) for line in lines]
        return "".join(choice["text"] for event in events for choice in event.get("choices", ()))

    @property
    def whole(self) -> bool:
        """Whether its end has come."""
        return b"data: [DONE]" in self.data


def _start(folder: Path, models: dict[str, Path], **more: Any) -> Server:
    policy = write_policy(folder, models, schema=2, limits=LIMITS, **more)
    return Server(policy, list(models.values()), measured=False).wait_ready()


@pytest.fixture
def server(tmp_path: Path, tiny_model: Path) -> Iterator[Server]:
    """A service of its own for each test, which may end it."""
    running = _start(tmp_path, {"tiny": tiny_model})
    yield running
    if running.process.poll() is None:
        running.stop()


def _events(server: Server, request: str) -> list[str]:
    return [each["event"] for each in server.audit() if each.get("request") == request]


def _is_sound(server: Server) -> None:
    """The log is one chain that was ended in order, without a fault of the service in it."""
    chain = Chain()
    for line in server.text("audit.jsonl").splitlines():
        chain.follow(line.encode())  # AuditError where one does not follow
    assert [0] == [each["dropped"] for each in server.audit("audit.closed")]
    assert [] == server.audit("runtime.exception")


def test_signals_that_mean_nothing_change_nothing(server: Server) -> None:
    """Also where the process is halted in the middle of a stream, and goes on later: the same text comes, to its end.
    """
    undisturbed, disturbed = Stream(server), Stream(server)
    undisturbed.rest()
    for number in (*UNHEARD, signal.SIGSTOP):
        server.process.send_signal(number)
    waiting.until(lambda: _state(server) == "T", "a halt", lambda: _state(server))
    server.process.send_signal(signal.SIGCONT)
    disturbed.rest()
    assert undisturbed.whole
    assert disturbed.whole
    assert undisturbed.text == disturbed.text
    assert ["stream.started", "request.done"] == _events(server, disturbed.request)
    assert 0 == server.stop()
    _is_sound(server)


def _state(server: Server) -> str:
    return Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("number", POLITE)
def test_a_signal_to_end_lets_streams_end(number: signal.Signals, server: Server) -> None:
    """The stream under way comes whole, and is recorded; the service ends in order."""
    stream = Stream(server)
    server.process.send_signal(number)
    waiting.until(lambda: server.audit("service.draining"), "a drain", lambda: server.audit()[-1:])
    stream.rest()
    assert stream.whole
    assert 0 == server.process.wait(waiting.STALL_SECONDS)
    assert ["stream.started", "request.done"] == _events(server, stream.request)
    _is_sound(server)


@pytest.mark.parametrize("number", some(DEADLY, 3))
def test_other_signals_end_it_at_once(number: signal.Signals, server: Server) -> None:
    """Nobody takes the stream for a whole one, it is recorded as begun, and no core is left."""
    stream = Stream(server)
    server.process.send_signal(number)
    assert -number == server.process.wait(waiting.STALL_SECONDS)
    stream.rest()
    assert not stream.whole
    assert ["stream.started"] == _events(server, stream.request)
    assert [] == [path for path in (server.folder, Path.cwd()) if any(path.glob("core*"))]


def test_a_clock_that_is_turned_frees_nobody(tmp_path: Path, tiny_model: Path) -> None:
    """Decades ahead and back while a stream runs: it comes whole, limits of a minute hold, and the log is one chain."""
    clock, library = tmp_path / "days", tmp_path / "clock.so"
    clock.write_bytes(bytes(8))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-nostdlib", f'-DTURNED="{clock}"', "-o", library,
                    ROOT / "tests/support/clock.c"], check=True)
    policy = write_policy(tmp_path, {"tiny": tiny_model}, schema=2, limits=f"{LIMITS}\n  requests_per_minute = 3")
    server = Server(policy, [tiny_model], environment={"LD_PRELOAD": str(library)}, isolated=False,
                    measured=False).wait_ready()
    stream, codes = Stream(server), []
    with server.http() as http, clock.open("r+b", buffering=0) as turned:  # in place: the service has it mapped
        for days in (15_000, -10_000, 90_000, 0):
            turned.seek(0)
            turned.write(struct.pack("<q", days))
            codes.append(http.post("/v1/completions", json={**STREAM, "stream": False, "max_tokens": 2}).status_code)
            assert "ready" == http.get("/health").json()["status"]
    stream.rest()
    assert [200, 200, 429, 429] == codes
    assert stream.whole
    assert ["stream.started", "request.done"] == _events(server, stream.request)
    assert 0 == server.stop()
    years = {int(each["time"][:4]) for each in server.audit()}
    assert max(years) - min(years) > 100, "the clock was not turned"
    _is_sound(server)


def _data_bytes(server: Server) -> int:
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmData:"))) << 10


@pytest.mark.parametrize("mebibytes", some([0, 1, 4, 16, 48], 3))
def test_want_of_memory_is_refused(mebibytes: int, server: Server) -> None:
    """While the kernel gives no more than so much, each answer is the right one or a refusal; afterwards all are the
    right ones, and each has its record."""
    expected = _asked(server)
    assert {200} == {status for _, status, _ in expected.values()}
    stream, allowed = Stream(server), _data_bytes(server) + (mebibytes << 20)
    usual = resource.prlimit(server.process.pid, resource.RLIMIT_DATA)
    resource.prlimit(server.process.pid, resource.RLIMIT_DATA, (allowed, usual[1]))
    with ThreadPoolExecutor(4) as pool:
        short = list(pool.map(lambda _: _asked(server), range(4)))
    resource.prlimit(server.process.pid, resource.RLIMIT_DATA, usual)
    stream.rest()
    after = _asked(server)
    assert 0 == server.stop()
    for found in (*short, after):
        for name, (_, status, text) in found.items():
            assert status in (200, 503), (name, status, text)
            assert status != 200 or expected[name][2] == text, name
    assert {503} == {found["schema"][1] for found in short}
    assert {200} == {status for _, status, _ in after.values()}
    recorded = {each["request"] for each in server.audit() if each["event"] in ("request.done", "request.refused")}
    assert set() == {request for found in (expected, *short, after) for request, _, _ in found.values()} - recorded


def _asked(server: Server) -> dict[str, tuple[str, int, Any]]:
    """Of each of some requests its id, its status, and what the model wrote."""
    prompt = {"model": "tiny", "prompt": "once", "max_tokens": 8, "seed": 1}
    bodies: dict[str, dict[str, Any]] = {
        "plain": prompt, "schema": {**prompt, "json_schema": {"enum": ["one", "two"]}},
        "grammar": {**prompt, "grammar": 'root ::= "a" [b-d] "e"'},
        "long": {**prompt, "user": "x" * 500_000},
        "values": {**prompt, "metadata": [[each] for each in range(20_000)]},
        "many": {**prompt, "prompt": ["a", "b", "c", "d"]}}
    found = {}
    for name, body in bodies.items():
        with server.http() as http:
            answer = http.post("/v1/completions", json=body)
            text = [choice["text"] for choice in answer.json().get("choices", ())]
            found[name] = answer.headers["x-request-id"], answer.status_code, text
    return found


def test_want_of_files_is_refused(tmp_path: Path, tiny_model: Path) -> None:
    """Without one more file, who is connected is served: a stream, evidence, metrics. A model is not loaded, and that
    is told; once there are files again, it is."""
    other = tmp_path / "other.gguf"
    other.write_bytes(tiny_model.read_bytes())
    policy = write_policy(tmp_path, {"tiny": tiny_model, "other": other}, schema=2, limits=LIMITS)
    policy.write_text(policy.read_text().replace('"other.gguf"', '"other.gguf"\n  load = "demand"'))
    server = Server(policy, [tiny_model, other], measured=False).wait_ready()
    usual = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    with server.http() as user, server.http(OTHER_KEY) as admin, server.http(AUDITOR_KEY) as auditor:
        for kept in (user, admin, auditor):
            assert 200 == kept.get("/health").status_code
        stream = Stream(server)
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (3, usual[1]))
        answers = [user.post("/v1/completions", json={**STREAM, "stream": streamed}) for streamed in (False, True)]
        answers += [user.get("/v1/attestation?nonce=" + "00" * 32), auditor.get("/metrics")]
        refused = admin.post("/v1/admin/models", json={"load": "other"})
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, usual)
        stream.rest()
        assert [200] * 4 == [each.status_code for each in answers]
        assert refused.status_code >= 400, refused.text
        assert stream.whole
        loaded = admin.post("/v1/admin/models", json={"load": "other"})
        assert 200 == loaded.status_code, loaded.text
    assert 0 == server.stop()
    assert {"request.done"} == {_events(server, each.headers["x-request-id"])[-1] for each in answers[:2]}
