"""Answers in the form of the Responses API: items, and a stream's events about them.

A stream says each text again where it ends, up to four times in all. Where sizes are padded, all
items end at the answer's end: an end amid the stream would tell by its size that the channel
changed. The last events then have as many bytes as four times the text takes, in multiples.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import BaseModel

from appliance import hostclock
from appliance.api.adapter import Told
from appliance.api.answers import CallPart, Finish, Part, TokenLogprob, Usage
from appliance.api.problems import RequestError
from appliance.api.responses import answer, tools
from appliance.api.responses.answer import (
    Incomplete,
    Output,
    OutputCall,
    OutputFreeCall,
    OutputMessage,
    OutputReasoning,
    OutputShellCall,
    OutputText,
    ReasoningText,
    Response,
    ResponseUsage,
    ShellAction,
    Status,
)
from appliance.api.responses.tools import Origin
from appliance.api.shapes import COMMENT, COPIES, filled, frame, items, json_of, letters, padded

FRAME, WHOLE_FRAME, LAST_FRAME = 2048, 4096, 8192  # bytes around the text of an event, a body, the last events
Kind = Literal["message", "reasoning"] | tools.Kind
_PREFIX: Mapping[Kind, str] = {"message": "msg_", "reasoning": "rs_", "function_call": "fc_",
                               "custom_tool_call": "ctc_", "local_shell_call": "lsh_"}
# How often a stream's last events say the name and the text of an item
_LAST: Mapping[Kind, tuple[int, int]] = {"message": (0, COPIES), "reasoning": (0, COPIES), "function_call": (3, 3),
                                         "custom_tool_call": (2, 4), "local_shell_call": (0, 2)}


@dataclass(frozen=True)
class Echo:
    """Numbers and choices of a request that its answer repeats."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    tool_choice: Literal["none", "auto", "required"] = "auto"


@dataclass
class _Item:
    """An item of the answer, and its text so far."""

    kind: Kind
    id: str
    place: int
    call_id: str = ""
    name: str = ""
    namespace: str | None = None
    text: bytearray = field(default_factory=bytearray)
    ended: bool = False

    def written(self, status: Status, *, empty: bool = False) -> Output:
        """The item as it is; `empty`: without its text."""
        text = "" if empty else self.text.decode()
        begun = status != "in_progress"
        match self.kind:
            case "message":
                return OutputMessage(id=self.id, status=status, content=[OutputText(text=text)] if begun else [])
            case "reasoning":
                return OutputReasoning(id=self.id, status=status, content=[ReasoningText(text=text)] if begun else [])
            case "function_call":
                name = "" if empty and begun else self.name
                return OutputCall(id=self.id, status=status, name=name, arguments=text, call_id=self.call_id,
                                  namespace=self.namespace)
            case "custom_tool_call":
                name = "" if empty and begun else self.name
                return OutputFreeCall(id=self.id, status=status, name=name, call_id=self.call_id,
                                      input=tools.free_text(text) if begun else "", namespace=self.namespace)
            case "local_shell_call":
                action = ShellAction(**tools.command_of(self.text.decode())) if begun else ShellAction()
                return OutputShellCall(id=self.id, status=status, call_id=self.call_id, action=action)

    @property
    def last(self) -> int:
        """Bytes that the last events have of its name and its text."""
        names, texts = _LAST[self.kind]
        return names * _written(self.name) + texts * self.said

    @property
    def said(self) -> int:
        """Bytes of its text as the last events have it."""
        text = self.text.decode()
        if self.kind == "custom_tool_call":
            return _written(tools.free_text(text))
        return len(json_of(tools.command_of(text))) if self.kind == "local_shell_call" else _written(text)


