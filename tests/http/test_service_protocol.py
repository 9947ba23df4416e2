"""Connections that misbehave, evidence that is shared, and handlers that fail: each in a real event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import uvicorn

from appliance.api.problems import RequestError
from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.http import protocol
from appliance.http.body import unless_gone
from appliance.service.attesting.evidences import Evidences
from tests.support import waiting


class Echo:
    """An application that answers with ten megabytes or with two letters, or waits for its client to leave, and notes
    what was malformed."""

    def __init__(self) -> None:
        self.malformed: list[str] = []
        self.dropped: list[str] = []
        self.waiting, self.left = asyncio.Event(), asyncio.Event()

    def refuse_malformed(self, code: str) -> None:
        self.malformed.append(code)

    def count_connection(self, how: str) -> None:
        self.dropped.append(how)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/wait":
            self.waiting.set()
            while (await receive())["type"] != "http.disconnect":
                pass
            self.left.set()
            return
        body = b"x" * 10_000_000 if scope["path"] == "/large" else b"ok"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        for place in range(0, len(body), 100_000):
            await send({"type": "http.response.body", "body": body[place:place + 100_000], "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _run(scenario: Callable[[Echo, int], Any]) -> Any:
    """Run a scenario against our protocol on a port."""
    async def main() -> Any:
        app = Echo()
        config = uvicorn.Config(app, http=protocol.Protocol, ws="none", lifespan="off", log_config=None,
                                proxy_headers=False, h11_max_incomplete_event_size=4096, timeout_keep_alive=1)
        config.load()
        state = uvicorn.server.ServerState()
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            lambda: protocol.Protocol(config, state, {}, loop), "127.0.0.1", 0)  # type: ignore[arg-type]
        async with server:
            return await asyncio.wait_for(scenario(app, server.sockets[0].getsockname()[1]), 20)
    return asyncio.run(main())


SLOW = [b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\nGET /"]


@pytest.mark.parametrize("data", SLOW)
def test_slow_heads_are_cut_off(data: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A head that never ends is cut off in time, on a fresh connection and after a request."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)

    async def scenario(_app: Echo, port: int) -> float:
        begun = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        return asyncio.get_running_loop().time() - begun

    assert 0.2 < _run(scenario) < 5


def test_trickled_heads_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending a byte now and then buys no time."""
    monkeypatch.setattr(protocol, "HEAD_SECONDS", 0.3)

    async def scenario(_app: Echo, port: int) -> int:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for sent, byte in enumerate(b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 100):
            try:
                writer.write(bytes([byte]))
                await writer.drain()
            except ConnectionError:
                return sent
            await asyncio.sleep(0.05)
        return 1000

    assert _run(scenario) < 30


@pytest.mark.parametrize(("length", "sent"), [(5, 1), (5, 5), (10_000, 1000)])
def test_bodies_answered_before_they_came_are_cut_off(length: int, sent: int) -> None:
    """A part of a body after its answer, all of it or a trickle: the connection ends as an idle one does."""
    async def scenario(_app: Echo, port: int) -> float:
        begun = asyncio.get_running_loop().time()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length)
        await reader.readuntil(b"ok")
        for _ in range(sent):
            if not reader.at_eof():
                writer.write(b"x")
                await asyncio.sleep(0.01)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()
        return asyncio.get_running_loop().time() - begun

    assert 0.9 < _run(scenario)


