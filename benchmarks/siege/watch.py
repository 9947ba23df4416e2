"""The look of others at a service beside a hostile tenant: `/health`, a neighbour's first tokens.

It runs in a process of its own, which has none of the hostile clients' work. `/health` is asked on
time, whether or not the answer before has come.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.serving import serve
from benchmarks.tenants.served import MODEL, key_of
from benchmarks.tenants.wire import Connection

EVERY, PAUSE = 0.02, 0.1  # seconds between two looks at `/health`, and after each of the neighbour's answers
NEIGHBOUR, PROMPT, ANSWER = "neighbour", 10, 4
LOST = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)
SECONDS = 60.0  # after which an answer is missed


@dataclass
class Felt:
    """Milliseconds of each answer, and what else came in its place."""

    health: list[float] = field(default_factory=list)
    firsts: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    heads: list[tuple[str, str, int]] = field(default_factory=list)  # id, endpoint and status of each request


class Watch:
    """A measured process' commands."""

    def watch(self, port: int, seconds: float) -> dict[str, Any]:
        """Look for so many seconds."""
        return vars(asyncio.run(_watched(port, seconds)))


async def _watched(port: int, seconds: float) -> Felt:
    felt, idle = Felt(), list[Connection]()
    end, looks = time.monotonic() + seconds, set[asyncio.Task[None]]()
    neighbour = asyncio.create_task(_neighbour(port, felt, end))
    due = time.monotonic()
    while due < end:
        look = asyncio.create_task(_look(port, felt, idle))
        looks.add(look)
        look.add_done_callback(looks.discard)
        due = max(due + EVERY, time.monotonic())
        await asyncio.sleep(due - time.monotonic())
    await asyncio.gather(neighbour, *looks)
    for connection in idle:
        connection.close()
    return felt


async def _look(port: int, felt: Felt, idle: list[Connection]) -> None:
    begun = time.monotonic()
    try:
        async with asyncio.timeout(SECONDS):
            connection = next((each for each in idle if each.idle < 10), None)
            if connection is None:
                connection = await Connection.to(port)
            else:
                idle.remove(connection)
            reply = await connection.ask("GET", "/health", "none")
    except LOST as error:
        felt.failed.append(f"/health: {type(error).__name__}")
        return
    felt.health.append(1e3 * (time.monotonic() - begun))
    felt.heads.append((reply.headers["x-request-id"], "/health", reply.status))
    if reply.status != 200:
        felt.failed.append(f"/health: {reply.status}")
    idle.append(connection)


async def _neighbour(port: int, felt: Felt, end: float) -> None:
    draw = np.random.default_rng(int(end * 1e3) % (1 << 32))
    while time.monotonic() < end:
        prompt = draw.integers(300, 900, PROMPT).tolist()
        body = {"model": MODEL, "prompt": prompt, "max_tokens": ANSWER, "stream": True, "temperature": 1.0}
        try:
            async with asyncio.timeout(SECONDS):
                connection = await Connection.to(port)
                reply = await connection.ask("POST", "/v1/completions", key_of(NEIGHBOUR), body)
                connection.close()
        except LOST as error:
            felt.failed.append(f"the neighbour: {type(error).__name__}")
            continue
        felt.heads.append((reply.headers["x-request-id"], "/v1/completions", reply.status))
        if reply.status == 200 and reply.whole:  # the first event may be without text
            felt.firsts.append(1e3 * ((reply.tokens_at or [reply.ended])[0] - reply.asked))
        else:
            felt.failed.append(f"the neighbour: {reply.status} {reply.body[-200:].decode(errors='replace')}")
        await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    with contextlib.suppress(PermissionError):
        os.nice(-10)  # the watcher waits for the service, and not for a processor
    serve(Watch())
