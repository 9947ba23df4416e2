"""`appliance connect` and the httpx transport: nothing leaves before verification, then all passes."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import itertools
import json
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import httpx
import httpx2
import openai
import pytest

from appliance.attestation.trust.roots import Roots
from appliance.client import Channel, Verifier, async_transport, target, transport
from appliance.client.proxy import Proxy, diverted
from appliance.client.verdict import SIMULATED, Verdict
from appliance.errors import PolicyError, RejectedEvidenceError
from appliance.policy import load
from appliance.policy.digest import host_data
from tests.client.test_client_verify import _crl
from tests.support import fake_appliance as fake
from tests.support import forked, waiting
from tests.support.environment import unmeasured
from tests.support.fake_amd import FakeAmd
from tests.support.fake_appliance import FakeAppliance
from tests.support.require import absent

AMD = FakeAmd("Genoa")
PROMPT = "the-canary-in-the-prompt"
CHAT: dict[str, Any] = {"model": "demo", "messages": [{"role": "user", "content": PROMPT}], "stream": True}
CHUNK = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "demo", "choices": [
    {"index": 0, "delta": {"content": "ok"}, "finish_reason": None}]}


def _events(*texts: str) -> list[bytes]:
    made = []
    for text in texts:
        chunk = json.loads(json.dumps(CHUNK))
        chunk["choices"][0]["delta"]["content"] = text
        made.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    return [*made, b"data: [DONE]\n\n"]


def _verifier(path: Path) -> Verifier:
    return fake.verifier(path, roots=Roots(amd=AMD.roots), collateral=_crl(AMD))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[FakeAppliance, Path]]:
    """An appliance on SEV-SNP."""
    with fake.snp(tmp_path, AMD) as found:
        found[0].pieces = _events("one", "two")
        yield found


@contextlib.contextmanager
def _proxy(running: tuple[FakeAppliance, Path], **options: Any) -> Iterator[tuple[Proxy, list[Verdict]]]:
    told: list[Verdict] = []
    channel = Channel(_verifier(running[1]), target.endpoint(running[0].url), tell=told.append, **options)
    with Proxy(channel) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield proxy, told
        proxy.shutdown()
        thread.join()
    channel.close()


def _openai(url: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="sk-secret-key", timeout=20, **options)


def _chat(client: openai.OpenAI) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**CHAT))


def test_the_official_client_chats_through_the_proxy(running: tuple[FakeAppliance, Path]) -> None:
    """Verified once, then used; another chat within the life of the verdict asks for no more evidence."""
    with _proxy(running) as (proxy, told):
        plain = httpx.Client(trust_env=False)
        for _ in range(2):  # read to the end: the connection is back before the last chunk is here
            assert "two" in plain.post(f"{proxy.url}/v1/chat/completions", json=CHAT).text
        assert ["verified"] == [each.status for each in told]
        assert ["GET /v1/attestation", "POST /v1/chat/completions", "POST /v1/chat/completions"] == running[0].asked
        assert _chat(_openai(proxy.url)) == "onetwo"
    assert {"verified"} == {each.status for each in told}
    assert PROMPT.encode() in running[0].received


def test_a_client_that_leaves_just_before_the_end_costs_no_connection(running: tuple[FakeAppliance, Path]) -> None:
    """SDKs leave at `[DONE]`, before an answer's last chunk. What is there of it is read, so the next chat is on the
    same connection, verified already."""
    running[0].at_once = True
    told: list[Verdict] = []
    with transport(_verifier(running[1]), tell=told.append) as made:
        client = _openai(running[0].url, http_client=httpx.Client(transport=made, trust_env=False))
        assert ["onetwo"] * 3 == [_chat(client) for _ in range(3)]
    assert ["verified"] == [each.status for each in told]


SLEPT = """
import ctypes, json, os, sys
from pathlib import Path
from appliance.attestation.trust.roots import Roots
from appliance.client import Channel, target
from tests.support import fake_appliance as fake

