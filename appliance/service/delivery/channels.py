"""An answer's text by its channels: content, thoughts, and the arguments of calls.

A reader of the model's own format says which text is which. Each channel is redacted as one text:
content, thoughts, each call's name and each call's arguments. The text that redaction holds back
leaves when no more of its channel can come: arguments with their call, the rest with the answer.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_never

from appliance.engine.decode.events import End, Logprobs, Text
from appliance.service.admission.redaction import Redactor, Rule, redact
from appliance.service.delivery.standing import Standing, StandingRedactor
from appliance.text.calls.reading.pieces import Arguments, Call, Piece, PieceReader, Said, Thought


@dataclass(frozen=True, slots=True)
class ThoughtText:
    """Characters of a choice's thoughts."""

    choice: int
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins: of a function by name, as the model wrote it."""

    choice: int
    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentText:
    """Characters of a call's arguments, which are JSON text."""

    choice: int
    index: int
    text: str


AnyRedactor = Redactor | StandingRedactor
Outgoing = Text | Logprobs | End | ThoughtText | CallStart | ArgumentText
Leaving = tuple[Outgoing, ...]
"""Events that leave together where no grid holds them."""
_SAID, _THOUGHT = "said", "thought"


class Channels:
    """The channels of one choice."""

    def __init__(self, choice: int, rules: Sequence[Rule], reader: PieceReader | None,
                 standing: Standing | None = None) -> None:
        """Without a `reader`, all text is content. `standing`: characters stand for texts that the
        rules may change."""
        self._choice, self._rules, self._reader, self._standing = choice, rules, reader, standing
        self._redactors = {name: Redactor(rules) if standing is None else StandingRedactor(standing)
                           for name in (_THOUGHT, _SAID)}
        self._arguments: tuple[int, AnyRedactor] | None = None  # of the call that goes on

    async def push(self, text: str) -> list[Outgoing]:
        """The events that may leave now that more text came."""
        pieces = [Said(text)] if self._reader is None else self._reader.push(text)
        return await self._all(pieces)

    async def finish(self, *, cut: bool = False) -> list[Outgoing]:
        """The rest, now that no more comes; `cut`: though the model would have gone on."""
        found = await self._all([] if self._reader is None else self._reader.finish(cut=cut))
        found += await self._arguments_end()
        for name, make in ((_THOUGHT, self._thought), (_SAID, self._text)):
            found += make(await _quickly(self._redactors[name], None))
        return found

    async def _all(self, pieces: Sequence[Piece]) -> list[Outgoing]:
        return [each for piece in pieces for each in await self._events_of(piece)]

    async def _events_of(self, piece: Piece) -> list[Outgoing]:
        match piece:
            case Said():
                return [*await self._arguments_end(), *self._text(await _quickly(self._redactors[_SAID], piece.text))]
            case Thought():
                text = await _quickly(self._redactors[_THOUGHT], piece.text)
                return [*await self._arguments_end(), *self._thought(text)]
            case Call():
                ended, standing = await self._arguments_end(), self._standing
                self._arguments = piece.index, (
                    Redactor(self._rules) if standing is None else StandingRedactor(standing, lifted=True))
                name = redact(self._rules, piece.name) if standing is None else standing.redact(piece.name)
                return [*ended, CallStart(self._choice, piece.index, name)]
            case Arguments():
                if self._arguments is None or self._arguments[0] != piece.index:
                    raise ValueError("arguments of a call that does not go on")
                return self._argument_text(piece.index, await _quickly(self._arguments[1], piece.text))
            case _:
                assert_never(piece)

    async def _arguments_end(self) -> list[Outgoing]:
        if self._arguments is None:
            return []
        (index, redactor), self._arguments = self._arguments, None
        return self._argument_text(index, await _quickly(redactor, None))

    def _text(self, text: str) -> list[Outgoing]:
        return [Text(self._choice, text, 0)] if text else []

    def _thought(self, text: str) -> list[Outgoing]:
        return [ThoughtText(self._choice, text)] if text else []

    def _argument_text(self, index: int, text: str) -> list[Outgoing]:
        return [ArgumentText(self._choice, index, text)] if text else []


async def _quickly(redactor: AnyRedactor, piece: str | None) -> str:
    """The text that may leave after the next piece, or (None) after the last. Slow work is done in
    a thread."""
    work: Callable[[], str] = redactor.finish if piece is None else functools.partial(redactor.feed, piece)
    return work() if redactor.quick(piece or "") else await asyncio.to_thread(work)
