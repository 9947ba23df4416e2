"""What an answer has of tokens while it waits: packed, since a client that does not read leaves all of it here.

A number of each token and of each of its alternatives is kept, not its text: the policy bounds how many there are, and
so what they take (`boot/planning/budget.py`). As Python's objects they would take fifty times as much.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from appliance.engine.decode.generation import CANCELLED, FAILED, LENGTH, STOP, Step
from appliance.engine.text.tokenizer.stream import Pieces
from appliance.service.api.answers import TokenLogprob, TopLogprob

_ENTRY = struct.Struct("<id")  # a token, its log-probability
_HEAD = struct.Struct("<BBII")  # flags, a finish reason, bytes of text, bytes of entries
_FINISHES = (None, STOP, LENGTH, CANCELLED, FAILED)
_COUNTED = 1
_JSON_ENTRY, _JSON_BYTE = 80, 10  # bytes of JSON that an entry takes at most: so many, and for each byte of its text


class Logged:
    """Log-probabilities of tokens, each of which has the same number of alternatives."""

    def __init__(self, words: Pieces, packed: bytes | bytearray, nbytes: int) -> None:
        """`packed`: as `pack` gives them, `nbytes` of each token."""
        self._words, self._packed, self._nbytes = words, bytearray(packed), nbytes

    def __bool__(self) -> bool:
        return bool(self._packed)

    def __iter__(self) -> Iterator[TokenLogprob]:
        """Each token, made as it is asked for."""
        for start in range(0, len(self._packed), self._nbytes):
            first, *top = _ENTRY.iter_unpack(self._packed[start:start + self._nbytes])
            yield TokenLogprob(**self._told(*first).model_dump(), top_logprobs=[self._told(*each) for each in top])

    def extend(self, later: Logged) -> None:
        """Append tokens of the same answer."""
        self._packed += later._packed

    def take(self, nbytes: int) -> Logged:
        """Take tokens from the front: as many as make no more than so many bytes of JSON, but one at least."""
        end = 0
        while end < len(self._packed) and (nbytes > 0 or not end):
            for token, _ in _ENTRY.iter_unpack(self._packed[end:end + self._nbytes]):
                nbytes -= _JSON_ENTRY + _JSON_BYTE * len(self._words.piece(token))
            end += self._nbytes
        taken = Logged(self._words, self._packed[:end], self._nbytes)
        del self._packed[:end]
        return taken

    def _told(self, token: int, logprob: float) -> TopLogprob:
        piece = self._words.piece(token)
        text = b"" if self._words.is_special(token) else piece
        return TopLogprob(token=piece.decode("utf-8", "replace"), logprob=logprob, bytes=list(text))


@dataclass(frozen=True, slots=True)
class Arrived:
    """A step: its text, whether it has a token of the answer, the log-probabilities of that, packed."""

    text: str
    counted: bool
    packed: bytes
    finish: str | None

    def logged(self, words: Pieces) -> Logged | None:
        """Its log-probabilities, None where none were asked for."""
        return Logged(words, self.packed, len(self.packed)) if self.packed else None


def pack(step: Step) -> bytes:
    """A step as bytes. The token that ends an answer is no part of it."""
    counted = step.token is not None and not step.ended
    logged = b""
    if counted and step.token is not None and step.logprob is not None:
        logged = b"".join(_ENTRY.pack(*each) for each in ((step.token, step.logprob), *step.top))
    text = step.text.encode()
    return _HEAD.pack(counted * _COUNTED, _FINISHES.index(step.finish_reason), len(text), len(logged)) + text + logged


class Inbox:
    """Steps in order, and at last an error, if there is one. Of the event loop; `pack` may be called anywhere."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._error: BaseException | None = None
        self._came = asyncio.Event()

    def put(self, packed: bytes) -> None:
        """Take in a packed step."""
        self._held += packed
        self._came.set()

    def fail(self, error: BaseException) -> None:
        """Nothing more comes."""
        self._error = error
        self._came.set()

    async def get(self) -> Arrived:
        """The next step; the error is raised once there is none."""
        while not self._held:
            if self._error is not None:
                raise self._error
            self._came.clear()
            await self._came.wait()
        flags, finish, text, logged = _HEAD.unpack_from(self._held)
        middle = _HEAD.size + text
        end = middle + logged
        step = Arrived(self._held[_HEAD.size:middle].decode(), bool(flags & _COUNTED), bytes(self._held[middle:end]),
                       _FINISHES[finish])
        del self._held[:end]
        return step