verifier = fake.verifier(Path(sys.argv[1]), roots=Roots(amd=json.loads(sys.argv[4])), need_revocation=False)
told = []
channel = Channel(verifier, target.endpoint(sys.argv[2]), tell=told.append)
channel.give(channel.take())
channel.give(channel.take())
print(len(told))
there = os.open(f"/proc/{sys.argv[3]}/ns/time", os.O_RDONLY)
assert ctypes.CDLL(None, use_errno=True).setns(there, 0x80) == 0, os.strerror(ctypes.get_errno())
channel.take()
print(len(told))
"""


def test_a_verdict_ages_while_the_machine_sleeps(running: tuple[FakeAppliance, Path]) -> None:
    """In a namespace of the kernel whose clock since the boot is past a verdict's life, and whose monotonic one is as
    it was, as after a suspension: the next connection is verified."""
    command = ["unshare", "--time", "--fork", "--kill-child", "--boottime", "600"]
    if shutil.which("unshare") is None or subprocess.run([*command, "true"], check=False).returncode:
        absent("the right to make time namespaces")
    command += ["sh", "-c", "echo $$; exec sleep 60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as asleep:
        assert asleep.stdout is not None
        there = asleep.stdout.readline().strip()
        done = subprocess.run([sys.executable, "-c", SLEPT, running[1], running[0].url, there,
                               json.dumps(AMD.roots)], env=unmeasured(), capture_output=True, text=True, check=False)
        asleep.kill()
    assert (0, "1\n2\n") == (done.returncode, done.stdout), done.stderr


def _other_key(server: FakeAppliance) -> None:
    server.rotate(bind=False)


def _replay(server: FakeAppliance) -> None:
    old = server.attestor.attest(bytes(32)).to_json()
    server.evidence = lambda nonce: old


def _debug(server: FakeAppliance) -> None:
    source = server.attestor._provider
    assert isinstance(source, fake.SnpSource)
    source.fields = {"policy": 1 << 17 | 1 << 19}


def _garbage(server: FakeAppliance) -> None:
    server.evidence = lambda nonce: b"\x00" * 100


def _forged(server: FakeAppliance) -> None:
    server.evidence = lambda nonce: server.attestor.attest(nonce).to_json().replace(b'"version":"0.1.0"',
                                                                                    b'"version":"0.1.1"')


def _stranger(server: FakeAppliance) -> None:
    source = server.attestor._provider
    assert isinstance(source, fake.SnpSource)
    source.amd = FakeAmd("Milan")


FAILURES: list[tuple[Callable[[FakeAppliance], None], str]] = [
    (_other_key, "evidence-tls-key"), (_replay, "evidence-nonce"), (_debug, "evidence-debug"),
    (_garbage, "evidence-malformed"), (_forged, "report-data-mismatch"), (_stranger, "snp-product")]


@pytest.mark.parametrize(("spoil", "code"), FAILURES, ids=[each[1] for each in FAILURES])
def test_no_byte_of_a_prompt_leaves_when_a_check_fails(running: tuple[FakeAppliance, Path],
                                                       spoil: Callable[[FakeAppliance], None], code: str) -> None:
    """The server records every byte that it gets: a nonce, and nothing of key or prompt."""
    server = running[0]
    spoil(server)
    with _proxy(running) as (proxy, _), pytest.raises(openai.InternalServerError) as caught:
        _chat(_openai(proxy.url))
    assert (502, code) == (caught.value.status_code, caught.value.code)
    assert "not sent" in caught.value.message
    _nothing_but_nonces(server)
    assert ["GET /v1/attestation"] == server.asked  # the client did not even try again


def _nothing_but_nonces(server: FakeAppliance) -> None:
    received = bytes(server.received)
    assert PROMPT.encode() not in received
    assert b"sk-secret-key" not in received
    assert b"POST" not in received
    heads = received.split(b"\r\n\r\n")
    assert b"" == heads.pop()
    for head in heads:
        lines = head.split(b"\r\n")
        assert lines[0].startswith(b"GET /v1/attestation?nonce=")
        assert {b"Host", b"Accept"} == {line.partition(b":")[0] for line in lines[1:]}


def _nothing_but_nonces_after(server: FakeAppliance, before: int) -> None:
    server.received[:before] = b""
    _nothing_but_nonces(server)


POST = (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer sk-secret-key\r\n"
        b"Content-Length: 24\r\n%s\r\n" + PROMPT.encode())


@pytest.mark.parametrize(("sent", "answers"), [
    (POST % b"" * 2, 2), (POST % b"Connection: Upgrade\r\nUpgrade: h2c\r\n", 1), (POST % b"Priority: u=0\r\n", 1),
    (POST.replace(b"POST /", b"GET /") % b"", 1), (POST.replace(b"POST /", b"OPTIONS //evil.example/") % b"", 1),
], ids=["pipelined", "upgrade", "another header", "a body with GET", "two slashes"])
def test_no_way_to_ask_gets_a_prompt_out(running: tuple[FakeAppliance, Path], sent: bytes, answers: int) -> None:
    """Whatever a client does with HTTP: each request is refused by itself, and the server sees nonces alone."""
    _debug(running[0])
    with _proxy(running) as (proxy, _), socket.create_connection(
            ("127.0.0.1", int(proxy.server_address[1])), timeout=10) as sock:
        sock.sendall(sent)
        for _ in range(answers):
            answer = http.client.HTTPResponse(sock)
            answer.begin()
            assert (502, "evidence-debug") == (answer.status, json.loads(answer.read())["error"]["code"])
    _nothing_but_nonces(running[0])


@pytest.mark.parametrize("status", [101, 301, 302, 303, 304, 307, 308])
def test_redirects_are_refused(running: tuple[FakeAppliance, Path], tmp_path: Path, status: int) -> None:
    """An SDK would follow one by itself, to where nothing was verified; neither proxy nor transport passes one on."""
    server, path = running
    (tmp_path / "elsewhere").mkdir()
    with fake.simulated(tmp_path / "elsewhere", tls=False) as (elsewhere, _):
        server.status = (status, f"{elsewhere.url}/v1/chat/completions")
        with _proxy(running) as (proxy, _), pytest.raises(openai.InternalServerError) as caught:
            _chat(_openai(proxy.url, max_retries=0))
        assert (502, "redirected") == (caught.value.status_code, caught.value.code)
        with httpx.Client(transport=transport(_verifier(path)), follow_redirects=True) as plain:
            answer = plain.post(f"{server.url}/v1/chat/completions", json=CHAT)
        assert (502, "redirected") == (answer.status_code, answer.json()["error"]["code"])
        assert not elsewhere.received


def test_the_environments_proxies_are_not_used(running: tuple[FakeAppliance, Path],
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections go to the appliance itself, whatever variables say; a listener in the proxy's place hears nothing."""
    server, path = running
    with socket.create_server(("127.0.0.1", 0)) as spy:
        spy.settimeout(0.1)
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{spy.getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with httpx.Client(transport=transport(_verifier(path))) as plain:
            assert "onetwo" == _chat(_openai(server.url, http_client=plain))
        with pytest.raises(TimeoutError):
            spy.accept()


@pytest.mark.parametrize(("environment", "found"), [
    ({}, None), ({"http_proxy": "http://u:pw@proxy.example:3128"}, "proxy.example:3128"),
    ({"all_proxy": "socks5://proxy.example"}, "proxy.example"), ({"https_proxy": "http://proxy.example"}, None),
    ({"http_proxy": "http://proxy.example", "no_proxy": "127.0.0.1"}, None)])
def test_a_proxy_between_sdk_and_port_is_found(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str],
                                               found: str | None) -> None:
    """An SDK would send prompts for the local port there in the clear; a password in it is not shown."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert found == diverted("http://127.0.0.1:9000")


def test_over_ipv6(tmp_path: Path) -> None:
    """Both sides on ::1."""
    path = fake.write_policy(tmp_path, "sev-snp")
    policy = load(path)
    server = FakeAppliance(fake.attestor(fake.SnpSource(AMD, host_data(policy.digest)), policy), tmp_path, host="::1")
    server.pieces = _events("one", "two")
    try:
        channel = Channel(_verifier(path), target.endpoint(server.url))
        with Proxy(channel, "::1") as proxy:
            threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
            assert proxy.url.startswith("http://[::1]:")
            assert "onetwo" == _chat(_openai(proxy.url))
            channel.close()
            server.rotate(bind=False)
            before = len(server.received)
            with pytest.raises(openai.InternalServerError, match="splice"):
                _chat(_openai(proxy.url))
            _nothing_but_nonces_after(server, before)
            proxy.shutdown()
    finally:
        server.stop()


def test_a_name_that_moves_is_verified_again(running: tuple[FakeAppliance, Path], tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that answers with somebody else after the first time (rebinding): another key, so another verdict."""
    server, path = running
    other = FakeAppliance(server.attestor, tmp_path)
    server.rotate()  # its own key is bound again; the other's is not
    places = iter((server, other, other))
    real = socket.getaddrinfo

    def resolve(host: str, port: int, *more: Any, **words: Any) -> Any:
        if host != "appliance.test":
            return real(host, port, *more, **words)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", next(places).server_address[1]))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    try:
        with httpx.Client(transport=transport(_verifier(path))) as plain:
            client = _openai("https://appliance.test:8443", http_client=plain)
            assert "onetwo" == _chat(client)
            plain._transport._channels.close()  # type: ignore[attr-defined]
            with pytest.raises(openai.InternalServerError, match="splice"):
                _chat(client)
    finally:
        other.stop()
    _nothing_but_nonces(other)


