"""The part of an answer that waits to leave: the text of each choice, its log-probabilities, and
why it ended."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import assert_never

from appliance.engine.decode.events import ENTRY, LENGTH, End, Event, Logprobs, Text
from appliance.engine.text.tokenizer.stream import Pieces
from appliance.service.api.answers import Finish, Part, TokenLogprob, TopLogprob

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


@dataclass
class _Choice:
    logprobs: PackedLogprobs
    text: bytearray = field(default_factory=bytearray)

    def take(self, index: int, nbytes: float) -> Part:
        text, self.text = self.text.decode(), bytearray()
        return Part(index, text, self.logprobs.take(nbytes) if self.logprobs else None)


class Outbox:
    """Events that wait to leave, by choice."""

    def __init__(self, words: Pieces, choices: int = 1) -> None:
        self._choices = [_Choice(PackedLogprobs(words)) for _ in range(choices)]
        self.ends: dict[int, Finish] = {}  # of the choices that ended

    @property
    def choices(self) -> int:
        """How many choices the answer has."""
        return len(self._choices)

    @property
    def empty(self) -> bool:
        """Whether there is nothing to send but ends."""
        return not any(choice.text or choice.logprobs for choice in self._choices)

    def add(self, events: Iterable[Event]) -> None:
        """Append events that came later."""
        for event in events:
            match event:
                case Text():
                    self._choices[event.choice].text += event.text.encode()
                case Logprobs():
                    self._choices[event.choice].logprobs.add(event)
                case End():
                    self.ends[event.choice] = "length" if event.reason == LENGTH else "stop"
                case _:
                    assert_never(event)

    def take(self, nbytes: float = math.inf) -> list[Part]:
        """Take a part of each choice: all text, and log-probabilities up to so many bytes of JSON
        for all choices."""
        share = nbytes / len(self._choices)
        return [choice.take(index, share) for index, choice in enumerate(self._choices)]
