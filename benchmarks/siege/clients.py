"""Hostile clients, and ordinary clients of the same load. Each runs until it is cancelled."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from appliance.audit.endpoints import name_of
from benchmarks.siege.bombs import Maker
from benchmarks.siege.books import Head
from benchmarks.tenants.served import MODEL, key_of
from benchmarks.tenants.wire import Connection, Reply, request_of

HOSTILE, AUDITOR, ADMIN = "hostile", "auditor", "admin"
LOST = (ConnectionError, asyncio.IncompleteReadError, TimeoutError)  # of clients that left, and that were left
PACE = 0.05  # seconds between two requests of a client
PATIENCE = 120.0  # seconds for an answer
SMALL_ROOM = 2048  # bytes that a slow reader's kernel holds


@dataclass
class Field:
    """Where the clients are: a port, and what they saw."""

    port: int
    numbers: Iterator[int] = field(default_factory=itertools.count)  # of texts, each used once
    heads: list[Head] = field(default_factory=list)
    statuses: Counter[str] = field(default_factory=Counter)
    firsts: list[float] = field(default_factory=list)  # milliseconds to the first token of streams

    async def ask(self, path: str, body: dict[str, Any] | bytes | None = None, *, tenant: str = HOSTILE,
                  method: str = "POST", seconds: float = PATIENCE, **manner: Any) -> Reply | None:
        """Send a request on a connection of its own. None where no answer came, in `seconds` or for
        another reason."""
        connection = None
        try:
            async with asyncio.timeout(seconds):
                connection = await Connection.to(self.port)
                reply = await connection.ask(method, path, key_of(tenant), body, **manner)
        except LOST:
            self.statuses["lost"] += 1
            return None
        finally:
            if connection is not None:
                connection.close()
        self.note(reply, path)
        return reply

    def note(self, reply: Reply, path: str) -> None:
        """Enter an answer in the books."""
        self.heads.append((reply.headers["x-request-id"], name_of(path.partition("?")[0]), reply.status))
        error = (reply.value or {}).get("error") if reply.status >= 400 and isinstance(reply.value, dict) else None
        self.statuses[f"{reply.status} {error['code']}" if isinstance(error, dict) and "code" in error
                      else str(reply.status)] += 1
        if reply.status == 200 and reply.tokens_at:
            self.firsts.append(1e3 * (reply.tokens_at[0] - reply.asked))


Client = Callable[[Field, int], Any]
"""One client, by its number."""


def completion(**parameters: Any) -> dict[str, Any]:
    """The body of a completion."""
    return {"model": MODEL, "prompt": "Say it.", "max_tokens": 4, "temperature": 1.0, **parameters}


def tokens(number: int, count: int) -> list[int]:
    """A prompt of random tokens, by a number."""
    drawn: list[int] = np.random.default_rng(number).integers(300, 900, count).tolist()
    return drawn


async def _encoded(body: dict[str, Any]) -> bytes:
    """A body as bytes. A long one is written in a thread: other clients have theirs to send."""
    return await asyncio.to_thread(lambda: json.dumps(body).encode())


def sends(makers: Sequence[Maker], *, seconds: float = PATIENCE, max_tokens: int = 4) -> Client:
    """Completions with each maker's parameters in turn; a client that waits no longer than
    `seconds`."""
    async def client(field: Field, number: int) -> None:
        for each in itertools.count(number):
            body = completion(max_tokens=max_tokens, **makers[each % len(makers)](next(field.numbers)))
            await field.ask("/v1/completions", await _encoded(body), seconds=seconds)
            await asyncio.sleep(PACE)
    return client


def chats(makers: Sequence[Maker]) -> Client:
    """The same as chats."""
    async def client(field: Field, number: int) -> None:
        for each in itertools.count(number):
            body = {"model": MODEL, "messages": [{"role": "user", "content": "Say it."}], "max_tokens": 4,
                    **makers[each % len(makers)](next(field.numbers))}
            await field.ask("/v1/chat/completions", await _encoded(body))
            await asyncio.sleep(PACE)
    return client


def bodies(makers: Sequence[Callable[[int], bytes]]) -> Client:
    """Bodies of completions as bytes."""
    async def client(field: Field, number: int) -> None:
        for each in itertools.count(number):
            await field.ask("/v1/completions", makers[each % len(makers)](next(field.numbers)))
            await asyncio.sleep(PACE)
    return client


def lists(makers: Sequence[Callable[[int], bytes]], tenants: Sequence[str]) -> Client:
    """Lists of tenants, each by the key of one of `tenants`. A name without a tenant is a
    stranger's."""
    async def client(field: Field, number: int) -> None:
        for each in itertools.count(number):
            body = await asyncio.to_thread(makers[each % len(makers)], next(field.numbers))
            await field.ask("/v1/admin/tenants", body, tenant=tenants[number % len(tenants)])
            await asyncio.sleep(PACE)
    return client