def test_a_body_answered_before_it_came_leaves_the_connection_usable() -> None:
    """The next request on it is answered."""
    async def scenario(_app: Echo, port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\n")
        await reader.readuntil(b"ok")
        writer.write(b"xxxxxGET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await reader.readuntil(b"ok")
        writer.close()
        return answer

    assert _run(scenario).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("ahead", [b"", b"\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_client_that_leaves_is_seen(ahead: bytes) -> None:
    """Also one that had sent more by then."""
    async def scenario(app: Echo, port: int) -> None:
        _reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n")
        await app.waiting.wait()
        writer.write(ahead)
        await asyncio.sleep(0.2)
        writer.close()
        await asyncio.wait_for(app.left.wait(), waiting.STALL_SECONDS)

    _run(scenario)


def test_clients_that_take_nothing_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks for much and reads none of it does not hold its connection."""
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.4)

    async def scenario(_app: Echo, port: int) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        await asyncio.sleep(2)
        total = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                total += len(part)
        writer.close()
        return total

    assert _run(scenario) < 10_000_000


def test_clients_that_take_little_are_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with a small window that reads on, slowly, keeps its connection for longer than one that takes nothing:
    neither the service nor the kernel ends it."""
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 2.0)

    async def scenario(_app: Echo, port: int) -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            await loop.sock_connect(client, ("127.0.0.1", port))
            await loop.sock_sendall(client, b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
            begun, total = loop.time(), 0
            while loop.time() < begun + 8:
                part = await loop.sock_recv(client, 4096)
                assert part
                total += len(part)
                await asyncio.sleep(0.25)
            return total, loop.time() - begun

    total, seconds = _run(scenario)
    assert 60_000 < total < 200_000  # of ten million
    assert seconds > 3 * protocol.WRITE_SECONDS


MALFORMED = [(b"\x16\x03\x01 hello\r\n\r\n", 400, "malformed_request"), (b"x" * 9000, 431, "headers_too_large"),
             (b"GET / HTTP/1.1\r\n\r\n", 400, "malformed_request"),
             (b"GET / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n", 400, "malformed_request")]


@pytest.mark.parametrize(("data", "status", "code"), MALFORMED)
def test_bytes_that_are_no_request(data: bytes, status: int, code: str) -> None:
    """What is not HTTP gets OpenAI's shape, is reported by code, and ends the connection."""
    async def scenario(app: Echo, port: int) -> tuple[bytes, list[str]]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        answer = await reader.read()
        writer.close()
        return answer, app.malformed

    answer, noted = _run(scenario)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert str(status) == head.split()[1].decode()
    assert code == json.loads(body)["error"]["code"] == noted[0]


def test_one_report_for_many_nonces() -> None:
    """Nonces that arrive together share reports, and each gets a proof of its own."""
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
    evidences = Evidences(attestor)

    async def ask() -> list[Any]:
        return await asyncio.gather(*(evidences.for_nonce([bytes([number]).hex() * 32]) for number in range(50)))

    found = asyncio.run(ask())
    assert [bytes([number]).hex() * 32 for number in range(50)] == [evidence.proof.nonce for evidence in found]
    assert len({evidence.report for evidence in found}) <= 2


@pytest.mark.parametrize("nonces", [[], [""], ["00"], ["!!" * 16], ["00" * 65], ["00" * 32] * 2])
def test_bad_nonces(nonces: list[str]) -> None:
    """A nonce that is missing, malformed or not alone is refused by name."""
    attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
    with pytest.raises(RequestError) as caught:
        asyncio.run(Evidences(attestor).for_nonce(nonces))
    assert "nonce" == caught.value.param


def test_work_ends_with_its_client() -> None:
    """Work is cancelled as soon as the client is gone, and its result passes when it is not."""
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return "done"

    def receiver(*kinds: str) -> Callable[[], Any]:
        messages: AsyncIterator[Any] = _messages(list(kinds))
        return lambda: anext(messages)

    assert "done" == asyncio.run(unless_gone(receiver("wait"), work()))
    with pytest.raises(RequestError) as caught:
        asyncio.run(unless_gone(receiver("http.request", "http.disconnect"), work()))
    assert ("client_closed_request", ["cancelled"]) == (caught.value.code, ended)


async def _messages(kinds: list[str]) -> AsyncIterator[Any]:
    for kind in kinds:
        if kind == "wait":
            await asyncio.sleep(60)
        yield {"type": kind}