def test_a_failure_after_success_refuses_too(running: tuple[FakeAppliance, Path]) -> None:
    """When the verdict's life is over, a machine that has turned bad gets nothing more."""
    server = running[0]
    with _proxy(running, life=0.0) as (proxy, told):
        client = _openai(proxy.url)
        assert "onetwo" == _chat(client)
        before = bytes(server.received)
        _debug(server)
        with pytest.raises(openai.InternalServerError, match="host may decrypt"):
            _chat(client)
    assert ["verified", "policy not met"] == [each.status for each in told]
    assert PROMPT.encode() not in bytes(server.received)[len(before):]


def test_a_rotated_key_is_verified_before_it_is_used(running: tuple[FakeAppliance, Path]) -> None:
    """A new TLS key, newly attested: verified again, at once. A new key that is not attested: refused."""
    server = running[0]
    with _proxy(running) as (proxy, told):
        client = _openai(proxy.url)
        assert "onetwo" == _chat(client)
        channel: Channel = cast(Any, proxy.send).args[0]
        channel.close()  # its idle connections are gone, as after a while
        server.rotate()
        assert "onetwo" == _chat(client)
        assert ["verified", "verified"] == [each.status for each in told]
        assert told[0].spki_sha256 != told[1].spki_sha256
        server.rotate(bind=False)
        for _ in range(20):  # the connection of the answer before may come back yet, and is as good as it was
            channel._idle.clear()
            before, found = len(server.received), ""
            try:
                _chat(client)
            except openai.InternalServerError as error:
                found = str(error)
                break
        assert "splice" in found
    assert PROMPT.encode() not in bytes(server.received)[before:]