@dataclass
class ResponseShape:
    """Writes one answer."""

    told: Told
    echo: Echo = Echo()
    origins: Mapping[str, Origin] = field(default_factory=dict)  # of the functions that may be called
    created: int = field(default_factory=lambda: int(hostclock.seconds()))
    _items: list[_Item] = field(default_factory=list, init=False)
    _number: int = field(default=0, init=False)  # of the next event

    def whole(self, parts: Sequence[Part], ends: Mapping[int, Finish], usage: Usage) -> Iterator[bytes]:
        """Write the body of an answer that is not streamed."""
        part = parts[0]
        found = self._of(part)
        status = _status(ends[part.choice])
        output = [item.written(status if item is found[-1] else "completed", empty=True) for item in found]
        body = self._response(status, output, usage).model_dump_json().encode()
        yield from filled(body, *(gap for item in found for gap in _gaps(item, part)))
        if self.told.padding is not None:
            yield frame(len(body), WHOLE_FRAME)

    def _of(self, part: Part) -> list[_Item]:
        """The items of a whole answer."""
        found: list[_Item] = []
        if part.thoughts:
            found.append(self._item("reasoning", len(found)))
        if part.text or part.logprobs is not None or not (part.thoughts or part.calls):
            found.append(self._item("message", len(found)))
        for call in part.calls:
            item = self._call(len(found), call.id, call.name or "")
            if item.kind == "local_shell_call":
                item.text += call.arguments.encode()
            found.append(item)
        return found

    def _item(self, kind: Kind, place: int, call_id: str = "", name: str = "", namespace: str | None = None) -> _Item:
        return _Item(kind, f"{_PREFIX[kind]}{self._own_id}{place:04}", place, call_id, name, namespace)

    def _call(self, place: int, call_id: str, name: str) -> _Item:
        """An item for a call, by the names of the client."""
        origin = self.origins.get(name, Origin("function_call", name))
        return self._item(origin.kind, place, call_id, origin.name, origin.namespace)

    @property
    def _own_id(self) -> str:
        return self.told.request_id.removeprefix("req-")

    def _response(self, status: Status, output: list[Output], usage: Usage | None = None) -> Response:
        echo = self.echo
        return Response(
            id=f"resp_{self._own_id}", created_at=self.created, status=status, output=output, model=self.told.model,
            usage=None if usage is None else ResponseUsage.of(usage),
            incomplete_details=Incomplete() if status == "incomplete" else None, temperature=echo.temperature,
            top_p=echo.top_p, max_output_tokens=echo.max_output_tokens, parallel_tool_calls=echo.parallel_tool_calls,
            tool_choice=echo.tool_choice)

    def opened(self, choices: int) -> bytes:
        """Write the events before any text."""
        begun = self._response("in_progress", [])
        return self._say(answer.ResponseEvent, type="response.created", response=begun) + self._say(
            answer.ResponseEvent, type="response.in_progress", response=begun)

    def more(self, parts: Sequence[Part], *, paced: bool = False) -> bytes:
        """Write the events for more of the answer, a comment where there is none."""
        events = b"".join(self._part(part) for part in parts)
        if self.told.padding is None:
            return events or (COMMENT if paced else b"")
        return padded(events, sum(map(_text_bytes, parts)), FRAME)

    def _part(self, part: Part) -> bytes:
        events = b"".join(self._called(call) for call in part.calls if call.name is None)  # whose item is the last
        if part.thoughts:
            events += self._added("reasoning", part.thoughts)
        if part.text or part.logprobs is not None:
            events += self._added("message", part.text, logprobs=list(part.logprobs or ()))
        return events + b"".join(self._called(call) for call in part.calls if call.name is not None)

    def _called(self, call: CallPart) -> bytes:
        """The events for more of a call."""
        events = b"" if call.name is None else self._begin(self._call(len(self._items), call.id, call.name))
        if not call.arguments:
            return events
        item = next(item for item in self._items if item.call_id == call.id)
        if item.kind == "function_call":
            return events + self._delta(item, call.arguments)
        item.text += call.arguments.encode()  # its client's form of them comes whole, at its end
        return events if self.told.padding is None else events + b":" + b" " * _written(call.arguments) + b"\n\n"

    def _added(self, kind: Kind, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        """More text of a channel: of the last item, if it is of that kind, else of a new one."""
        begun = b"" if self._items and self._items[-1].kind == kind else self._begin(
            self._item(kind, len(self._items)))
        return begun + self._delta(self._items[-1], text, logprobs)

    def _begin(self, item: _Item) -> bytes:
        """A new item; the one before it ends, unless sizes are padded."""
        ended = self._end(self._items[-1], "completed") if self._items and self.told.padding is None else b""
        self._items.append(item)
        events = ended + self._say(answer.ItemEvent, type="response.output_item.added", output_index=item.place,
                                   item=item.written("in_progress"))
        if item.call_id:
            return events
        return events + self._about(item, answer.PartEvent, type="response.content_part.added",
                                    part=OutputText() if item.kind == "message" else ReasoningText())

    def _delta(self, item: _Item, text: str, logprobs: Sequence[TokenLogprob] = ()) -> bytes:
        item.text += text.encode()
        if item.kind == "message":
            return self._about(item, answer.TextDelta, delta=text, logprobs=logprobs)
        kind = answer.ThoughtDelta if item.kind == "reasoning" else answer.ArgumentsDelta
        return self._about(item, kind, delta=text)

    def _end(self, item: _Item, status: Status) -> bytes:
        """The events that say an item's text again."""
        if item.ended:
            return b""
        item.ended, text = True, item.text.decode()
        if item.kind == "function_call":
            events = self._about(item, answer.ArgumentsDone, name=item.name, arguments=text)
        elif item.kind == "custom_tool_call":
            said_text = tools.free_text(text)
            events = self._about(item, answer.InputDelta, delta=said_text)
            events += self._about(item, answer.InputDone, input=said_text)
        elif item.kind == "local_shell_call":
            events = b""
        else:
            said = item.kind == "message"
            events = self._about(item, answer.TextDone if said else answer.ThoughtDone, text=text)
            events += self._about(item, answer.PartEvent, type="response.content_part.done",
                                  part=OutputText(text=text) if said else ReasoningText(text=text))
        return events + self._say(answer.ItemEvent, type="response.output_item.done", output_index=item.place,
                                  item=item.written(status))

    def ended(self, ends: Mapping[int, Finish], usage: Usage | None) -> bytes:
        """Write the last events."""
        status = _status(next(iter(ends.values())))
        begun = b"" if self._items else self._begin(self._item("message", 0))
        last = self._items[-1]
        events = begun + b"".join(self._end(item, status if item is last else "completed") for item in self._items)
        output = [item.written(status if item is last else "completed") for item in self._items]
        events += self._say(answer.ResponseEvent, type=f"response.{status}", response=self._response(
            status, output, usage))
        if self.told.padding is None:
            return events
        most = sum(_written(item.name) + max(item.said, _written(item.text.decode())) for item in self._items)
        return padded(events, sum(item.last for item in self._items), LAST_FRAME,
                      COPIES * (most + -most % self.told.padding))

    def failed(self, error: RequestError) -> bytes:
        """Write a refusal as the last event."""
        told = json.loads(error.body())["error"]
        return self._say(answer.ErrorEvent, code=told["code"], message=told["message"], param=told["param"], error=told)

    def _about(self, item: _Item, kind: type[BaseModel], **more: object) -> bytes:
        return self._say(kind, output_index=item.place, item_id=item.id, **more)

    def _say(self, kind: type[BaseModel], **more: object) -> bytes:
        event = kind(sequence_number=self._number, **more)
        self._number += 1
        name: str = event.type  # type: ignore[attr-defined]  # each kind has one
        return b"event: " + name.encode() + b"\ndata: " + event.model_dump_json().encode() + b"\n\n"


def _status(finish: Finish) -> Status:
    return "incomplete" if finish == "length" else "completed"


def _written(text: str) -> int:
    """Bytes of a text within quotes of JSON."""
    return len(json_of(text)) - 2


def _gaps(item: _Item, part: Part) -> Iterator[tuple[bytes, Iterator[bytes]]]:
    if item.kind == "local_shell_call":
        return
    if item.call_id:
        [call] = [each for each in part.calls if each.id == item.call_id]
        yield b'"name":""', letters(item.name)
        yield (b'"arguments":""', letters(call.arguments)) if item.kind == "function_call" else (
            b'"input":""', letters(tools.free_text(call.arguments)))
        return
    yield b'"text":""', letters(part.text if item.kind == "message" else part.thoughts)
    if item.kind == "message":
        yield b'"logprobs":[]', items(entry.model_dump_json().encode() for entry in part.logprobs or ())


def _text_bytes(part: Part) -> int:
    """Bytes of an event's texts, as JSON has them."""
    texts = [part.text, part.thoughts, *(each for call in part.calls for each in (call.name or "", call.arguments))]
    return sum(map(_written, texts))
