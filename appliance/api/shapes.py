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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from pydantic_core import to_json

from appliance import hostclock
from appliance.api import answers
from appliance.api.answers import AnswerFacts, AnswerPart, CallPart, CompletionUsage, Finish, TokenLogprob
from appliance.api.problems import RequestError

_AT_ONCE = 4096  # characters of a text that are written at once
FRAME = 512  # bytes around the text of an event, whatever its channel, where sizes are padded; rarely twice as much
WHOLE_FRAME = 2048  # bytes around the text of a whole answer


class AnswerShape(Protocol):
    """How one kind of answer is written. A stream's are whole server-sent events."""

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Yield the body of an answer that is not streamed, in pieces that are made as they are
        asked for. `parts`: one of each choice; `ends`: why each ended."""

    def opened(self, choices: int) -> bytes:
        """Return the events before any text of so many choices."""

    def more(self, parts: Sequence[AnswerPart], *, paced: bool = False) -> bytes:
        """Return the events for more of some choices. Where they are `paced`, there is one for each
        part, also for an empty one."""

    def ended(self, ends: Mapping[int, Finish], usage: CompletionUsage | None) -> bytes:
        """Return the events that say why each choice ended, and counts if they were asked for."""

    def failed(self, error: RequestError) -> bytes:
        """Return the event that ends a stream which cannot go on."""


COMMENT, DONE = b":\n\n", b"data: [DONE]\n\n"  # the first says nothing, the second that no event follows


def event(data: bytes) -> bytes:
    """Return one server-sent event."""
    return b"data: " + data + b"\n\n"


def typed_event(data: Any) -> bytes:
    """Write a model as a server-sent event that has its type for a name."""
    return f"event: {data.type}\n".encode() + event(data.model_dump_json().encode())


def error_event(error: RequestError) -> bytes:
    """Return a refusal as the last event of a stream."""
    return event(error.body())


@dataclass
class _ChunkShape(ABC):
    """An answer of choices, each of whose events has the same members around it."""

    PREFIX: ClassVar[str]
    CHUNK: ClassVar[type[answers.ChatChunk | answers.TextCompletion]]

    facts: AnswerFacts
    with_usage: bool  # a stream whose events all have a `usage` field
    created: int = field(default_factory=lambda: int(hostclock.seconds()))

    @property
    def _envelope(self) -> dict[str, Any]:
        return {"id": self.PREFIX + self.facts.request_id.removeprefix("req-"), "created": self.created,
                "model": self.facts.model, "system_fingerprint": self.facts.fingerprint}

    def opened(self, choices: int) -> bytes:
        """Write the events before any text: there are none."""
        return b""

    def more(self, parts: Sequence[AnswerPart], *, paced: bool = False) -> bytes:
        """Write an event for each part; unless `paced`, two where a call begins."""
        each = parts if paced else [half for part in parts if not part.empty for half in part.begun()]
        return b"".join(event(self.part(part)) for part in each)

    def ended(self, ends: Mapping[int, Finish], usage: CompletionUsage | None) -> bytes:
        """Write the last events."""
        data = [self.closing(choice, finish) for choice, finish in sorted(ends.items())]
        return b"".join(map(event, data if usage is None else [*data, self._chunk(usage=usage)])) + DONE

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as an event."""
        return error_event(error)

    @abstractmethod
    def part(self, part: AnswerPart) -> bytes:
        """Write the event for more of a choice, which may be empty."""

    @abstractmethod
    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""

    def _chunk(self, *choices: Any, usage: CompletionUsage | None = None) -> bytes:
        counts = self.facts.counts
        chunk = self.CHUNK(**self._envelope, choices=list(choices), usage=counts() if counts and choices else usage)
        return chunk.model_dump_json(exclude=None if self.with_usage or counts else {"usage"}).encode()


