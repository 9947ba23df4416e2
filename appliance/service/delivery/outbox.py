"""The part of an answer that waits to leave: the text of each choice by its channels, its
log-probabilities, and why it ended."""

from __future__ import annotations

import math
import secrets
import string
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from appliance.api.answers import AnswerPart, CallPart, Finish, TokenLogprob, TopLogprob
from appliance.engine.decode.events import ENTRY, LENGTH, End, Logprobs, Text
from appliance.service.delivery.channels import ArgumentText, CallStart, Outgoing, ThoughtText
from appliance.text.tokenizer.stream import Pieces

_JSON_ENTRY, _JSON_BYTE = 80, 10  # bytes of JSON that an entry takes at most: so many, and for each byte of its text


class PackedLogprobs:
    """Log-probabilities of tokens, each of which has the same number of alternatives."""

    def __init__(self, words: Pieces, packed: bytes | bytearray = b"", nbytes: int = 0) -> None:
        """`packed`: as `Logprobs` has them, `nbytes` of each token."""
        self._words, self._packed, self._nbytes = words, bytearray(packed), nbytes

    def __bool__(self) -> bool:
        return bool(self._packed)

    def __iter__(self) -> Iterator[TokenLogprob]:
        """Each token, made as it is asked for."""
        for start in range(0, len(self._packed), self._nbytes or 1):
            first, *top = ENTRY.iter_unpack(self._packed[start:start + self._nbytes])
            yield TokenLogprob(**self._entry(*first).model_dump(), top_logprobs=[self._entry(*each) for each in top])

    def add(self, later: Logprobs) -> None:
        """Append a token of the same choice."""
        self._packed += later.packed
        self._nbytes = len(later.packed)

    def take(self, nbytes: float) -> PackedLogprobs:
        """Take tokens from the front: as many as make no more than so many bytes of JSON, but one
        at least."""
        end = len(self._packed) if nbytes == math.inf else 0
        while end < len(self._packed) and (nbytes > 0 or not end):
            for token, _ in ENTRY.iter_unpack(self._packed[end:end + self._nbytes]):
                nbytes -= _JSON_ENTRY + _JSON_BYTE * len(self._words.piece(token))
            end += self._nbytes
        taken = PackedLogprobs(self._words, self._packed[:end], self._nbytes)
        del self._packed[:end]
        return taken

    def _entry(self, token: int, logprob: float) -> TopLogprob:
        piece = self._words.piece(token)
        text = b"" if self._words.is_special(token) else piece
        return TopLogprob(token=piece.decode("utf-8", "replace"), logprob=logprob, bytes=list(text))


_LETTERS = string.ascii_letters + string.digits


def call_id() -> str:
    """A new call's id, by which a client says whose result it sends."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


@dataclass
class _LiveCall:
    """A call that goes on; its name waits to leave, or None."""

    id: str
    name: str | None
    arguments: bytearray = field(default_factory=bytearray)

    def take(self, index: int) -> CallPart:
        part = CallPart(index, self.id, self.name, self.arguments.decode())
        self.name, self.arguments = None, bytearray()
        return part


@dataclass
class _Choice:
    logprobs: PackedLogprobs
    text: bytearray = field(default_factory=bytearray)
    thoughts: bytearray = field(default_factory=bytearray)
    calls: dict[int, _LiveCall] = field(default_factory=dict)  # by index; one whose text has left stays

    @property
    def _waiting(self) -> list[int]:
        return [index for index, call in self.calls.items() if call.name is not None or call.arguments]

    @property
    def empty(self) -> bool:
        return not (self.text or self.thoughts or self.logprobs or self._waiting)

    def take(self, index: int, nbytes: float) -> AnswerPart:
        text, thoughts = self.text.decode(), self.thoughts.decode()
        self.text, self.thoughts = bytearray(), bytearray()
        calls = tuple(self.calls[place].take(place) for place in self._waiting)
        return AnswerPart(index, text, self.logprobs.take(nbytes) if self.logprobs else None, thoughts, calls)


class Outbox:
    """Events that wait to leave, by choice."""

    def __init__(self, words: Pieces, choices: int = 1, *, called: Finish = "tool_calls") -> None:
        """`called`: why a choice ended whose model called something."""
        self._called = called
        self._choices = [_Choice(PackedLogprobs(words)) for _ in range(choices)]
        self.ends: dict[int, Finish] = {}  # of the choices that ended

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return len(self._choices)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send but ends."""
        return all(choice.empty for choice in self._choices)

    def add(self, events: Iterable[Outgoing]) -> None:
        """Append events that came later."""
        for event in events:
            match event:
                case Text():
                    self._choices[event.choice].text += event.text.encode()
                case Logprobs():
                    self._choices[event.choice].logprobs.add(event)
                case ThoughtText():
                    self._choices[event.choice].thoughts += event.text.encode()
                case CallStart():
                    self._choices[event.choice].calls[event.index] = _LiveCall(call_id(), event.name)
                case ArgumentText():
                    self._choices[event.choice].calls[event.index].arguments += event.text.encode()
                case End():
                    ended: Finish = self._called if self._choices[event.choice].calls else "stop"
                    self.ends[event.choice] = "length" if event.reason == LENGTH else ended
                case _:
                    assert_never(event)

    def take(self, nbytes: float = math.inf) -> list[AnswerPart]:
        """Take a part of each choice: all text, and log-probabilities up to so many bytes of JSON
        for all choices."""
        share = nbytes / len(self._choices)
        return [choice.take(index, share) for index, choice in enumerate(self._choices)]
