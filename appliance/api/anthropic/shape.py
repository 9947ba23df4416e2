"""Answers in the form of the Messages API: blocks, one after the other, and a stream's events about
them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic_core import from_json

from appliance.api.answers import AnswerFacts, AnswerPart, CallPart, CompletionUsage, Finish
from appliance.api.anthropic import answer
from appliance.api.problems import RequestError
from appliance.api.shapes import fill, frame, letters, pad, text_bytes, typed_event

FRAME, WHOLE_FRAME = 1024, 4096  # bytes around the text of an event, and of a body, where sizes are padded
_REASONS: Mapping[Finish, answer.StopReason] = {
    "length": "max_tokens", "tool_calls": "tool_use", "function_call": "tool_use"}


@dataclass
class MessageShape:
    """One answer as it is written."""

    facts: AnswerFacts
    _open: str | None = field(default=None, init=False)  # the block that goes on: its type, or its call's id
    _blocks: int = field(default=0, init=False)  # that have begun

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        part = parts[0]
        blocks: list[answer.ContentBlock] = [answer.ThinkingBlock()] if part.thoughts else []
        blocks += [answer.TextBlock()] if part.text or not (part.thoughts or part.calls) else []
        blocks += [answer.ToolUseBlock(id=call.id) for call in part.calls]
        stop = self._stop(part.choice, ends[part.choice])
        body = self._message(blocks, usage, stop).model_dump_json().encode()
        yield from fill(body, *_gaps(part))
        if self.facts.padding is not None:
            yield frame(len(body), WHOLE_FRAME)

    def _message(self, blocks: list[answer.ContentBlock], usage: CompletionUsage,
                 stop: answer.MessageStopReason | None = None) -> answer.MessageAnswer:
        return answer.MessageAnswer(
            id="msg_" + self.facts.request_id.removeprefix("req-"), model=self.facts.model, content=blocks,
            usage=answer.MessageUsage.of(usage), **({} if stop is None else stop.model_dump()))

    def _stop(self, choice: int, finish: Finish) -> answer.MessageStopReason:
        sequence = self.facts.stopped.get(choice) if finish == "stop" else None
        return answer.MessageStopReason(
            stop_reason=_REASONS.get(finish, "end_turn" if sequence is None else "stop_sequence"),
            stop_sequence=sequence)

    def opened(self, choices: int) -> bytes:
        """Write the event before any text."""
        usage = self.facts.usage().model_copy(update={"completion_tokens": 0})
        return typed_event(answer.MessageStart(message=self._message([], usage)))

    def more(self, parts: Sequence[AnswerPart], *, paced: bool = False) -> bytes:
        """Write the events for more of the answer, a ping where there is none."""
        events = b"".join(self._part(part) for part in parts)
        if self.facts.padding is not None:
            return pad(events or typed_event(answer.Ping()), sum(map(text_bytes, parts)), FRAME)
        return events or (typed_event(answer.Ping()) if paced else b"")

    def _part(self, part: AnswerPart) -> bytes:
        events = b"".join(self._called(call) for call in part.calls if call.name is None)  # whose block is the last
        if part.thoughts:
            events += self._in("thinking", answer.ThinkingBlock())
            events += self._delta(answer.ThinkingDelta(thinking=part.thoughts))
        if part.text:
            events += self._in("text", answer.TextBlock()) + self._delta(answer.TextDelta(text=part.text))
        return events + b"".join(self._called(call) for call in part.calls if call.name is not None)

    def _called(self, call: CallPart) -> bytes:
        """Return the events for more of a call."""
        begun = self._in(call.id, answer.ToolUseBlock(id=call.id, name=call.name or ""))
        return begun + (self._delta(answer.InputJsonDelta(partial_json=call.arguments)) if call.arguments else b"")

    def _in(self, name: str, block: answer.ContentBlock) -> bytes:
        """Return the events after which a block is open; none if it is."""
        if self._open == name:
            return b""
        ended, self._open = self._end(), name
        self._blocks += 1
        return ended + typed_event(answer.BlockStart(index=self._blocks - 1, content_block=block))

    def _delta(self, delta: answer.TextDelta | answer.ThinkingDelta | answer.InputJsonDelta) -> bytes:
        return typed_event(answer.BlockDelta(index=self._blocks - 1, delta=delta))

    def _end(self) -> bytes:
        return b"" if self._open is None else typed_event(answer.BlockStop(index=self._blocks - 1))

    def ended(self, ends: Mapping[int, Finish], usage: CompletionUsage | None) -> bytes:
        """Write the last events."""
        [(choice, finish)] = ends.items()
        begun = b"" if self._blocks else self._in("text", answer.TextBlock())
        counts = answer.MessageUsage.of(usage or self.facts.usage())
        last = answer.MessageDelta(delta=self._stop(choice, finish), usage=counts)
        events = begun + self._end() + typed_event(last) + typed_event(answer.MessageStop())
        return events if self.facts.padding is None else pad(events, 0, FRAME)

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as the last event."""
        return b"event: error\ndata: " + answer.refusal_body(error, self.facts.request_id) + b"\n\n"


def _gaps(part: AnswerPart) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    if part.thoughts:
        yield b'"thinking":""', letters(part.thoughts)
    if part.text:
        yield b'"text":""', letters(part.text)
    for call in part.calls:
        yield b'"name":""', letters(call.name or "")
        yield b'"input":{}', iter([_members(call.arguments)])


def _members(arguments: str) -> bytes:
    """Return the members of the object that arguments are; none where they were cut."""
    try:
        value: Any = from_json(arguments, cache_strings="none")  # a cache of all strings would keep them
    except ValueError:
        return b""
    return arguments.strip()[1:-1].encode() if isinstance(value, dict) else b""