class ChatShape(_ChunkShape):
    """Chat completions."""

    PREFIX, CHUNK = "chatcmpl-", answers.ChatChunk

    @property
    def _framed(self) -> bool:
        """Whether sizes are padded, and depend on more than content."""
        return self.facts.padding is not None and self.facts.channels

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [answers.ChatChoice(
            index=part.choice, message=self._message(part), finish_reason=ends[part.choice],
            logprobs=None if part.logprobs is None else answers.ChatLogprobs(content=[])) for part in parts]
        body = answers.ChatCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from fill(body, *(gap for part in parts for gap in self._gaps(part)))
        if self._framed:
            framing = sum(len(each.message.model_dump_json()) + len(each.finish_reason) for each in choices)
            yield frame(framing, WHOLE_FRAME)

    def _message(self, part: AnswerPart) -> answers.AssistantMessage:
        """Return a message whose texts are to be filled in."""
        calls = [answers.ToolCall(id=call.id, type="function", function=answers.FunctionCall(name="", arguments=""))
                 for call in self._calls(part)]
        older = self.facts.older
        return answers.AssistantMessage(
            content=None if part.calls and not part.text else "", reasoning_content="" if part.thoughts else None,
            tool_calls=(None if older else calls) or None, function_call=calls[0].function if older and calls else None)

    def _gaps(self, part: AnswerPart) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        if part.text or not part.calls:
            yield b'"content":""', letters(part.text)
        if part.thoughts:
            yield b'"reasoning_content":""', letters(part.thoughts)
        for call in self._calls(part):
            yield b'"name":""', letters(call.name or "")
            yield b'"arguments":""', letters(call.arguments)
        yield b'"content":[]', items(entry.model_dump_json().encode() for entry in part.logprobs or ())

    def _calls(self, part: AnswerPart) -> Sequence[CallPart]:
        """Return the calls that are written: the older form has only the first."""
        return [call for call in part.calls if call.index == 0] if self.facts.older else part.calls

    def opened(self, choices: int) -> bytes:
        """Write an event for each choice before any text of it."""
        delta = {"role": "assistant", "content": None if self.facts.channels else ""}
        return b"".join(event(self._event(choice, delta)) for choice in range(choices))

    def part(self, part: AnswerPart) -> bytes:
        """Write the event for more of a choice."""
        logprobs = None if part.logprobs is None else answers.ChatLogprobs(content=list(part.logprobs))
        delta, calls = dict[str, Any](), self._calls(part)
        if part.text or not (part.thoughts or calls):
            delta["content"] = part.text
        if part.thoughts:
            delta["reasoning_content"] = part.thoughts
        if calls and self.facts.older:
            delta["function_call"] = _tool_call(calls[0]).function
        elif calls:
            delta["tool_calls"] = [_tool_call(call) for call in calls]
        data = self._event(part.choice, delta, logprobs)
        return data + (frame(len(to_json(delta)) - text_bytes(replace(part, calls=tuple(calls))), FRAME)
                       if self._framed else b"")

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        return self._event(choice, {}, None, finish) + (frame(len(finish), FRAME) if self._framed else b"")

    def _event(self, choice: int, delta: dict[str, Any], logprobs: answers.ChatLogprobs | None = None,
               finish: Finish | None = None) -> bytes:
        return self._chunk(answers.ChatDelta(index=choice, delta=delta, logprobs=logprobs, finish_reason=finish))


def _tool_call(call: CallPart) -> answers.ToolCall:
    begins = call.name is not None
    return answers.ToolCall(index=call.index, id=call.id if begins else None, type="function" if begins else None,
                    function=answers.FunctionCall(name=call.name, arguments=call.arguments))


class _Offsets:
    """Where the text of each token of a choice begins."""

    def __init__(self, *, leads: bool = False) -> None:
        """`leads`: the first text has lost a space that its token has."""
        self._next, self._leads = 0, leads
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def place(self, entry: TokenLogprob) -> int:
        """Return where the text of the next token begins."""
        place, text = self._next, bytes(entry.bytes)
        if self._leads and text:
            text, self._leads = text.removeprefix(b" "), False
        self._next += len(self._decoder.decode(text))
        return place


