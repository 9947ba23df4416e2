"""A small HTTP client that notes when each part of an answer came: one connection, one request at a
time."""

from __future__ import annotations

import asyncio
import json
import math
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

READ_BYTES = 1 << 16


@dataclass
class Reply:
    """An answer, and seconds of the monotonic clock at which its parts came."""

    asked: float
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    head_at: float = 0.0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)  # of the body
    ended: float = 0.0

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(data for _, data in self.pieces)

    @property
    def value(self) -> Any:
        """The body as JSON; None where it is not."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    @property
    def events(self) -> list[tuple[float, dict[str, Any]]]:
        """The JSON events of a stream, and when the piece with the end of each came."""
        found, held = list[tuple[float, dict[str, Any]]](), b""
        for at, data in self.pieces:
            *lines, held = (held + data).split(b"\n")
            found += [(at, json.loads(line[6:])) for line in lines
                      if line.startswith(b"data: {")]
        return found

    @property
    def tokens_at(self) -> list[float]:
        """When each event with text of a chat or completion came."""
        return [at for at, event in self.events if any(map(text_of, event.get("choices", ())))]

    @property
    def whole(self) -> bool:
        """Whether a stream has its end, and no error."""
        return b"data: [DONE]" in self.body and not any("error" in event for _, event in self.events)


def request_of(method: str, path: str, key: str, body: dict[str, Any] | bytes | None = None,
               more: Sequence[str] = ()) -> bytes:
    """A request as it is sent; `more`: further lines of its head."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = (f"{method} {path} HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {key}\r\n"
            + "".join(f"{line}\r\n" for line in more)
            + f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n")
    return head.encode() + data


def text_of(choice: dict[str, Any]) -> str:
    """The text that one choice of an event brings."""
    return str(choice.get("text") or choice.get("delta", {}).get("content") or "")


class Connection:
    """Opened by `Connection.to`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._used = time.monotonic()

    @property
    def idle(self) -> float:
        """Seconds since its last answer; infinity where the appliance ends it."""
        return math.inf if self._reader.at_eof() else time.monotonic() - self._used

    @classmethod
    async def to(cls, port: int, *, window: int | None = None, tls: ssl.SSLContext | None = None) -> Connection:
        """A connection to a port of this machine, over TLS with a context. `window` bounds what is
        read ahead, in bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=window or READ_BYTES, ssl=tls)
        return cls(reader, writer)

    @property
    def port(self) -> int:
        """The client's own port."""
        return int(self._writer.get_extra_info("sockname")[1])

    async def ask(self, method: str, path: str, key: str, body: dict[str, Any] | bytes | None = None, *,
                  pause: float = 0.0, leave_after: int | None = None, more: Sequence[str] = ()) -> Reply:
        """Send a request and read its answer. `pause`: seconds before each further part is read;
        `leave_after`: parts of the body after which the client is gone; `more`: further lines of
        the head."""
        reply = Reply(time.monotonic())
        self._writer.write(request_of(method, path, key, body, more))
        await self._writer.drain()
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        reply.head_at, reply.status = time.monotonic(), int(status.split()[1])
        reply.headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        async for part in self._body(reply.headers):
            reply.pieces.append((time.monotonic(), part))
            if leave_after is not None and len(reply.pieces) >= leave_after:
                self.close()
                break
            if pause:
                await asyncio.sleep(pause)
        reply.ended = self._used = time.monotonic()
        return reply

    async def _body(self, headers: dict[str, str]) -> Any:
        """The parts of a body, as they come."""
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await self._reader.readline()).split(b";")[0], 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readline()
            return
        left = int(headers.get("content-length", 0))
        while left:
            part = await self._reader.read(min(left, READ_BYTES))
            if not part:
                raise ConnectionError("the answer broke off")
            left -= len(part)
            yield part

    def close(self) -> None:
        """End the connection."""
        self._writer.close()
