"""Answers as they leave: the two shapes that fill the response types.

A shape turns the parts, finish reasons and usage of an answer's choices into one body, or into the
events of a stream. It knows nothing of where parts come from, nor of when events leave.

An answer has several channels: content, thoughts, and the arguments of calls. One event has all of
them, and where sizes are padded, what is written around the text takes as much in each.
"""

from __future__ import annotations

import codecs
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic_core import to_json

from appliance import hostclock
from appliance.api.answers import (
    AssistantMessage,
    CallPart,
    ChatChoice,
    ChatChunk,
    ChatCompletion,
    ChatDelta,
    Finish,
    FunctionCall,
    Logprobs,
    Part,
    TextChoice,
    TextCompletion,
    TextLogprobs,
    TokenLogprob,
    ToolCall,
    TopLogprob,
    Usage,
)
from appliance.api.problems import RequestError

_AT_ONCE = 4096  # characters of a text that are written at once
FRAME = 512  # bytes around the text of an event, whatever its channel, where sizes are padded; rarely twice as much
WHOLE_FRAME = 2048  # bytes around the text of a whole answer


class Shape(Protocol):
    """How one kind of answer is written. A stream's are whole server-sent events."""

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """The body of an answer that is not streamed, in pieces that are made as they are asked
        for. `parts`: one of each choice; `ends`: why each ended."""
        ...

    def opened(self, choices: int) -> bytes:
        """The events before any text of so many choices."""
        ...

    def more(self, parts: Sequence[Part], *, paced: bool = False) -> bytes:
        """The events for more of some choices. Where they are `paced`, there is one for each part,
        also for an empty one."""
        ...

    def ended(self, ends: Mapping[int, Finish], usage: Usage | None) -> bytes:
        """The events that say why each choice ended, and the counts, where they are to be told."""
        ...

    def failed(self, error: RequestError) -> bytes:
        """The event that ends a stream which cannot go on."""
        ...


COMMENT, DONE = b":\n\n", b"data: [DONE]\n\n"  # the first says nothing, the second that no event follows


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


def failed(error: RequestError) -> bytes:
    """A refusal as the last event of a stream."""
    return event(error.body())