@dataclass
class TextShape(_ChunkShape):
    """Text completions."""

    PREFIX, CHUNK = "cmpl-", answers.TextCompletion

    _offsets: dict[int, _Offsets] = field(default_factory=dict, init=False)

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        choices = [self._choice(replace(part, text="", logprobs=None if part.logprobs is None else ()),
                                ends[part.choice]) for part in parts]
        body = answers.TextCompletion(**self._envelope, choices=choices, usage=usage).model_dump_json().encode()
        yield from fill(body, *(gap for part in parts for gap in self._gaps(part)))

    def _gaps(self, part: AnswerPart) -> Iterator[tuple[bytes, Iterator[bytes]]]:
        entries, offsets = part.logprobs or (), _Offsets(leads=self.facts.leads)
        yield b'"text":""', letters(part.text)
        yield b'"tokens":[]', items(json_of(_token_text(each)) for each in entries)
        yield b'"token_logprobs":[]', items(json_of(each.logprob) for each in entries)
        yield b'"top_logprobs":[]', items(json_of(_alternatives(each)) for each in entries)
        yield b'"text_offset":[]', items(json_of(offsets.place(each)) for each in entries)

    def part(self, part: AnswerPart) -> bytes:
        """Write the event for more of a choice."""
        return self._chunk(self._choice(part))

    def closing(self, choice: int, finish: Finish) -> bytes:
        """Write the event that says why a choice ended."""
        return self._chunk(self._choice(AnswerPart(choice, ""), finish))

    def _choice(self, part: AnswerPart, finish: Finish | None = None) -> answers.TextChoice:
        return answers.TextChoice(index=part.choice, text=part.text, logprobs=self._logs(part), finish_reason=finish)

    def _logs(self, part: AnswerPart) -> answers.TextLogprobs | None:
        if part.logprobs is None:
            return None
        entries = list(part.logprobs)
        offsets = self._offsets.setdefault(part.choice, _Offsets(leads=self.facts.leads))
        return answers.TextLogprobs(
            tokens=[_token_text(entry) for entry in entries],
            token_logprobs=[None if math.isnan(entry.logprob) else entry.logprob for entry in entries],
            top_logprobs=[_alternatives(entry) for entry in entries],
            text_offset=[offsets.place(entry) for entry in entries])


def _alternatives(entry: TokenLogprob) -> dict[str, float] | None:
    """Return the alternatives of a token; None where it has no log-probability."""
    return None if math.isnan(entry.logprob) else {_token_text(top): top.logprob for top in entry.top_logprobs}


def _token_text(token: answers.TopLogprob) -> str:
    r"""A token in the older form, which has no bytes: OpenAI writes parts of characters as
    `bytes:\xf0\x9f`, and as U+FFFD all of them would be one alternative."""
    try:
        bytes(token.bytes).decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)
    return token.token


def fill(body: bytes, *gaps: tuple[bytes, Iterator[bytes]]) -> Iterator[bytes]:
    """Yield JSON in which empty members, in this order, are filled with what stands between their
    brackets. A string inside of JSON has no such quotes, so the gap is the member's."""
    for empty, parts in gaps:
        before, gap, rest = body.partition(empty)
        if gap:
            yield before + empty[:-1]
            yield from parts
            body = empty[-1:] + rest
    yield body


def letters(text: str) -> Iterator[bytes]:
    """Yield a text as it stands between the quotes of a JSON string."""
    for start in range(0, len(text), _AT_ONCE):
        yield json_of(text[start:start + _AT_ONCE])[1:-1]


def items(each: Iterable[bytes]) -> Iterator[bytes]:
    """JSON values as they stand between the brackets of a list."""
    for number, item in enumerate(each):
        yield b"," + item if number else item


def text_bytes(part: AnswerPart) -> int:
    """Return how many bytes a part's texts take in JSON."""
    return sum(map(written_bytes, (part.text, part.thoughts, *(
        text for call in part.calls for text in (call.name or "", call.arguments)))))


def written_bytes(text: str) -> int:
    """Return how many bytes a text takes between the quotes of a JSON string."""
    return len(json_of(text)) - 2


def json_of(value: object) -> bytes:
    """Return a value as JSON; a number that JSON has not is null."""
    return to_json(value, inf_nan_mode="null")


def frame(nbytes: int, multiple: int) -> bytes:
    """Return spaces for the end of a JSON text, of which so many bytes depend on the answer without
    being its text."""
    return b" " * (multiple - nbytes % multiple)


COPIES = 4
"""How often a stream's last events say a text, at most."""


def pad(events: bytes, texts: int, multiple: int, room: int | None = None) -> bytes:
    """Server-sent events, and a comment after them. An answer's text has `texts` of their bytes,
    and is to take `room` (None: as many); all others take a multiple."""
    around = len(events) - texts
    missing = multiple - around % multiple + (0 if room is None else room - texts)
    return events + b":" + b" " * (missing - 3 + (multiple if missing < 3 else 0)) + b"\n\n"
