"""Answers as they leave: the response types of the OpenAI API, and the two shapes that fill them.

A shape turns the parts, finish reasons and usage of an answer's choices into one body, or into the
events of a stream. It knows nothing of where parts come from, nor of when events leave.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel
from pydantic_core import to_json

from appliance import hostclock

Finish = Literal["stop", "length"]
_LETTERS = 4096  # of a text that are written at once


class Usage(BaseModel):
    """Token counts, each rounded up as the policy says, and their sum."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int

    @classmethod
    def of(cls, prompt: int, completion: int) -> Usage:
        """Usage from two counts."""
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion)


class TopLogprob(BaseModel):
    """An alternative at one place; `bytes` are those of its text, of which a control token has
    none."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer with its alternatives."""

    top_logprobs: list[TopLogprob]


class Logprobs(BaseModel):
    """Log-probabilities of a chat answer."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """Log-probabilities of a text completion, in OpenAI's older form."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class AssistantMessage(BaseModel):
    """The answer of a chat."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(BaseModel):
    """A choice of a chat answer."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Finish


class ChatDelta(BaseModel):
    """A choice in an event of a chat stream."""

    index: int
    delta: dict[str, str]
    logprobs: Logprobs | None
    finish_reason: Finish | None


class TextChoice(BaseModel):
    """A choice of a text completion or of an event of its stream."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class _Envelope(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Envelope):
    """A whole chat answer."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage


class ChatChunk(_Envelope):
    """An event of a chat stream; `usage` only where it was asked for."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatDelta]
    usage: Usage | None = None


class TextCompletion(_Envelope):
    """A whole text completion, or an event of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one choice, or all of it. `logprobs` can be iterated more than once; None where
    there are none."""

    choice: int
    text: str
    logprobs: Iterable[TokenLogprob] | None = None

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not self.text and self.logprobs is None


class Shape(Protocol):
    """How one kind of answer is written."""

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """The body of an answer that is not streamed, in pieces that are made as they are asked
        for. `parts`: one of each choice; `ends`: why each ended."""
        ...

    def opening(self, choice: int) -> bytes | None:
        """The stream's event before any text of a choice, None if there is none."""
        ...

    def part(self, part: Part) -> bytes:
        """The event for more of a choice, which may be empty."""
        ...

    def closing(self, choice: int, finish: Finish) -> bytes:
        """The event that says why a choice ended."""
        ...

    def counted(self, usage: Usage) -> bytes:
        """The usage event."""
        ...


@dataclass
class _Base:
    request_id: str
    model: str
    fingerprint: str
    with_usage: bool  # a stream whose events all have a `usage` field
    created: int = field(default_factory=lambda: int(hostclock.seconds()))
    prefix = ""

    @property
    def _envelope(self) -> dict[str, Any]:
        return {"id": self.prefix + self.request_id.removeprefix("req-"), "created": self.created, "model": self.model,
                "system_fingerprint": self.fingerprint}

    def _event(self, chunk: ChatChunk | TextCompletion) -> bytes:
        return chunk.model_dump_json(exclude=None if self.with_usage else {"usage"}).encode()


class ChatShape(_Base):
    """Chat completions."""

    prefix = "chatcmpl-"

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [ChatChoice(index=part.choice, message=AssistantMessage(content=""), finish_reason=ends[part.choice],
                              logprobs=None if part.logprobs is None else Logprobs(content=[])) for part in parts]
        body = ChatCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from _filled(body, *(gap for part in parts for gap in (
            (b'"content":""', _letters(part.text)),
            (b'"content":[]', _items(entry.model_dump_json().encode() for entry in part.logprobs or ())))))

    def opening(self, choice: int) -> bytes | None:
        """Write the event before any text of a choice."""
        return self._chunk(ChatDelta(index=choice, delta={"role": "assistant", "content": ""}, logprobs=None,
                                     finish_reason=None))

    def part(self, part: Part) -> bytes:
        """Write the event for more of a choice."""
        logprobs = None if part.logprobs is None else Logprobs(content=list(part.logprobs))
        return self._chunk(ChatDelta(index=part.choice, delta={"content": part.text}, logprobs=logprobs,
                                     finish_reason=None))

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        return self._chunk(ChatDelta(index=choice, delta={}, logprobs=None, finish_reason=finish))

    def counted(self, usage: Usage) -> bytes:
        """Write the usage event."""
        return self._event(ChatChunk(**self._envelope, choices=[], usage=usage))

    def _chunk(self, choice: ChatDelta) -> bytes:
        return self._event(ChatChunk(**self._envelope, choices=[choice]))