def test_answers_stream_piece_by_piece(running: tuple[FakeAppliance, Path]) -> None:
    """The first event is there long before the last was made."""
    server = running[0]
    server.pieces, server.delay = _events("a", "b", "c", "d"), 0.2
    with _proxy(running) as (proxy, _):
        times = [time.monotonic() for _ in _openai(proxy.url).chat.completions.create(**CHAT)]
    assert times[-1] - times[0] > 0.4
    gaps = [after - before for before, after in itertools.pairwise(times)]
    assert min(gaps) > 0.1


def test_a_client_that_goes_away_ends_the_answer(running: tuple[FakeAppliance, Path]) -> None:
    """The appliance sees that nobody reads, and can stop."""
    server = running[0]
    server.pieces, server.delay = _events(*"abcdefghijklmnopqrst"), 0.1
    with _proxy(running) as (proxy, _):
        stream = _openai(proxy.url).chat.completions.create(**CHAT)
        next(iter(stream))
        stream.close()
        assert server.gone.wait(waiting.STALL_SECONDS)


def test_a_client_that_goes_away_before_its_answer_ends_it(running: tuple[FakeAppliance, Path]) -> None:
    """The appliance sees that nobody waits, before it has said a word: through the proxy and the transport."""
    server, path = running
    with _proxy(running) as (proxy, _):
        assert "onetwo" == _chat(_openai(proxy.url))
        server.mute = True
        with pytest.raises(openai.APITimeoutError):
            _openai(proxy.url).with_options(timeout=0.5, max_retries=0).chat.completions.create(**CHAT)
        assert server.gone.wait(waiting.STALL_SECONDS)
    server.gone.clear()

    async def leave() -> None:
        async with httpx.AsyncClient(transport=async_transport(_verifier(path))) as client:
            late = asyncio.create_task(client.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=600))
            while len(server.asked) < asked + 2:  # evidence, then the request
                await asyncio.sleep(0.02)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            assert await asyncio.to_thread(server.gone.wait, waiting.STALL_SECONDS)

    asked = len(server.asked)
    asyncio.run(leave())


