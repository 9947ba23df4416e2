"""Server-sent events: when each leaves, and what it carries.

Without padding an event leaves as soon as there is text for it. With padding, events leave on the grid, one at each
multiple, with whatever text there is by then; see privacy.py for what that promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from appliance.service.answers import Finish, Shape, TokenLogprob, Usage
from appliance.service.privacy import Pacer
from appliance.service.problems import RequestError

DONE = b"data: [DONE]\n\n"


@dataclass
class Piece:
    """A part of an answer that may leave: redacted text, and at the end the finish reason and the usage."""

    text: str = ""
    logprobs: list[TokenLogprob] | None = None
    finish: Finish | None = None
    usage: Usage | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it to send."""
        return not (self.text or self.logprobs)

    def add(self, later: Piece) -> None:
        """Append what came later."""
        self.text += later.text
        if later.logprobs is not None:
            self.logprobs = (self.logprobs or []) + later.logprobs
        self.finish, self.usage = later.finish or self.finish, later.usage or self.usage


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _opening(shape: Shape) -> bytes:
    opening = shape.opening()
    return b"" if opening is None else event(opening)


def _closing(shape: Shape, end: Piece, with_usage: bool) -> bytes:
    """The last events, in one write."""
    usage = event(shape.counted(end.usage)) if with_usage and end.usage is not None else b""
    return event(shape.closing(end.finish or "stop")) + usage + DONE


async def whole(pieces: AsyncIterator[Piece]) -> Piece:
    """All pieces of an answer in one."""
    result = Piece()
    async for piece in pieces:
        result.add(piece)
    return result


async def unpaced(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """Events as text comes; only the last waits, where the policy pads the total time."""
    end, opening = Piece(), _opening(shape)
    async for piece in pieces:
        if opening or not piece.empty:
            text = b"" if piece.empty else event(shape.piece(piece.text, piece.logprobs))
            yield opening + text
            opening = b""
        end = piece
    await pacer.hold_end()
    yield _closing(shape, end, with_usage)


@dataclass
class _Collected:
    """What came since the last tick."""

    piece: Piece = field(default_factory=Piece)
    ended: bool = False
    error: BaseException | None = None

    async def run(self, pieces: AsyncIterator[Piece]) -> None:
        try:
            async for piece in pieces:
                self.piece.add(piece)
        except Exception as error:  # noqa: BLE001 - told at the next tick
            self.error = error
        self.ended = True

    def take(self) -> Piece:
        taken, self.piece = self.piece, Piece()
        return taken


async def paced(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """One event on each multiple of the grid until the answer may end."""
    collected, opening, end, due_end = _Collected(), _opening(shape), Piece(), None
    task = asyncio.ensure_future(collected.run(pieces))
    try:
        while True:
            tick = pacer.next_tick()
            if due_end is not None and tick > due_end - pacer.timing.first_token / 2:
                break
            await pacer.until(tick)
            ended, piece = collected.ended, collected.take()
            end.add(Piece(finish=piece.finish, usage=piece.usage))
            yield opening + event(shape.piece(piece.text, piece.logprobs))
            opening = b""
            if ended and due_end is None:
                if collected.error is not None:
                    raise collected.error
                due_end = pacer.end()
        await pacer.until(due_end)
        yield _closing(shape, end, with_usage)
    finally:
        task.cancel()


def events(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """The stream of an answer, paced as the policy says."""
    return (paced if pacer.timing.padded else unpaced)(shape, pieces, pacer, with_usage)


def failure(error: RequestError) -> bytes:
    """The event that ends a stream which cannot go on."""
    return event(error.body())