def asks(**parameters: Any) -> Client:
    """Streams of one kind, one after the other."""
    async def client(field: Field, number: int) -> None:
        while True:
            await field.ask("/v1/completions", completion(stream=True, **parameters))
            await asyncio.sleep(PACE)
    return client


def prompts(count: int, *, new: bool) -> Client:
    """Streams with prompts of so many tokens, of which pages are kept: for nothing where each is a
    new one, and not the client's own."""
    async def client(field: Field, number: int) -> None:
        while True:
            prompt = tokens(next(field.numbers) if new else number, count)
            await field.ask("/v1/completions", completion(prompt=prompt, stream=True))
            await asyncio.sleep(PACE)
    return client


async def crowd(field: Field, number: int) -> None:
    """A client of a tenant of its own, as many others are."""
    while True:
        body = completion(prompt=tokens(next(field.numbers), 40), max_tokens=16, stream=True)
        await field.ask("/v1/completions", body, tenant=f"crowd{number}")
        await asyncio.sleep(PACE)


async def slow_reader(field: Field, number: int) -> None:
    """A client that reads a byte of its stream each second. Its own kernel holds little of it."""
    loop = asyncio.get_running_loop()
    while True:
        with socket.socket() as own:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_ROOM)
            own.setblocking(False)
            try:
                await loop.sock_connect(own, ("127.0.0.1", field.port))
                await loop.sock_sendall(own, request_of("POST", "/v1/completions", key_of(HOSTILE), completion(
                    max_tokens=200, stream=True)))
                while await loop.sock_recv(own, 1):
                    await asyncio.sleep(1)
            except ConnectionError:
                field.statuses["cut off"] += 1


async def slow_writer(field: Field, number: int) -> None:
    """A client that writes a byte of its head, or of its body, each second."""
    whole = request_of("POST", "/v1/completions", key_of(HOSTILE), completion())
    begun = 0 if number % 2 else whole.index(b"\r\n\r\n") + 4
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", field.port)
        try:
            writer.write(whole[:begun])
            for place in range(begun, len(whole)):
                writer.write(whole[place:place + 1])
                await writer.drain()
                await asyncio.sleep(1)
                if reader.at_eof():
                    break
        except ConnectionError:
            field.statuses["cut off"] += 1
        finally:
            writer.close()


async def small_chunks(field: Field, number: int) -> None:
    """A client whose body comes in chunks of a byte, as many as may be in one moment."""
    head = request_of("POST", "/v1/completions", key_of(HOSTILE))
    head = head.replace(b"content-length: 0", b"transfer-encoding: chunked")
    chunks = b"1\r\na\r\n" * 20_000
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", field.port)
        try:
            writer.write(head + chunks)
            await reader.read()
        except ConnectionError:
            field.statuses["cut off"] += 1
        finally:
            writer.close()
        await asyncio.sleep(PACE)


async def pipelining(field: Field, number: int) -> None:
    """A client that sends a thousand requests before it reads an answer."""
    whole = request_of("GET", "/v1/models", key_of(HOSTILE)) * 1000
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", field.port)
        try:
            writer.write(whole)
            for _ in range(200):
                await reader.readuntil(b"HTTP/1.1 200")
        except LOST:
            field.statuses["cut off"] += 1
        finally:
            writer.close()
        await asyncio.sleep(PACE)


def looks(pause: float) -> Client:
    """Lists of models, over one connection."""
    async def client(field: Field, number: int) -> None:
        connection = await Connection.to(field.port)
        while True:
            field.note(await connection.ask("GET", "/v1/models", key_of(HOSTILE)), "/v1/models")
            await asyncio.sleep(pause)
    return client


async def stranger(field: Field, number: int) -> None:
    """A client without a valid key, over one connection."""
    connection = await Connection.to(field.port)
    while True:
        reply = await connection.ask("POST", "/v1/completions", f"sk-wrong-{next(field.numbers)}", completion())
        field.note(reply, "/v1/completions")
        await asyncio.sleep(PACE / 4)


def caches(*, new: bool) -> Client:
    """Requests that leave something to be kept, each another thing where `new`: schemas, patterns,
    choices, tools, paths of models."""
    async def client(field: Field, number: int) -> None:
        kinds = _kept(field)
        for each in itertools.count(number):
            await kinds[each % len(kinds)](f"text{next(field.numbers) if new else 0}")
    return client


def _kept(field: Field) -> list[Callable[[str], Any]]:
    return [
        lambda text: field.ask("/v1/completions", completion(json_schema={"const": text})),
        lambda text: field.ask("/v1/completions", completion(regex=text)),
        lambda text: field.ask("/v1/completions", completion(guided_choice=[text, "no"])),
        lambda text: field.ask("/v1/chat/completions", {
            "model": MODEL, "messages": [{"role": "user", "content": text}], "max_tokens": 4, "tool_choice": "required",
            "tools": [{"type": "function", "function": {"name": text, "parameters": {"type": "object"}}}]}),
        lambda text: field.ask(f"/v1/models/{text}", method="GET"),
        lambda text: field.ask(f"/no/such/{text}", method="GET"),
    ]