def test_nobody_there_is_said_and_may_be_tried_again(tmp_path: Path) -> None:
    """503, and a client may come again; nothing was sent."""
    path = fake.write_policy(tmp_path, "sev-snp")
    channel = Channel(_verifier(path), target.endpoint("https://127.0.0.1:1"))
    with Proxy(channel) as proxy:
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        with pytest.raises(openai.InternalServerError) as caught:
            _chat(_openai(proxy.url, max_retries=0))
        assert (503, "unreachable", "true") == (
            caught.value.status_code, caught.value.code, caught.value.response.headers["x-should-retry"])
        proxy.shutdown()


def test_simulated_appliances_need_a_word(tmp_path: Path) -> None:
    """Refused unless explicitly accepted, and then still called simulated."""
    with fake.simulated(tmp_path, tls=False) as (server, path):
        verifier = fake.verifier(path, roots=Roots())
        with pytest.raises(RejectedEvidenceError):
            Channel(verifier, target.endpoint(server.url)).verify()
        channel = Channel(verifier, target.endpoint(server.url), accept=(SIMULATED,))
        assert SIMULATED == channel.verify().status
        channel.close()


def test_a_proxy_listens_on_the_loopback_alone(tmp_path: Path) -> None:
    """What it receives is in the clear."""
    channel = Channel(_verifier(fake.write_policy(tmp_path, "sev-snp")), target.endpoint("https://127.0.0.1:1"))
    for host in ("0.0.0.0", "10.0.0.1", "::"):  # noqa: S104 - it must be refused
        with pytest.raises(PolicyError):
            Proxy(channel, host)
    with Proxy(channel) as first, pytest.raises(PolicyError, match="cannot listen"):
        Proxy(channel, port=first.server_address[1])


def _raw(proxy: Proxy, request: bytes) -> tuple[int, bytes]:
    with socket.create_connection(("127.0.0.1", int(proxy.server_address[1])), timeout=10) as sock:
        sock.sendall(request)
        answer = http.client.HTTPResponse(sock)
        answer.begin()
        return answer.status, answer.read()