class _Offsets:
    """Where the text of each token of a choice begins."""

    def __init__(self) -> None:
        self._next = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def place(self, entry: TokenLogprob) -> int:
        """Where the text of the next token begins."""
        place = self._next
        self._next += len(self._decoder.decode(bytes(entry.bytes)))
        return place


@dataclass
class TextShape(_Base):
    """Text completions."""

    prefix = "cmpl-"
    _offsets: defaultdict[int, _Offsets] = field(default_factory=lambda: defaultdict(_Offsets), init=False)

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [TextChoice(index=part.choice, text="", finish_reason=ends[part.choice],
                              logprobs=self._logs(part.choice, None if part.logprobs is None else ()))
                   for part in parts]
        body = TextCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from _filled(body, *(gap for part in parts for gap in self._gaps(part)))

    @staticmethod
    def _gaps(part: Part) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        entries, offsets = part.logprobs or (), _Offsets()
        yield b'"text":""', _letters(part.text)
        yield b'"tokens":[]', _items(_json(_written(each)) for each in entries)
        yield b'"token_logprobs":[]', _items(_json(each.logprob) for each in entries)
        yield b'"top_logprobs":[]', _items(_json(_alternatives(each)) for each in entries)
        yield b'"text_offset":[]', _items(_json(offsets.place(each)) for each in entries)

    def opening(self, choice: int) -> bytes | None:
        """Write the event before any text of a choice."""
        return None

    def part(self, part: Part) -> bytes:
        """Write the event for more of a choice."""
        return self._chunk(TextChoice(index=part.choice, text=part.text, finish_reason=None,
                                      logprobs=self._logs(part.choice, part.logprobs)))

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        return self._chunk(TextChoice(index=choice, text="", finish_reason=finish, logprobs=None))

    def counted(self, usage: Usage) -> bytes:
        """Write the usage event."""
        return self._event(TextCompletion(**self._envelope, choices=[], usage=usage))

    def _chunk(self, choice: TextChoice) -> bytes:
        return self._event(TextCompletion(**self._envelope, choices=[choice]))

    def _logs(self, choice: int, logprobs: Iterable[TokenLogprob] | None) -> TextLogprobs | None:
        if logprobs is None:
            return None
        entries = list(logprobs)
        return TextLogprobs(
            tokens=[_written(entry) for entry in entries], token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[_alternatives(entry) for entry in entries],
            text_offset=[self._offsets[choice].place(entry) for entry in entries])


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    return {_written(top): top.logprob for top in entry.top_logprobs}


def _written(token: TopLogprob) -> str:
    r"""A token in the older form, which has no bytes: OpenAI writes parts of characters as
    `bytes:\xf0\x9f`, and as U+FFFD all of them would be one alternative."""
    try:
        bytes(token.bytes).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token


def _filled(body: bytes, *gaps: tuple[bytes, Iterator[bytes]]) -> Iterator[bytes]:
    """JSON in which members that are empty, in this order, are filled with what stands between
    their brackets. A string inside of JSON has no such quotes, so what is found is the member."""
    for empty, parts in gaps:
        before, found, rest = body.partition(empty)
        if found:
            yield before + empty[:-1]
            yield from parts
            body = empty[-1:] + rest
    yield body


def _letters(text: str) -> Iterator[bytes]:
    for start in range(0, len(text), _LETTERS):
        yield _json(text[start:start + _LETTERS])[1:-1]


def _items(items: Iterable[bytes]) -> Iterator[bytes]:
    for number, item in enumerate(items):
        yield b"," + item if number else item


def _json(value: object) -> bytes:
    return to_json(value, inf_nan_mode="null")
