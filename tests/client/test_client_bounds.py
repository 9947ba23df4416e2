"""Servers that never end an answer: whoever asks them waits for a bounded time and reads a bounded count of bytes."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import openai
import pytest

from appliance import bounded
from appliance.attestation.trust.roots import Roots
from appliance.attestation.x509.judging.requests import Request
from appliance.cli.main import main
from appliance.client import Channel, connection, exchange, fetch, target
from appliance.client.proxy import Proxy
from appliance.errors import ImageError, UncheckedEvidenceError
from appliance.imaging.packages import downloads
from tests.client.test_client_verify import _crl
from tests.support import fake_appliance as fake
from tests.support import waiting
from tests.support.fake_amd import FakeAmd

SECONDS = 1.0
Write = Callable[[bytes], object]


def _slowly(head: bytes, endless: bytes) -> Callable[[Write], None]:
    """A head, and then one byte of the rest now and then, for ever."""
    def play(write: Write) -> None:
        write(head)
        for byte in itertools.cycle(endless):
            write(bytes([byte]))
            time.sleep(0.02)
    return play


def _fast(head: bytes, endless: bytes) -> Callable[[Write], None]:
    """A head, and then the rest without end, as fast as it goes."""
    def play(write: Write) -> None:
        write(head)
        while True:
            write(100 * endless)
    return play


OK, CONTINUE = b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n"
HOSTILE = {
    "a status line without an end": _slowly(b"HTTP/1.1 200 ", b"O"),
    "a head that drips": _slowly(OK, b"x-a: b\r\n"),
    "a line that drips": _slowly(OK, b"x"),
    "continue, slowly": _slowly(b"", CONTINUE),
    "continue, fast": _fast(b"", CONTINUE),
    "continue with a long head": _fast(b"", b"HTTP/1.1 100 Continue\r\n" + b"x-y: " + b"z" * 1000 + b"\r\n\r\n"),
    "a body that drips": _slowly(OK + b"content-length: 60000\r\n\r\n", b" "),
    "chunks that drip": _slowly(OK + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
    "a chunk's size without an end": _slowly(OK + b"transfer-encoding: chunked\r\n\r\n", b"0"),
    "trailers without an end": _slowly(OK + b"transfer-encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    "a body without an end": _fast(OK + b"connection: close\r\n\r\n", b" " * 100),
}
WAYS = pytest.mark.parametrize("play", HOSTILE.values(), ids=HOSTILE)


@contextlib.contextmanager
def _hostile(play: Callable[[Write], None]) -> Iterator[tuple[str, threading.Event]]:
    """A server that plays to each connection once something came; and whether its clients went away."""
    gone = threading.Event()

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            client.recv(1 << 16)
            play(client.sendall)
        gone.set()

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", gone


@contextlib.contextmanager
def _in_time() -> Iterator[None]:
    """Something ends in a few times the time that it has, on a busy machine too."""
    before = time.monotonic()
    yield
    assert time.monotonic() - before < 20 * SECONDS


@WAYS
def test_verify(play: Callable[[Write], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
                capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with the exit code of what could not be checked, and hangs up."""
    monkeypatch.setattr(connection, "EVIDENCE_SECONDS", SECONDS)
    policy = fake.write_policy(tmp_path, "simulated", kind="tcp")
    with _hostile(play) as (url, gone), _in_time():
        code = main(["verify", url, "--policy", str(policy), "--json"])
        found = json.loads(capsys.readouterr().out)
        assert code == found["exit_code"] != 0, found
        assert gone.wait(waiting.STALL_SECONDS)
    assert found["code"] in ("no-evidence", "evidence-malformed"), found


@WAYS
def test_connect(play: Callable[[Write], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A verified appliance whose answer never ends: its client is told, or sees it cut off, and it is hung up on."""
    amd = FakeAmd("Genoa")
    monkeypatch.setattr(exchange, "ANSWER_SECONDS", SECONDS)
    monkeypatch.setattr(connection, "WHOLE_SECONDS", SECONDS)
    monkeypatch.setattr(connection, "WHOLE_BYTES", 1 << 20)
    with fake.snp(tmp_path, amd) as (server, path):
        server.raw = play
        verifier = fake.verifier(path, roots=Roots(amd=amd.roots), collateral=_crl(amd))
        channel = Channel(verifier, target.endpoint(server.url))
        with Proxy(channel) as proxy, _in_time():
            threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="sk-x", timeout=60, max_retries=0)
            with pytest.raises((openai.APIError, ValueError)):
                client.chat.completions.create(model="demo", messages=[{"role": "user", "content": "x"}])
            assert server.gone.wait(waiting.STALL_SECONDS)
            proxy.shutdown()
        channel.close()


@WAYS
def test_collateral(play: Callable[[Write], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Collateral from a service: each attempt ends in its time."""
    monkeypatch.setattr(fetch, "ATTEMPTS", 1)
    with _hostile(play) as (url, gone), _in_time():
        source = fetch.source(url, timeout=SECONDS, tell=lambda line: None)
        with pytest.raises(UncheckedEvidenceError) as caught:
            source.get(Request("https://kdsintf.amd.com/vcek/v1/Milan/crl", "crl", "a list", "list"))
        assert gone.wait(waiting.STALL_SECONDS)
    assert "collateral-fetch" == caught.value.code


@WAYS
def test_downloads(play: Callable[[Write], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """A file for the image, from a mirror."""
    monkeypatch.setattr(downloads, "SECONDS", SECONDS)
    monkeypatch.setattr(downloads, "LIMIT", 1 << 20)
    with _hostile(play) as (url, gone), _in_time():
        with pytest.raises(ImageError):
            downloads.fetch(f"{url}/file")
        assert gone.wait(waiting.STALL_SECONDS)


def test_a_proxy_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to CONNECT of the environment's proxy counts, too."""
    monkeypatch.setattr(downloads, "SECONDS", SECONDS)
    with _hostile(_slowly(b"HTTP/1.1 200 OK\r\n", b"a: b\r\n")) as (url, gone), _in_time():
        monkeypatch.setenv("https_proxy", url)
        with pytest.raises(ImageError):
            downloads.fetch("https://mirror.invalid/file")
        assert gone.wait(waiting.STALL_SECONDS)


def test_a_peer_that_does_not_read() -> None:
    """What is sent has a bound, too."""
    near, far = socket.socketpair()
    with near, far, _in_time():
        stream = bounded.Bounded(near)
        stream.allow(0, SECONDS)
        with pytest.raises(TimeoutError):
            stream.sendall(bytes(64 << 20))


def test_addresses_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with a hundred addresses that do not answer has no more time than one."""
    full = socket.create_server(("127.0.0.1", 0), backlog=0)
    with full, contextlib.ExitStack() as stack:
        for _ in range(3):  # fill the backlog: further connections get no answer
            waits = stack.enter_context(socket.socket())
            waits.setblocking(False)
            waits.connect_ex(full.getsockname())
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", full.getsockname())] * 100
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_more: found)
        with _in_time(), pytest.raises(OSError, match="timed out"):
            bounded.dial("name.invalid", 443, SECONDS)