@pytest.mark.parametrize(("request_", "status", "code"), [
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411, "length-required"),
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 411,
     "length-required"),
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: +1\r\n\r\na", 411, "length-required"),
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n", 413, "body-too-large"),
    (b"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421, "wrong-host"),
    (b"GET /v1/models HTTP/1.1\r\n\r\n", 421, "wrong-host"),
    (b"GET http://127.0.0.1/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed-request"),
    (b"CONNECT a.example:443 HTTP/1.1\r\nHost: localhost\r\n\r\n", 501, "malformed-request"),
    (b"garbage\r\n\r\n", 400, "malformed-request"),
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nno header\r\nContent-Length: 2\r\n\r\nab", 400, "malformed-request"),
    (b"POST /v1/x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400,
     "malformed-request"),
    (b"GET https://evil.example/v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", 400, "malformed-request"),
    (b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1.evil.example\r\n\r\n", 421, "wrong-host"),
    (b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n", 400, "malformed-request"),
    (b"GET /v1/models HTTP/2.0\r\nHost: localhost\r\n\r\n", 505, "malformed-request"),
])
def test_requests_that_mean_two_things_are_refused(running: tuple[FakeAppliance, Path], request_: bytes, status: int,
                                                   code: str) -> None:
    """In OpenAI's shape, and before anything is asked of the appliance."""
    with _proxy(running) as (proxy, _):
        found, body = _raw(proxy, request_)
    assert (status, code) == (found, json.loads(body)["error"]["code"])
    assert not running[0].received


def test_headers_pass_but_for_those_of_the_connection(running: tuple[FakeAppliance, Path]) -> None:
    """What the client says arrives, with the appliance's own host; hop-by-hop headers do not."""
    with _proxy(running) as (proxy, _):
        answer = httpx.get(f"{proxy.url}/v1/models?x=1", headers={
            "Authorization": "Bearer k", "X-Own": "kept", "Connection": "x-named, close", "X-Named": "dropped",
            "Proxy-Authorization": "dropped", "TE": "trailers", "Upgrade": "websocket"})
    found = dict(answer.json()["headers"])
    assert "/v1/models?x=1" == answer.json()["path"]
    assert ("Bearer k", "kept", running[0].url.partition("//")[2]) == (
        found["Authorization"], found["X-Own"], found["Host"])
    assert not {"X-Named", "Connection", "Proxy-Authorization", "Te", "Upgrade"} & {name.title() for name in found}


@pytest.mark.parametrize("kind", [httpx.Client, httpx2.Client, openai.DefaultHttpxClient])
def test_the_httpx_transport_under_the_official_client(kind: Callable[..., Any],
                                                       running: tuple[FakeAppliance, Path]) -> None:
    """No proxy: the client's own connections are verified ones; a refusal reaches it as an error that says why."""
    server, path = running
    with kind(transport=transport(_verifier(path), life=0.0)) as plain:
        client = _openai(server.url, http_client=plain)
        assert "onetwo" == _chat(client)
        server.asked.clear()
        _debug(server)
        before = len(server.received)
        with pytest.raises(openai.InternalServerError, match="debug: the host may decrypt the guest"):
            _chat(client)
        assert PROMPT.encode() not in bytes(server.received)[before:]
        assert ["GET /v1/attestation"] == server.asked


@pytest.mark.parametrize("kind", [httpx.AsyncClient, httpx2.AsyncClient, openai.DefaultAsyncHttpxClient])
def test_the_asynchronous_transport(kind: Callable[..., Any], running: tuple[FakeAppliance, Path]) -> None:
    """The same under the asynchronous client, several at once, and left early."""
    server, path = running
    server.pieces, server.delay = _events("one", "two"), 0.05

    async def chat(client: openai.AsyncOpenAI) -> str:
        return "".join([chunk.choices[0].delta.content or ""
                        async for chunk in await client.chat.completions.create(**CHAT)])

    async def several() -> list[str]:
        async with kind(transport=async_transport(_verifier(path))) as plain:
            client = openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="k", http_client=plain, timeout=20)
            answers = await asyncio.gather(*(chat(client) for _ in range(4)))
            server.pieces = _events(*"abcdefghijklmnop")
            stream = await client.chat.completions.create(**CHAT)
            await anext(aiter(stream))
            await stream.close()
            return list(answers)

    assert ["onetwo"] * 4 == asyncio.run(several())
    assert server.gone.wait(waiting.STALL_SECONDS)


