"""Answers as they leave: the response types of the OpenAI API, and the two shapes that fill them.

A shape turns text, finish reason and usage into one body, or into the events of a stream. It knows nothing of
where the text comes from, nor of when events leave.
"""

from __future__ import annotations

import codecs
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from pydantic import BaseModel

Finish = Literal["stop", "length"]


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


class ModelCard(BaseModel):
    """A model that the caller may ask."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["appliance"] = "appliance"


class ModelList(BaseModel):
    """All of them."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


class Shape(Protocol):
    """How one kind of answer is written."""

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        """The body of an answer that is not streamed."""
        ...

    def opening(self) -> bytes | None:
        """The stream's event before any text, None if there is none."""
        ...

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
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
    created: int = field(default_factory=lambda: int(time.time()))
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

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        """See `Shape`."""
        choice = ChatChoice(message=AssistantMessage(content=text), finish_reason=finish, logprobs=self._logs(logprobs))
        return ChatCompletion(**self._envelope, choices=[choice], usage=usage).model_dump_json().encode()

    def opening(self) -> bytes | None:
        """See `Shape`: who speaks."""
        return self._chunk({"role": "assistant", "content": ""})

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
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
    def _logs(logprobs: Sequence[TokenLogprob] | None) -> Logprobs | None:
        return None if logprobs is None else Logprobs(content=list(logprobs))


@dataclass
class TextShape(_Base):
    """Text completions."""

    prefix = "cmpl-"
    _offset = 0
    _decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"), init=False)

    def whole(self, text: str, finish: Finish, usage: Usage, logprobs: Sequence[TokenLogprob] | None) -> bytes:
        """See `Shape`."""
        choice = TextChoice(text=text, finish_reason=finish, logprobs=self._logs(logprobs))
        return TextCompletion(**self._envelope, choices=[choice], usage=usage).model_dump_json().encode()

    def opening(self) -> bytes | None:
        """See `Shape`: a text completion opens with text."""
        return None

    def piece(self, text: str, logprobs: Sequence[TokenLogprob] | None) -> bytes:
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

    def _logs(self, logprobs: Sequence[TokenLogprob] | None) -> TextLogprobs | None:
        if logprobs is None:
            return None
        offsets = []
        for entry in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(bytes(entry.bytes)))
        return TextLogprobs(
            tokens=[_written(entry) for entry in logprobs], token_logprobs=[entry.logprob for entry in logprobs],
            top_logprobs=[{_written(top): top.logprob for top in entry.top_logprobs} for entry in logprobs],
            text_offset=offsets)


def _written(token: TopLogprob) -> str:
    r"""A token in the older form, which has no bytes: OpenAI writes parts of characters as `bytes:\xf0\x9f`, and as
    U+FFFD all of them would be one alternative."""
    try:
        bytes(token.bytes).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token
