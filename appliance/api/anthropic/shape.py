"""Answers in the form of the Messages API: blocks, one after the other, and a stream's events about
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel
from pydantic_core import from_json

from appliance.api.adapter import Told
from appliance.api.answers import CallPart, Finish, Part, Usage
from appliance.api.anthropic.answer import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputDelta,
    MessageAnswer,
    MessageDelta,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    Stop,
    StopReason,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
    refused,
)
from appliance.api.problems import RequestError
from appliance.api.shapes import filled, frame, json_of, letters, padded

FRAME, WHOLE_FRAME = 1024, 4096  # bytes around the text of an event, and of a body, where sizes are padded
_REASONS: Mapping[Finish, StopReason] = {"length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"}


@dataclass
class MessageShape:
    """Writes one answer."""

    told: Told
    _open: str | None = field(default=None, init=False)  # the block that goes on: its type, or its call's id
    _blocks: int = field(default=0, init=False)  # that have begun

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        part = parts[0]
        blocks: list[ContentBlock] = [ThinkingBlock()] if part.thoughts else []
        blocks += [TextBlock()] if part.text or not (part.thoughts or part.calls) else []
        blocks += [ToolUseBlock(id=call.id) for call in part.calls]
        stop = self._stop(part.choice, ends[part.choice])
        body = self._message(blocks, usage, stop).model_dump_json().encode()
        yield from filled(body, *_gaps(part))
        if self.told.padding is not None:
            yield frame(len(body), WHOLE_FRAME)

    def _message(self, blocks: list[ContentBlock], usage: Usage, stop: Stop | None = None) -> MessageAnswer:
        return MessageAnswer(
            id="msg_" + self.told.request_id.removeprefix("req-"), model=self.told.model, content=blocks,
            usage=MessageUsage.of(usage), stop_reason=None if stop is None else stop.stop_reason,
            stop_sequence=None if stop is None else stop.stop_sequence)

    def _stop(self, choice: int, finish: Finish) -> Stop:
        sequence = self.told.stopped.get(choice) if finish == "stop" else None
        return Stop(stop_reason=_REASONS.get(finish, "end_turn" if sequence is None else "stop_sequence"),
                    stop_sequence=sequence)

    def opened(self, choices: int) -> bytes:
        """Write the event before any text."""
        usage = self.told.usage().model_copy(update={"completion_tokens": 0})
        return _event(MessageStart(message=self._message([], usage)))

    def more(self, parts: Sequence[Part], *, paced: bool = False) -> bytes:
        """Write the events for more of the answer, a ping where there is none."""
        events = b"".join(self._part(part) for part in parts)
        if self.told.padding is not None:
            return padded(events or _event(Ping()), sum(map(_text_bytes, parts)), FRAME)
        return events or (_event(Ping()) if paced else b"")

    def _part(self, part: Part) -> bytes:
        events = b"".join(self._called(call) for call in part.calls if call.name is None)  # whose block is the last
        if part.thoughts:
            events += self._in("thinking", ThinkingBlock()) + self._delta(ThinkingDelta(thinking=part.thoughts))
        if part.text:
            events += self._in("text", TextBlock()) + self._delta(TextDelta(text=part.text))
        return events + b"".join(self._called(call) for call in part.calls if call.name is not None)

    def _called(self, call: CallPart) -> bytes:
        """The events for more of a call."""
        begun = self._in(call.id, ToolUseBlock(id=call.id, name=call.name or ""))
        return begun + (self._delta(InputDelta(partial_json=call.arguments)) if call.arguments else b"")

    def _in(self, name: str, block: ContentBlock) -> bytes:
        """The events after which a block is open; none if it is."""
        if self._open == name:
            return b""
        ended, self._open = self._end(), name
        self._blocks += 1
        return ended + _event(BlockStart(index=self._blocks - 1, content_block=block))

    def _delta(self, delta: TextDelta | ThinkingDelta | InputDelta) -> bytes:
        return _event(BlockDelta(index=self._blocks - 1, delta=delta))

    def _end(self) -> bytes:
        return b"" if self._open is None else _event(BlockStop(index=self._blocks - 1))

    def ended(self, ends: Mapping[int, Finish], usage: Usage | None) -> bytes:
        """Write the last events."""
        [(choice, finish)] = ends.items()
        begun = b"" if self._blocks else self._in("text", TextBlock())
        counts = MessageUsage.of(usage or self.told.usage())
        last = MessageDelta(delta=self._stop(choice, finish), usage=counts)
        events = begun + self._end() + _event(last) + _event(MessageStop())
        return events if self.told.padding is None else padded(events, 0, FRAME)

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as the last event."""
        return b"event: error\ndata: " + refused(error, self.told.request_id) + b"\n\n"


def _event(event: BaseModel) -> bytes:
    name: str = event.type  # type: ignore[attr-defined]  # each kind has one
    return b"event: " + name.encode() + b"\ndata: " + event.model_dump_json().encode() + b"\n\n"


def _gaps(part: Part) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    if part.thoughts:
        yield b'"thinking":""', letters(part.thoughts)
    if part.text:
        yield b'"text":""', letters(part.text)
    for call in part.calls:
        yield b'"name":""', letters(call.name or "")
        yield b'"input":{}', iter([_members(call.arguments)])


def _members(arguments: str) -> bytes:
    """The members of the object that arguments are; none where they were cut."""
    try:
        value: Any = from_json(arguments, cache_strings="none")  # a cache of all strings would keep them
    except ValueError:
        return b""
    return arguments.strip()[1:-1].encode() if isinstance(value, dict) else b""


def _text_bytes(part: Part) -> int:
    """Bytes of an event's texts, as JSON has them."""
    texts = [part.text, part.thoughts, *(each for call in part.calls for each in (call.name or "", call.arguments))]
    return sum(len(json_of(text)) - 2 for text in texts)