def test_many_asynchronous_requests_are_on_their_way_at_once(running: tuple[FakeAppliance, Path]) -> None:
    """Far more than an event loop has threads: the appliance answers none before it has all. Who leaves before the
    answer comes leaves the appliance, too."""
    server, path = running
    together, begun, left = threading.Barrier(40), threading.Event(), threading.Event()

    async def chat(client: httpx.AsyncClient) -> int:
        return (await client.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=600)).status_code

    def hold() -> None:
        begun.set()
        left.wait(60)

    async def several() -> list[int]:
        async with httpx.AsyncClient(transport=async_transport(_verifier(path))) as client:
            assert 200 == await chat(client)
            server.hold = lambda: together.wait(60)
            found = await asyncio.gather(*(chat(client) for _ in range(together.parties)))
            server.hold = hold
            server.pieces, server.delay = _events(*"abcdefghijklmnop") * 40, 0.02
            late = asyncio.create_task(chat(client))
            assert await asyncio.to_thread(begun.wait, 60)
            late.cancel()
            with pytest.raises(asyncio.CancelledError):
                await late
            left.set()
            assert await asyncio.to_thread(server.gone.wait, 10)
            return found

    assert [200] * together.parties == asyncio.run(several())


@pytest.mark.parametrize("package", [httpx, httpx2])
def test_an_answer_that_breaks_off_is_seen_as_such(package: Any, running: tuple[FakeAppliance, Path]) -> None:
    """A stream that the network cuts is an error, never a short answer."""
    server, path = running

    def cut(*_: Any) -> Iterator[bytes]:
        yield _events("one")[0]
        raise OSError("cut")

    server.pieces = cut()  # type: ignore[assignment]
    with package.Client(transport=transport(_verifier(path))) as plain, pytest.raises(package.ReadError):
        plain.post(f"{server.url}/v1/chat/completions", json=CHAT)


def test_a_verdict_that_is_not_accepted_has_a_code(tmp_path: Path) -> None:
    """A program that reads the code of the SDK's error finds one."""
    with fake.simulated(tmp_path) as (server, path), openai.DefaultHttpxClient(
            transport=transport(_verifier(path))) as plain, pytest.raises(openai.InternalServerError) as caught:
        _chat(_openai(server.url, http_client=plain))
    assert "simulated" == caught.value.code


@pytest.fixture(scope="module")
def lasting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """The words of `connect` for a simulated appliance whose certificate holds for long."""
    with fake.simulated(tmp_path_factory.mktemp("lasting")) as (server, path):
        key = fake.key()
        server.rotate(key, der=fake.certificate(key, end=datetime(2090, 1, 1, tzinfo=UTC)))
        server.pieces = _events("one", "two")
        yield ["connect", server.url, "--policy", str(path), "--json"]


def test_the_command_line_needs_a_word_for_a_simulated_appliance(lasting: list[str]) -> None:
    """`connect` says what it verified, and that it is not accepted."""
    refused = subprocess.run([sys.executable, "-m", "appliance", *lasting], capture_output=True, text=True, timeout=600)
    verdict, error = (json.loads(line) for line in refused.stderr.splitlines())
    assert (5, "simulated") == (refused.returncode, verdict["verdict"])
    assert ("error", 5, "simulated") == (error["event"], error["exit_code"], error["code"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_command_line_serves_until_a_signal(number: signal.Signals, lasting: list[str]) -> None:
    """`connect` says what it verified and where it listens; a simulated appliance needs --accept."""
    environment = {**unmeasured(), "http_proxy": "http://user:secret@192.0.2.1:3128", "no_proxy": ""}
    with forked.piped([*lasting, "--accept", "simulated"], environment,
                      "from appliance.__main__ import start; start()") as process:
        assert process.stderr is not None
        verdict, ready, warning = (json.loads(process.stderr.readline()) for _ in range(3))
        assert ("simulated", "ready") == (verdict["verdict"], ready["event"])
        assert "environment-proxy" == warning["code"]
        assert "secret" not in warning["reason"]
        assert "onetwo" == _chat(_openai(ready["listening"]))
        process.send_signal(number)
        assert 0 == process.wait(30)
