"""Answers that wait for their windows when a connection ends, or goes on: in a real event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.http import leaving
from appliance.http.departures import Departures
from appliance.http.windows import Windows
from tests.http.test_service_leaving import KINDS, _send, serve
from tests.support.raw import Client, head

INTERVAL = 0.04


class Held:
    """An application whose answers leave in a window after as many seconds as their path says."""

    def __init__(self) -> None:
        self.waiting = asyncio.Event()
        self.due: list[float] = []

    def refuse_malformed(self, code: str) -> None:
        """Nothing to note."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        gate, own = scope["state"]["gate"], object()
        due = time.monotonic() + float(scope["path"][1:])
        self.due.append(due)
        gate.hold(own)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok", "more_body": False})
        self.waiting.set()
        await gate.leave(due, own)
        gate.release(own)


Scenario = Callable[[Held, Client], Awaitable[Any]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[str, Scenario], Any]:
    """Runs a scenario with a client of a listener of some kind, whose end over TLS has little time."""
    def runs(kind: str, scenario: Scenario) -> Any:
        async def main() -> Any:
            app, departures = Held(), Departures(Windows.of(INTERVAL, INTERVAL))

            async def connected(url: str) -> Any:
                with await asyncio.to_thread(Client, url) as client:
                    return await scenario(app, client)

            try:
                return await serve(app, kind, tmp_path, connected, {"departures": departures}, shutdown=0.2)
            finally:
                departures.close()
        return asyncio.run(main())
    return runs


@pytest.mark.parametrize("ahead", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_who_ends_its_side_while_an_answer_waits_gets_it(kind: str, ahead: int, run: Any) -> None:
    """Of each request that came whole; then the connection ends."""
    async def scenario(app: Held, client: Client) -> bytes:
        client.send(head("GET", "/0.5") * ahead)
        await app.waiting.wait()
        client.end()
        return await asyncio.to_thread(client.rest)

    assert ahead == run(kind, scenario).count(b"\r\n\r\nok")


@pytest.mark.parametrize("kind", KINDS)
def test_an_end_by_the_server_has_its_time_after_the_answer(kind: str, run: Any) -> None:
    """However long that waits."""
    async def scenario(app: Held, client: Client) -> bytes:
        client.send(head("GET", "/1", "Connection: close"))
        return await asyncio.to_thread(client.rest)

    assert run(kind, scenario).endswith(b"\r\n\r\nok")


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_with_a_body_that_nobody_reads_ends(kind: str, run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its answer; the client may send a bounded part of it."""
    monkeypatch.setattr(leaving, "QUIET_SECONDS", 0.2)

    async def scenario(app: Held, client: Client) -> tuple[bytes, int]:
        client.send(head("POST", "/0.5", "Content-Length: 1000000000", "Connection: close"))
        came = await asyncio.to_thread(client.until, b"ok")
        return came, await asyncio.to_thread(_send, client, 100 << 20)

    answer, sent = run(kind, scenario)
    assert answer.endswith(b"\r\n\r\nok")
    assert sent < 20 << 20  # the kernel holds some


@pytest.mark.parametrize("kind", KINDS)
def test_requests_sent_ahead_are_answered_in_windows_of_their_own(kind: str, run: Any) -> None:
    """The second answer is made while the first one waits, and is not released with it."""
    async def scenario(app: Held, client: Client) -> None:
        client.send(head("GET", "/0.2") + head("GET", "/1"))
        for number in range(2):
            await asyncio.to_thread(client.until, b"ok")
            assert time.monotonic() >= app.due[number] - INTERVAL

    run(kind, scenario)
