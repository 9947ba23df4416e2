"""An answer's events on their way from the engine: packed, since a client that does not read leaves
all of them here.

A number of each token and of each of its alternatives is kept, not its text: the policy bounds how
many there are, and so what they take (`boot/planning/budget.py`). As Python's objects they would
take fifty times as much.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import assert_never, get_args

from appliance.engine.decode.events import End, Event, Logprobs, PromptLogprobs, Reason, Text

Batch = tuple[Event, ...]
"""Events that came together, and leave together where no grid holds them."""

_HEAD = struct.Struct("<BBHI")  # kind and whether the last of its batch, choice, tokens, bytes that follow
_TEXT, _LOGPROBS, _END, _PROMPT = range(4)
_LAST = 0x80
_NO_STOP = 0xFF  # there are at most 16 stop strings
_REASONS: tuple[Reason, ...] = get_args(Reason)


def pack(events: Sequence[Event]) -> bytes:
    """A batch as bytes."""
    return b"".join(_bytes_of(event, last=number == len(events)) for number, event in enumerate(events, 1))


def _bytes_of(event: Event, *, last: bool) -> bytes:
    tokens = 0
    match event:
        case Text():
            kind, body, tokens = _TEXT, event.text.encode(), event.tokens
        case Logprobs():
            kind, body = _LOGPROBS, event.packed
        case PromptLogprobs():
            kind, body = _PROMPT, event.packed
        case End():
            kind, body = _END, bytes((_REASONS.index(event.reason), _NO_STOP if event.stop is None else event.stop))
        case _:
            assert_never(event)
    return _HEAD.pack(kind | last * _LAST, event.choice, tokens, len(body)) + body


def _event_of(kind: int, choice: int, tokens: int, body: bytes) -> Event:
    if kind == _TEXT:
        return Text(choice, body.decode(), tokens)
    if kind == _LOGPROBS:
        return Logprobs(choice, body)
    if kind == _PROMPT:
        return PromptLogprobs(choice, body)
    return End(choice, _REASONS[body[0]], None if body[1] == _NO_STOP else body[1])


class Inbox:
    """Batches in order, and at last an error, if there is one. It belongs to the event loop; `pack`
    may be called anywhere."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._error: BaseException | None = None
        self._news = asyncio.Event()

    def put(self, packed: bytes) -> None:
        """Take in a packed batch."""
        self._held += packed
        self._news.set()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes."""
        self._error = error
        self._news.set()

    async def get(self) -> Batch:
        """The next batch; the error is raised once there is none."""
        while not self._held:
            if self._error is not None:
                raise self._error
            self._news.clear()
            await self._news.wait()
        found: list[Event] = []
        end, kind = 0, 0
        while not kind & _LAST:
            kind, choice, tokens, nbytes = _HEAD.unpack_from(self._held, end)
            start, end = end + _HEAD.size, end + _HEAD.size + nbytes
            found.append(_event_of(kind & ~_LAST, choice, tokens, bytes(self._held[start:end])))
        del self._held[:end]
        return tuple(found)
