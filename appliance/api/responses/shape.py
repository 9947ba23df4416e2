"""Answers in the form of the Responses API: items, and a stream's events about them.

A stream says each text again where it ends, up to four times in all. Where sizes are padded, all
items end at the answer's end: an end amid the stream would tell by its size that the channel
changed. The last events then have as many bytes as four times the text takes, in multiples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from appliance import hostclock
from appliance.api import shapes
from appliance.api.answers import AnswerFacts, AnswerPart, CallPart, CompletionUsage, Finish, TokenLogprob
from appliance.api.problems import RequestError
from appliance.api.responses import answer, tools
from appliance.api.responses.tools import Kind, Origin
from appliance.api.shapes import COPIES, letters, written_bytes

FRAME, WHOLE_FRAME, LAST_FRAME = 2048, 4096, 8192  # bytes around the text of an event, a body, the last events
# How ids of an item begin, and how often a stream's last events say its name and its text
_KINDS: Mapping[Kind, tuple[str, int, int]] = {
    "message": ("msg_", 0, COPIES), "reasoning": ("rs_", 0, COPIES), "function_call": ("fc_", 3, 3),
    "custom_tool_call": ("ctc_", 2, 4), "local_shell_call": ("lsh_", 0, 2)}


@dataclass
class _OutputItem:
    """An item of the answer, and its text so far."""

    origin: Origin
    id: str
    place: int
    call_id: str = ""
    text: bytearray = field(default_factory=bytearray)
    ended: bool = False

    @property
    def kind(self) -> Kind:
        """The kind of item."""
        return self.origin.kind

    def written(self, status: answer.Status, *, empty: bool = False) -> answer.Output:
        """Return the item as it is; `empty`: without its text."""
        text, begun = "" if empty else self.text.decode(), status != "in_progress"
        item: dict[str, Any] = {"id": self.id, "status": status}
        call = item | {"call_id": self.call_id}
        named = call | {"name": "" if empty and begun else self.origin.name, "namespace": self.origin.namespace}
        match self.kind:
            case "message":
                return answer.OutputMessage(**item, content=[answer.OutputText(text=text)] if begun else [])
            case "reasoning":
                return answer.OutputReasoning(**item, content=[answer.ReasoningText(text=text)] if begun else [])
            case "function_call":
                return answer.OutputCall(**named, arguments=text)
            case "custom_tool_call":
                return answer.OutputFreeCall(**named, input=tools.free_text(text) if begun else "")
            case "local_shell_call":
                action = tools.command_of(self.text.decode()) if begun else {}
                return answer.OutputShellCall(**call, action=answer.ShellAction(**action))

    @property
    def last(self) -> int:
        """Bytes that the last events have of its name and its text."""
        _, names, texts = _KINDS[self.kind]
        return names * written_bytes(self.origin.name) + texts * self.said

    @property
    def said(self) -> int:
        """Bytes of its text as the last events have it."""
        text = self.text.decode()
        if self.kind == "local_shell_call":
            return len(shapes.json_of(tools.command_of(text)))
        return written_bytes(tools.free_text(text) if self.kind == "custom_tool_call" else text)


@dataclass
class ResponseShape:
    """One answer as it is written."""

    facts: AnswerFacts
    echo: Mapping[str, Any] = field(default_factory=dict)  # numbers and choices of the request that the answer repeats
    origins: Mapping[str, Origin] = field(default_factory=dict)  # of the functions that may be called
    created: int = field(default_factory=lambda: int(hostclock.seconds()))
    _items: list[_OutputItem] = field(default_factory=list, init=False)
    _number: int = field(default=0, init=False)  # of the next event

    def whole(self, parts: Sequence[AnswerPart], ends: Mapping[int, Finish], usage: CompletionUsage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        part = parts[0]
        items = self._of(part)
        status = _status(ends[part.choice])
        output = [item.written(status if item is items[-1] else "completed", empty=True) for item in items]
        body = self._response(status, output, usage).model_dump_json().encode()
        yield from shapes.fill(body, *(gap for item in items for gap in _gaps(item, part)))
        if self.facts.padding is not None:
            yield shapes.frame(len(body), WHOLE_FRAME)

    def _of(self, part: AnswerPart) -> list[_OutputItem]:
        """Return the items of a whole answer."""
        items: list[_OutputItem] = []
        if part.thoughts:
            items.append(self._item(len(items), "reasoning"))
        if part.text or part.logprobs is not None or not (part.thoughts or part.calls):
            items.append(self._item(len(items), "message"))
        for call in part.calls:
            item = self._call(len(items), call)
            if item.kind == "local_shell_call":
                item.text += call.arguments.encode()
            items.append(item)
        return items

    def _item(self, place: int, kind: Kind) -> _OutputItem:
        return _OutputItem(Origin(kind, ""), self._id(kind, place), place)

    def _call(self, place: int, call: CallPart) -> _OutputItem:
        """Return an item for a call, by the names of the client."""
        name = call.name or ""
        origin = self.origins.get(name, Origin("function_call", name))
        return _OutputItem(origin, self._id(origin.kind, place), place, call.id)

    def _id(self, kind: Kind, place: int) -> str:
        return f"{_KINDS[kind][0]}{self.facts.request_id.removeprefix('req-')}{place:04}"

    def _response(self, status: answer.Status, output: list[answer.Output],
                  usage: CompletionUsage | None = None) -> answer.Response:
        return answer.Response(
            id=f"resp_{self.facts.request_id.removeprefix('req-')}", created_at=self.created, status=status,
            output=output, model=self.facts.model, usage=None if usage is None else answer.ResponseUsage.of(usage),
            incomplete_details=answer.Incomplete() if status == "incomplete" else None, **self.echo)

    def opened(self, choices: int) -> bytes:
        """Write the events before any text."""
        begun = self._response("in_progress", [])
        return b"".join(self._say(answer.ResponseEvent, type=f"response.{kind}", response=begun)
                        for kind in ("created", "in_progress"))

    def more(self, parts: Sequence[AnswerPart], *, paced: bool = False) -> bytes:
        """Write the events for more of the answer, a comment where there is none."""
        events = b"".join(map(self._part, parts))
        if self.facts.padding is None:
            return events or (shapes.COMMENT if paced else b"")
        return shapes.pad(events, sum(map(shapes.text_bytes, parts)), FRAME)

    def _part(self, part: AnswerPart) -> bytes:
        events = b"".join(self._called(call) for call in part.calls if call.name is None)  # whose item is the last
        if part.thoughts:
            events += self._added("reasoning", part.thoughts)
        if part.text or part.logprobs is not None:
            events += self._added("message", part.text, logprobs=list(part.logprobs or ()))
        return events + b"".join(self._called(call) for call in part.calls if call.name is not None)

    def _called(self, call: CallPart) -> bytes:
        """Return the events for more of a call."""
        events = b"" if call.name is None else self._begin(self._call(len(self._items), call))
        if not call.arguments:
            return events
        item = next(item for item in self._items if item.call_id == call.id)
        if item.kind == "function_call":
            return events + self._delta(item, call.arguments)
        item.text += call.arguments.encode()  # its client's form of them comes whole, at its end
        if self.facts.padding is None:
            return events
        return events + b":" + b" " * written_bytes(call.arguments) + b"\n\n"

    def _added(self, kind: Kind, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """Return more text of a channel: in the last item if it is of that kind, else a new one."""
        begun = b"" if self._items and self._items[-1].kind == kind else self._begin(
            self._item(len(self._items), kind))
        return begun + self._delta(self._items[-1], text, logprobs)

    def _begin(self, item: _OutputItem) -> bytes:
        """Begin an item. The item before it ends, unless sizes are padded."""
        ended = self._end(self._items[-1], "completed") if self._items and self.facts.padding is None else b""
        self._items.append(item)
        events = ended + self._whole("added", item, "in_progress")
        return events if item.call_id else events + self._text("added", item, "")

    def _whole(self, what: str, item: _OutputItem, status: answer.Status) -> bytes:
        return self._say(answer.ItemEvent, type=f"response.output_item.{what}", output_index=item.place,
                         item=item.written(status))

    def _text(self, what: str, item: _OutputItem, text: str) -> bytes:
        kind = answer.OutputText if item.kind == "message" else answer.ReasoningText
        return self._about(item, answer.PartEvent, type=f"response.content_part.{what}", part=kind(text=text))

    def _delta(self, item: _OutputItem, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        item.text += text.encode()
        if item.kind == "message":
            return self._about(item, answer.OutputTextDelta, delta=text, logprobs=logprobs)
        kind = answer.ReasoningTextDelta if item.kind == "reasoning" else answer.ArgumentsDelta
        return self._about(item, kind, delta=text)

    def _end(self, item: _OutputItem, status: answer.Status) -> bytes:
        """Return the events that say an item's text again."""
        if item.ended:
            return b""
        item.ended, text, events = True, item.text.decode(), b""
        if item.kind == "function_call":
            events = self._about(item, answer.ArgumentsDone, name=item.origin.name, arguments=text)
        elif item.kind == "custom_tool_call":
            free = tools.free_text(text)
            events = self._about(item, answer.CustomInputDelta, delta=free)
            events += self._about(item, answer.CustomInputDone, input=free)
        elif item.kind != "local_shell_call":
            kind = answer.OutputTextDone if item.kind == "message" else answer.ReasoningTextDone
            events = self._about(item, kind, text=text) + self._text("done", item, text)
        return events + self._whole("done", item, status)

    def ended(self, ends: Mapping[int, Finish], usage: CompletionUsage | None) -> bytes:
        """Write the last events."""
        status = _status(next(iter(ends.values())))
        begun = b"" if self._items else self._begin(self._item(0, "message"))
        each = [(item, status if item is self._items[-1] else "completed") for item in self._items]
        events = begun + b"".join(self._end(item, own) for item, own in each)
        events += self._say(answer.ResponseEvent, type=f"response.{status}", response=self._response(
            status, [item.written(own) for item, own in each], usage))
        if self.facts.padding is None:
            return events
        missing = sum(self.facts.missing(item.text.decode()) for item in self._items)
        most = missing + sum(written_bytes(item.origin.name) + max(item.said, written_bytes(item.text.decode()))
                             for item in self._items)
        return shapes.pad(events, sum(item.last for item in self._items), LAST_FRAME,
                          COPIES * (most + -most % self.facts.padding - missing))

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as the last event."""
        return self._say(answer.ErrorEvent, code=error.code, message=error.summary, param=error.param,
                         error=json.loads(error.body())["error"])

    def _about(self, item: _OutputItem, kind: type[BaseModel], **more: object) -> bytes:
        return self._say(kind, output_index=item.place, item_id=item.id, **more)

    def _say(self, kind: type[BaseModel], **more: object) -> bytes:
        self._number += 1
        return shapes.typed_event(kind(sequence_number=self._number - 1, **more))


def _status(finish: Finish) -> answer.Status:
    return "incomplete" if finish == "length" else "completed"


def _gaps(item: _OutputItem, part: AnswerPart) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    if item.kind == "local_shell_call":
        return
    if item.call_id:
        [call] = [each for each in part.calls if each.id == item.call_id]
        yield b'"name":""', letters(item.origin.name)
        yield (b'"arguments":""', letters(call.arguments)) if item.kind == "function_call" else (
            b'"input":""', letters(tools.free_text(call.arguments)))
        return
    yield b'"text":""', letters(part.text if item.kind == "message" else part.thoughts)
    if item.kind == "message":
        yield b'"logprobs":[]', shapes.items(entry.model_dump_json().encode() for entry in part.logprobs or ())
