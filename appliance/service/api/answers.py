"""Answers as they leave: the response types of the OpenAI API, and the two shapes that fill them.

A shape turns text, finish reason and usage into one body, or into the events of a stream. It knows nothing of
where the text comes from, nor of when events leave.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
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
    """An alternative at one place; `bytes` are those of its text, of which a control token has none."""

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
    """The one choice of a chat answer."""

    index: int = 0
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Finish


class ChatDelta(BaseModel):
    """The one choice of a chat stream's event."""

    index: int = 0
    delta: dict[str, str]
    logprobs: Logprobs | None
    finish_reason: Finish | None


class TextChoice(BaseModel):
    """The one choice of a text completion or of an event of its stream."""

    index: int = 0
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


class Shape(Protocol):
    """How one kind of answer is written."""

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Iterable[TokenLogprob] | None,
              ) -> Iterator[bytes]:
        """The body of an answer that is not streamed, in parts that are made as they are asked for."""
        ...

    def opening(self) -> bytes | None:
        """The stream's event before any text, None if there is none."""
        ...

    def piece(self, text: str, logprobs: Iterable[TokenLogprob] | None) -> bytes:
        """The event for more text, which may be empty."""
        ...

    def closing(self, finish: Finish) -> bytes:
        """The event that says why the text ended."""
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

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Iterable[TokenLogprob] | None,
              ) -> Iterator[bytes]:
        """See `Shape`."""
        none = None if logprobs is None else Logprobs(content=[])
        choice = ChatChoice(message=AssistantMessage(content=""), finish_reason=finish, logprobs=none)
        body = ChatCompletion(**self._envelope, choices=[choice], usage=usage).model_dump_json().encode()
        yield from _filled(body, (b'"content":""', _letters(text)),
                           (b'"content":[]', _items(entry.model_dump_json().encode() for entry in logprobs or ())))

    def opening(self) -> bytes | None:
        """See `Shape`: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str, logprobs: Iterable[TokenLogprob] | None) -> bytes:
        """See `Shape`."""
        return self._chunk({"content": text}, logprobs=self._logs(logprobs))

    def closing(self, finish: Finish) -> bytes:
        """See `Shape`."""
        return self._chunk({}, finish=finish)

    def counted(self, usage: Usage) -> bytes:
        """See `Shape`."""
        return self._event(ChatChunk(**self._envelope, choices=[], usage=usage))

    def _chunk(self, delta: dict[str, str], finish: Finish | None = None, logprobs: Logprobs | None = None) -> bytes:
        choice = ChatDelta(delta=delta, finish_reason=finish, logprobs=logprobs)
        return self._event(ChatChunk(**self._envelope, choices=[choice]))

    @staticmethod
    def _logs(logprobs: Iterable[TokenLogprob] | None) -> Logprobs | None:
        return None if logprobs is None else Logprobs(content=list(logprobs))


@dataclass
class TextShape(_Base):
    """Text completions."""

    prefix = "cmpl-"
    _offset = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False)

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Iterable[TokenLogprob] | None,
              ) -> Iterator[bytes]:
        """See `Shape`."""
        choice = TextChoice(text="", finish_reason=finish, logprobs=self._logs(None if logprobs is None else ()))
        body = TextCompletion(**self._envelope, choices=[choice], usage=usage).model_dump_json().encode()
        entries, self._offset = logprobs or (), 0
        self._decoder.reset()
        yield from _filled(
            body, (b'"text":""', _letters(text)), (b'"tokens":[]', _items(_json(_written(each)) for each in entries)),
            (b'"token_logprobs":[]', _items(_json(each.logprob) for each in entries)),
            (b'"top_logprobs":[]', _items(_json(_alternatives(each)) for each in entries)),
            (b'"text_offset":[]', _items(_json(self._place(each)) for each in entries)))

    def opening(self) -> bytes | None:
        """See `Shape`: a text completion opens with text."""
        return None

    def piece(self, text: str, logprobs: Iterable[TokenLogprob] | None) -> bytes:
        """See `Shape`."""
        return self._chunk(text, None, self._logs(logprobs))

    def closing(self, finish: Finish) -> bytes:
        """See `Shape`."""
        return self._chunk("", finish, None)

    def counted(self, usage: Usage) -> bytes:
        """See `Shape`."""
        return self._event(TextCompletion(**self._envelope, choices=[], usage=usage))

    def _chunk(self, text: str, finish: Finish | None, logprobs: TextLogprobs | None) -> bytes:
        choice = TextChoice(text=text, finish_reason=finish, logprobs=logprobs)
        return self._event(TextCompletion(**self._envelope, choices=[choice]))

    def _logs(self, logprobs: Iterable[TokenLogprob] | None) -> TextLogprobs | None:
        if logprobs is None:
            return None
        entries = list(logprobs)
        return TextLogprobs(
            tokens=[_written(entry) for entry in entries], token_logprobs=[entry.logprob for entry in entries],
            top_logprobs=[_alternatives(entry) for entry in entries],
            text_offset=[self._place(entry) for entry in entries])

    def _place(self, entry: TokenLogprob) -> int:
        """Where the text of the next token begins."""
        place = self._offset
        self._offset += len(self._decoder.decode(bytes(entry.bytes)))
        return place


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    return {_written(top): top.logprob for top in entry.top_logprobs}


def _written(token: TopLogprob) -> str:
    r"""A token in the older form, which has no bytes: OpenAI writes parts of characters as `bytes:\xf0\x9f`, and as
    U+FFFD all of them would be one alternative."""
    try:
        bytes(token.bytes).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token


def _filled(body: bytes, *gaps: tuple[bytes, Iterator[bytes]]) -> Iterator[bytes]:
    """JSON in which members that are empty, in this order, are filled with what stands between their brackets. A string
    inside of JSON has no such quotes, so what is found is the member."""
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
