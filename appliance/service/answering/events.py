"""Server-sent events: when each leaves, and what it carries.

The head leaves before the first token: an answer that waits for its turn may be silent for longer than a proxy waits.
Comments, which clients skip, break the silence. Without padding an event leaves as soon as there is text for it. With
padding, events leave on the grid, one at each multiple, with whatever text there is by then; see privacy.py for what
that promises.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from appliance.service.admission.privacy import Pacer
from appliance.service.answering.inbox import Logged
from appliance.service.api.answers import Finish, Shape, Usage
from appliance.service.api.problems import RequestError

HEAD = b""  # upon which the head leaves, and nothing else
COMMENT = b":\n\n"
DONE = b"data: [DONE]\n\n"
EVENT_BYTES = 256 << 10  # of log-probabilities in an event on the grid: more wait for the next


@dataclass(frozen=True)
class Piece:
    """A part of an answer that may leave: redacted text, and at the end the finish reason and the usage."""

    text: str = ""
    logprobs: Logged | None = None
    finish: Finish | None = None
    usage: Usage | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing in it to send."""
        return not (self.text or self.logprobs)


class Collected:
    """Pieces that wait to leave."""

    def __init__(self) -> None:
        self._text = bytearray()
        self.logprobs: Logged | None = None
        self.finish: Finish | None = None
        self.usage: Usage | None = None

    @property
    def empty(self) -> bool:
        """Whether there is nothing in them to send."""
        return not (self._text or self.logprobs)

    def add(self, later: Piece) -> None:
        """Append what came later."""
        self._text += later.text.encode()
        if self.logprobs is None:
            self.logprobs = later.logprobs
        elif later.logprobs is not None:
            self.logprobs.extend(later.logprobs)
        self.finish, self.usage = later.finish or self.finish, later.usage or self.usage

    def take_text(self) -> str:
        """Take their text."""
        text, self._text = self._text.decode(), bytearray()
        return text

    def take(self) -> Piece:
        """Take what makes an event: all text, and log-probabilities up to some size."""
        logprobs = self.logprobs.take(EVENT_BYTES) if self.logprobs else None
        return Piece(self.take_text(), logprobs, self.finish, self.usage)


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def _opening(shape: Shape) -> bytes:
    opening = shape.opening()
    return b"" if opening is None else event(opening)


class Last(bytes):
    """The events that end an answer: they leave once it is recorded."""


def _closing(shape: Shape, end: Piece, with_usage: bool) -> Last:
    """The last events, in one write."""
    usage = event(shape.counted(end.usage)) if with_usage and end.usage is not None else b""
    return Last(event(shape.closing(end.finish or "stop")) + usage + DONE)


async def whole(pieces: AsyncIterator[Piece]) -> Collected:
    """All pieces of an answer."""
    result = Collected()
    async for piece in pieces:
        result.add(piece)
    return result


async def awake(pieces: AsyncIterator[Piece], pacer: Pacer) -> AsyncIterator[Piece | None]:
    """Pieces as they come, and None whenever none has come for so long that a comment is due."""
    while True:
        coming = asyncio.ensure_future(anext(pieces, None))
        try:
            while not (await asyncio.wait({coming}, timeout=pacer.left(pacer.awake())))[0]:
                yield None
            piece = coming.result()
        finally:
            coming.cancel()
        if piece is None:
            return
        yield piece


async def unpaced(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """Events as text comes; only the last waits, where the policy pads the total time."""
    end, opening = Piece(), _opening(shape)
    async for piece in awake(pieces, pacer):
        if piece is None:
            yield COMMENT
            continue
        if opening or not piece.empty:
            text = b"" if piece.empty else event(shape.piece(piece.text, piece.logprobs))
            yield opening + text
            opening = b""
        end = piece
    await pacer.hold_end()
    yield _closing(shape, end, with_usage)


@dataclass
class _Collecting:
    """What came since the last tick."""

    came: Collected = field(default_factory=Collected)
    begun: asyncio.Event = field(default_factory=asyncio.Event)  # or failed
    ended: bool = False
    error: BaseException | None = None

    async def run(self, pieces: AsyncIterator[Piece]) -> None:
        try:
            async for piece in pieces:
                self.came.add(piece)
                self.begun.set()
        except Exception as error:  # noqa: BLE001 - told at the next tick
            self.error = error
        self.ended = True
        self.begun.set()

    async def due(self, pacer: Pacer) -> AsyncIterator[None]:
        """Each time at which a comment is due before anything came."""
        while not self.begun.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pacer.left(pacer.awake())):
                    await self.begun.wait()
            if not self.begun.is_set():
                await pacer.until(pacer.next_tick())
                yield None


async def paced(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """The head on a multiple of the grid, and from the first token on one event on each, until the answer may end."""
    collecting, opening, end, due_end = _Collecting(), _opening(shape), Piece(), None
    task = asyncio.ensure_future(collecting.run(pieces))
    try:
        await pacer.until(pacer.next_tick())
        if not collecting.begun.is_set():
            yield HEAD
            async for _ in collecting.due(pacer):
                yield COMMENT
            await pacer.until(pacer.next_tick())
        while True:
            end = collecting.came.take()
            ended = collecting.ended and collecting.came.empty
            yield opening + event(shape.piece(end.text, end.logprobs))
            opening = b""
            if ended and due_end is None:
                if collecting.error is not None:
                    raise collecting.error
                due_end = pacer.end()
            tick = pacer.next_tick()
            if due_end is not None and tick > due_end - pacer.timing.first_token / 2:
                break
            await pacer.until(tick)
        await pacer.hold_end(due_end)
        yield _closing(shape, end, with_usage)
    finally:
        task.cancel()


def events(shape: Shape, pieces: AsyncIterator[Piece], pacer: Pacer, with_usage: bool) -> AsyncIterator[bytes]:
    """The stream of an answer, paced as the policy says."""
    return (paced if pacer.timing.padded else unpaced)(shape, pieces, pacer, with_usage)


def failure(error: RequestError) -> bytes:
    """The event that ends a stream which cannot go on."""
    return event(error.body())
