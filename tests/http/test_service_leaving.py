"""Who ends its side and who is gone: told apart over TCP, Unix sockets and TLS, in a real event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from appliance.attestation.binding import Build
from appliance.attestation.collect.attestor import Attestor, BoundFacts
from appliance.attestation.simulated.collecting.collector import SimulatedProvider
from appliance.http import leaving, protocol, tls
from appliance.http.listen import Door, listen_tcp, listen_unix
from appliance.policy.schema import Listener
from tests.http.test_service_tls import _own_certificate
from tests.support.raw import Client, head

KINDS = ("tcp", "unix", "tls")


class Waiting:
    """An application that answers when it is told to, unless its client leaves before."""

    def __init__(self) -> None:
        self.malformed: list[str] = []
        self.dropped: list[str] = []
        self.asked, self.go_on, self.left = asyncio.Event(), asyncio.Event(), asyncio.Event()

    def refuse_malformed(self, code: str) -> None:
        self.malformed.append(code)

    def count_connection(self, how: str) -> None:
        self.dropped.append(how)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.asked.set()
        gone = asyncio.create_task(self._watch(receive))
        await self.go_on.wait()
        gone.cancel()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})

    async def _watch(self, receive: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()
        self.go_on.set()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, Callable[[Waiting, str], Awaitable[Any]]], Any]:
    """Runs a scenario against our protocol behind a listener of some kind; it gets the listener's URL."""
    def runs(kind: str, scenario: Callable[[Waiting, str], Awaitable[Any]]) -> Any:
        async def main() -> Any:
            app = Waiting()
            return await serve(app, kind, tmp_path, lambda url: scenario(app, url), {})
        return asyncio.run(main())
    return runs


async def serve(app: Any, kind: str, folder: Path, scenario: Callable[[str], Awaitable[Any]], shared: dict[str, Any], *,
                shutdown: float = 5) -> Any:
    """Go through a scenario with the URL of an application's listener."""
    config = uvicorn.Config(app, http=protocol.Protocol, ws="none", lifespan="off", log_config=None,
                            proxy_headers=False, timeout_keep_alive=5)
    config.load()
    place = listen_unix("x", folder / "socket") if kind == "unix" else listen_tcp("x", "127.0.0.1", 0)
    if kind == "tls":
        certificate, key, _ = _own_certificate(folder)
        listener = Listener(name="x", kind="tls", port=1, certificate=str(certificate), private_key=str(key))
        attestor = Attestor(SimulatedProvider(bytes(32)), BoundFacts(bytes(48), bytes(48), Build(version="1")))
        place.tls, place.url = tls.OperatorIdentity(listener, attestor), place.url.replace("http", "https")
    state = uvicorn.server.ServerState()
    door = Door(place, protocol.Arrivals(config, state, shared, 10), handshake=5, shutdown=shutdown)
    try:
        return await asyncio.wait_for(scenario(place.url), 60)
    finally:
        door.close()


GET = head("GET", "/")


@pytest.mark.parametrize("kind", KINDS)
def test_who_ends_its_side_is_waited_for(kind: str, run: Any) -> None:
    """The answer comes, however long it takes, and then the end."""
    async def scenario(app: Waiting, url: str) -> bytes:
        client = await asyncio.to_thread(Client, url)
        with client:
            client.send(GET)
            client.end()
            await app.asked.wait()
            await asyncio.sleep(6 * leaving.LOOK_SECONDS)
            assert not app.left.is_set()
            app.go_on.set()
            return await asyncio.to_thread(client.rest)

    answer = run(kind, scenario)
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("how", ["close", "end and close", "end, later close", "reset", "end and reset"])
@pytest.mark.parametrize("kind", KINDS)
def test_who_is_gone_is_noticed(kind: str, how: str, run: Any) -> None:
    """In whichever way it goes, and soon."""
    async def scenario(app: Waiting, url: str) -> None:
        client = await asyncio.to_thread(Client, url)
        client.send(GET)
        await app.asked.wait()
        if how.startswith("end"):
            client.end()
        if "later" in how:
            await asyncio.sleep(3 * leaving.LOOK_SECONDS)
            assert not app.left.is_set()
        if "reset" in how:
            client.reset()
        client.socket.close()
        await app.left.wait()

    run(kind, scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_answers_to_all_that_came_whole(kind: str, run: Any) -> None:
    """Of requests sent ahead before a client ended its side, each is answered once; a part of one is dropped."""
    async def scenario(app: Waiting, url: str) -> bytes:
        client = await asyncio.to_thread(Client, url)
        with client:
            client.send(GET * 5 + b"GET / HT")
            client.end()
            await app.asked.wait()
            await asyncio.sleep(2 * leaving.LOOK_SECONDS)
            app.go_on.set()
            return await asyncio.to_thread(client.rest)

    assert [b""] + [b" 200 OK\r\ncontent-length: 2\r\n\r\nok"] * 5 == run(kind, scenario).split(b"HTTP/1.1")


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_what_is_thrown_away_is_bounded(kind: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a body that nobody reads, in bytes and in time; what stays silent is ended soon."""
    monkeypatch.setattr(leaving, "QUIET_SECONDS", 0.2)

    async def scenario(app: Waiting, url: str) -> tuple[bytes, int]:
        app.go_on.set()
        client = await asyncio.to_thread(Client, url)
        with client:
            client.send(head("POST", "/", "Content-Length: 1000000000"))
            came = await asyncio.to_thread(client.until, b"ok")
            sent = await asyncio.to_thread(_send, client, 100 << 20)
        silent = await asyncio.to_thread(Client, url)
        with silent:
            silent.send(head("POST", "/", "Content-Length: 1000000000"))
            return came + await asyncio.to_thread(silent.rest), sent

    answers, sent = run(kind, scenario)
    assert 2 == answers.count(b"HTTP/1.1 200")
    assert leaving.DRAIN_BYTES < sent < 20 << 20  # the kernel holds some


def _send(client: Client, most: int) -> int:
    """How many bytes a server takes before it cuts the connection."""
    for sent in range(0, most, 1 << 16):
        try:
            client.push(bytes(1 << 16))
        except OSError:
            return sent
    return most


def test_a_trickle_is_not_read_for_ever(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends the rest of a body byte by byte keeps its connection no longer than others."""
    monkeypatch.setattr(leaving, "DRAIN_SECONDS", 0.5)

    async def scenario(app: Waiting, url: str) -> None:
        app.go_on.set()
        client = await asyncio.to_thread(Client, url)
        with client, contextlib.suppress(OSError):
            client.send(head("POST", "/", "Content-Length: 1000000000"))
            while True:
                client.socket.sendall(b"x")
                await asyncio.sleep(0.05)

    run("tcp", scenario)