@dataclass
class _Base(ABC):
    request_id: str
    model: str
    fingerprint: str
    with_usage: bool  # a stream whose events all have a `usage` field
    counts: Callable[[], Usage] | None = None  # so far, for each event that says something; None: they have none
    created: int = field(default_factory=lambda: int(hostclock.seconds()))
    prefix = ""

    @property
    def _envelope(self) -> dict[str, Any]:
        return {"id": self.prefix + self.request_id.removeprefix("req-"), "created": self.created, "model": self.model,
                "system_fingerprint": self.fingerprint}

    def opened(self, choices: int) -> bytes:
        """Write the events before any text."""
        return b"".join(event(data) for data in map(self.opening, range(choices)) if data is not None)

    def more(self, parts: Sequence[Part], *, paced: bool = False) -> bytes:
        """Write an event for each part; unless `paced`, two where a call begins."""
        each = parts if paced else [half for part in parts if not part.empty for half in part.begun()]
        return b"".join(event(self.part(part)) for part in each)

    def ended(self, ends: Mapping[int, Finish], usage: Usage | None) -> bytes:
        """Write the last events."""
        data = [self.closing(choice, finish) for choice, finish in sorted(ends.items())]
        return b"".join(map(event, data if usage is None else [*data, self.counted(usage)])) + DONE

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as an event."""
        return failed(error)

    @abstractmethod
    def opening(self, choice: int) -> bytes | None:
        """Write the event before any text of a choice, None if there is none."""

    @abstractmethod
    def part(self, part: Part) -> bytes:
        """Write the event for more of a choice, which may be empty."""

    @abstractmethod
    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""

    @abstractmethod
    def counted(self, usage: Usage) -> bytes:
        """Write the usage event."""

    def _event(self, chunk: ChatChunk | TextCompletion) -> bytes:
        if self.counts is not None and chunk.choices:
            chunk = chunk.model_copy(update={"usage": self.counts()})
        return chunk.model_dump_json(exclude=None if self.with_usage or self.counts else {"usage"}).encode()


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
        yield from filled(body, *(gap for part in parts for gap in self._gaps(part)))
        if self.framed and self.channels:
            framing = sum(len(each.message.model_dump_json()) + len(each.finish_reason) for each in choices)
            yield frame(framing, WHOLE_FRAME)

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
            yield b'"content":""', letters(part.text)
        if part.thoughts:
            yield b'"reasoning_content":""', letters(part.thoughts)
        for call in self._calls(part):
            yield b'"name":""', letters(call.name or "")
            yield b'"arguments":""', letters(call.arguments)
        yield b'"content":[]', items(entry.model_dump_json().encode() for entry in part.logprobs or ())

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
        return data + frame(len(to_json(delta)) - sum(len(json_of(text)) - 2 for text in texts), FRAME)

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        data = self._chunk(ChatDelta(index=choice, delta={}, logprobs=None, finish_reason=finish))
        return data + (frame(len(finish), FRAME) if self.framed and self.channels else b"")

    def counted(self, usage: Usage) -> bytes:
        """Write the usage event."""
        return self._event(ChatChunk(**self._envelope, choices=[], usage=usage))

    def _chunk(self, choice: ChatDelta) -> bytes:
        return self._event(ChatChunk(**self._envelope, choices=[choice]))


def _function(call: CallPart) -> FunctionCall:
    return FunctionCall(name=call.name, arguments=call.arguments)


def _tool_call(call: CallPart) -> ToolCall:
    begins = call.name is not None
    return ToolCall(index=call.index, id=call.id if begins else None, type="function" if begins else None,
                    function=_function(call))


class _Offsets:
    """Where the text of each token of a choice begins."""

    def __init__(self, *, leads: bool = False) -> None:
        """`leads`: the first text has lost a space that its token has."""
        self._next, self._leads = 0, leads
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def place(self, entry: TokenLogprob) -> int:
        """Where the text of the next token begins."""
        place, text = self._next, bytes(entry.bytes)
        if self._leads and text:
            text, self._leads = text.removeprefix(b" "), False
        self._next += len(self._decoder.decode(text))
        return place


@dataclass
class TextShape(_Base):
    """Text completions."""

    prefix = "cmpl-"
    leads: bool = False  # the first text of a choice has lost a space
    _offsets: dict[int, _Offsets] = field(default_factory=dict, init=False)

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [TextChoice(index=part.choice, text="", finish_reason=ends[part.choice],
                              logprobs=self._logs(part.choice, None if part.logprobs is None else ()))
                   for part in parts]
        body = TextCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from filled(body, *(gap for part in parts for gap in self._gaps(part)))

    def _gaps(self, part: Part) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        entries, offsets = part.logprobs or (), _Offsets(leads=self.leads)
        yield b'"text":""', letters(part.text)
        yield b'"tokens":[]', items(json_of(_written(each)) for each in entries)
        yield b'"token_logprobs":[]', items(json_of(each.logprob) for each in entries)
        yield b'"top_logprobs":[]', items(json_of(_alternatives(each)) for each in entries)
        yield b'"text_offset":[]', items(json_of(offsets.place(each)) for each in entries)

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
        entries, offsets = list(logprobs), self._offsets.setdefault(choice, _Offsets(leads=self.leads))
        return TextLogprobs(
            tokens=[_written(entry) for entry in entries],
            token_logprobs=[None if math.isnan(entry.logprob) else entry.logprob for entry in entries],
            top_logprobs=[_alternatives(entry) for entry in entries],
            text_offset=[offsets.place(entry) for entry in entries])


def _alternatives(entry: TokenLogprob) -> dict[str, float] | None:
    """The alternatives of a token; None where it has no log-probability."""
    return None if math.isnan(entry.logprob) else {_written(top): top.logprob for top in entry.top_logprobs}


def _written(token: TopLogprob) -> str:
    r"""A token in the older form, which has no bytes: OpenAI writes parts of characters as
    `bytes:\xf0\x9f`, and as U+FFFD all of them would be one alternative."""
    try:
        bytes(token.bytes).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token


def filled(body: bytes, *gaps: tuple[bytes, Iterator[bytes]]) -> Iterator[bytes]:
    """JSON in which members that are empty, in this order, are filled with what stands between
    their brackets. A string inside of JSON has no such quotes, so what is found is the member."""
    for empty, parts in gaps:
        before, found, rest = body.partition(empty)
        if found:
            yield before + empty[:-1]
            yield from parts
            body = empty[-1:] + rest
    yield body


def letters(text: str) -> Iterator[bytes]:
    """A text as it stands between the quotes of a JSON string."""
    for start in range(0, len(text), _AT_ONCE):
        yield json_of(text[start:start + _AT_ONCE])[1:-1]


def items(each: Iterable[bytes]) -> Iterator[bytes]:
    """JSON values as they stand between the brackets of a list."""
    for number, item in enumerate(each):
        yield b"," + item if number else item


def json_of(value: object) -> bytes:
    """A value as JSON; a number that JSON has not is null."""
    return to_json(value, inf_nan_mode="null")


def frame(nbytes: int, multiple: int) -> bytes:
    """Spaces after a JSON text in which so many bytes depend on the answer, and are no text of
    it."""
    return b" " * (multiple - nbytes % multiple)


COPIES = 4
"""How often a stream's last events say a text, at most."""


def padded(events: bytes, texts: int, multiple: int, room: int | None = None) -> bytes:
    """Server-sent events, and a comment after them. An answer's text has `texts` of their bytes,
    and is to take `room` (None: as many); all others take a multiple."""
    around = len(events) - texts
    missing = multiple - around % multiple + (0 if room is None else room - texts)
    return events + b":" + b" " * (missing - 3 + (multiple if missing < 3 else 0)) + b"\n\n"
