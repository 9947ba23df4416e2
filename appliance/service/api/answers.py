"""Answers as they leave: the response types of the OpenAI API, and the two shapes that fill them.

A shape turns the parts, finish reasons and usage of an answer's choices into one body, or into the
events of a stream. It knows nothing of where parts come from, nor of when events leave.

An answer has several channels: content, thoughts, and the arguments of calls. One event has all of
them, and where sizes are padded, what is written around the text takes as much in each.
"""

from __future__ import annotations

import codecs
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import to_json

from appliance import hostclock

Finish = Literal["stop", "length", "tool_calls", "function_call"]
_LETTERS = 4096  # of a text that are written at once
FRAME = 512  # bytes around the text of an event, whatever its channel, where sizes are padded; rarely twice as much
WHOLE_FRAME = 2048  # bytes around the text of a whole answer


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


class _Sparse(BaseModel):
    """A part that is written without what is None, but for the fields that OpenAI always writes."""

    ALWAYS: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _present(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: item for name, item in write(self).items() if item is not None or name in self.ALWAYS}


class FunctionCall(_Sparse):
    """A call: the function's name, and its arguments, or a part of them, as JSON text."""

    name: str | None = None
    arguments: str


class ToolCall(_Sparse):
    """One of the calls of a message or delta. Only deltas have an index; only the first delta of a
    call has its id and its name."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class AssistantMessage(_Sparse):
    """The answer of a chat."""

    ALWAYS = frozenset({"content", "refusal"})

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChatChoice(BaseModel):
    """A choice of a chat answer."""

    index: int
    message: AssistantMessage
    logprobs: Logprobs | None
    finish_reason: Finish


class ChatDelta(BaseModel):
    """A choice in an event of a chat stream."""

    index: int
    delta: dict[str, Any]
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
class CallPart:
    """A part of a call, or all of it. `name` is there where the call begins."""

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Part:
    """A part of one choice, or all of it. `logprobs` can be iterated more than once; None where
    there are none."""

    choice: int
    text: str
    logprobs: Iterable[TokenLogprob] | None = None
    thoughts: str = ""
    calls: tuple[CallPart, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.text or self.thoughts or self.calls) and self.logprobs is None

    def begun(self) -> Iterator[Part]:
        """The part in two, where a call begins in it whose first arguments are there, too."""
        if any(call.name is not None and call.arguments for call in self.calls):
            begins = tuple(replace(call, arguments="") for call in self.calls if call.name is not None)
            yield replace(self, calls=begins)
            yield Part(self.choice, "", calls=tuple(replace(call, name=None) for call in self.calls if call.arguments))
        else:
            yield self


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


@dataclass
class ChatShape(_Base):
    """Chat completions."""

    prefix = "chatcmpl-"
    channels: bool = False  # whether an answer may have more than content
    older: bool = False  # calls have the form of `functions`: one, as `function_call`
    framed: bool = False  # sizes are padded

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [ChatChoice(index=part.choice, message=self._message(part), finish_reason=ends[part.choice],
                              logprobs=None if part.logprobs is None else Logprobs(content=[])) for part in parts]
        body = ChatCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from _filled(body, *(gap for part in parts for gap in self._gaps(part)))
        if self.framed and self.channels:
            framing = sum(len(each.message.model_dump_json()) + len(each.finish_reason) for each in choices)
            yield _frame(framing, WHOLE_FRAME)

    def _message(self, part: Part) -> AssistantMessage:
        """A message whose texts are to be filled in."""
        calls = [FunctionCall(name="", arguments="") for _ in self._calls(part)]
        return AssistantMessage(
            content=None if part.calls and not part.text else "", reasoning_content="" if part.thoughts else None,
            tool_calls=None if self.older or not calls else [
                ToolCall(id=call.id, type="function", function=function)
                for call, function in zip(part.calls, calls, strict=True)],
            function_call=calls[0] if self.older and calls else None)

    def _gaps(self, part: Part) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        if part.text or not part.calls:
            yield b'"content":""', _letters(part.text)
        if part.thoughts:
            yield b'"reasoning_content":""', _letters(part.thoughts)
        for call in self._calls(part):
            yield b'"name":""', _letters(call.name or "")
            yield b'"arguments":""', _letters(call.arguments)
        yield b'"content":[]', _items(entry.model_dump_json().encode() for entry in part.logprobs or ())

    def _calls(self, part: Part) -> Sequence[CallPart]:
        """The calls that are written: the older form has the first alone."""
        return [call for call in part.calls if call.index == 0] if self.older else part.calls

    def opening(self, choice: int) -> bytes | None:
        """Write the event before any text of a choice."""
        content = None if self.channels else ""
        return self._chunk(ChatDelta(index=choice, delta={"role": "assistant", "content": content},
                                     logprobs=None, finish_reason=None))

    def part(self, part: Part) -> bytes:
        """Write the event for more of a choice."""
        logprobs = None if part.logprobs is None else Logprobs(content=list(part.logprobs))
        delta, calls = dict[str, Any](), self._calls(part)
        if part.text or not (part.thoughts or calls):
            delta["content"] = part.text
        if part.thoughts:
            delta["reasoning_content"] = part.thoughts
        if calls and self.older:
            delta["function_call"] = _function(calls[0])
        elif calls:
            delta["tool_calls"] = [_tool_call(call) for call in calls]
        data = self._chunk(ChatDelta(index=part.choice, delta=delta, logprobs=logprobs, finish_reason=None))
        if not (self.framed and self.channels):
            return data
        texts = (part.text, part.thoughts, *(each for call in calls for each in (call.name or "", call.arguments)))
        return data + _frame(len(to_json(delta)) - sum(len(_json(text)) - 2 for text in texts), FRAME)

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        data = self._chunk(ChatDelta(index=choice, delta={}, logprobs=None, finish_reason=finish))
        return data + (_frame(len(finish), FRAME) if self.framed and self.channels else b"")

    def counted(self, usage: Usage) -> bytes:
        """Write the usage event."""
        return self._event(ChatChunk(**self._envelope, choices=[], usage=usage))

    def _chunk(self, choice: ChatDelta) -> bytes:
        return self._event(ChatChunk(**self._envelope, choices=[choice]))


def _frame(nbytes: int, frame: int) -> bytes:
    """Spaces after a JSON text in which so many bytes depend on the answer, and are no text of it.
    """
    return b" " * (frame - nbytes % frame)


def _function(call: CallPart) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)


def _tool_call(call: CallPart) -> ToolCall:
    begins = call.name is not None
    return ToolCall(index=call.index, id=call.id if begins else None, type="function" if begins else None,
                    function=_function(call))


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
