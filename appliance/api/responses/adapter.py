"""A request of the Responses API as a chat, and the way back of refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from appliance.api.adapter import Adapter, Names, Translation, as_chat, read_as
from appliance.api.responses import body, tools
from appliance.api.responses.answer import EVENTS, Response
from appliance.api.responses.shape import ResponseShape
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.other import RESPONSES
from appliance.api.wishes.table import EFFORTS

_NAMES = (  # of the chat's parameters -> ours
    (r"messages", "input"), (r"tool_choice\.function", "tool_choice"),
    (r"response_format\.json_schema", "text.format"), (r"response_format", "text.format"),
    (r"max_completion_tokens|max_tokens", "max_output_tokens"), (r"reasoning_effort", "reasoning.effort"),
    (r"logprobs", "top_logprobs"))


def read(data: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    """Return a body as a chat. Raises RequestError."""
    request = read_as(data, body.ResponseRequest, RESPONSES, drop, ignored, more=True)
    offered = tools.offers_of(request.tools or (), ignored)
    chat, places = _Turns(request, offered, ignored).chat()
    names = Names(_NAMES, places, offered.places, flat=True)
    chat_request = as_chat(request, chat, names, drop, ignored)
    echo = {"temperature": getattr(chat_request, "temperature", None), "top_p": getattr(chat_request, "top_p", None),
            "max_output_tokens": request.max_output_tokens,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "tool_choice": request.tool_choice if isinstance(request.tool_choice, str) else "auto"}
    return Translation(chat_request, lambda facts: ResponseShape(facts, echo, offered.origins), names=names)


def text_of(content: body.Content) -> str:
    """Return a content's text, its parts on lines of their own."""
    return content if isinstance(content, str) else "\n".join(part.said for part in content)


class _Turns:
    """A request's items as the messages of a chat, each with its path in the request."""

    def __init__(self, request: body.ResponseRequest, offered: tools.ToolOffers, ignored: Ignored) -> None:
        self._request, self._tools, self._ignored = request, offered, ignored
        self._turns: list[dict[str, Any]] = []
        self._places: list[str] = []
        self._thoughts: str | None = None  # that wait for what they led to

    def chat(self) -> tuple[dict[str, Any], list[str]]:
        """Return the chat's object, and the paths of its messages."""
        request = self._request
        if request.instructions is not None:
            self._add("instructions", {"role": "system", "content": request.instructions})
        if isinstance(request.input, str):
            self._add("input", {"role": "user", "content": request.input})
        else:
            self._items(request.input)
        chat = {
            "messages": self._turns, "stream_options": None, "max_completion_tokens": request.max_output_tokens,
            "reasoning_effort": self._effort(), "tools": None if request.tools is None else self._tools.functions,
            "tool_choice": tools.choice_of(request.tool_choice, self._tools, self._ignored),
            "response_format": _format(request.text),
            "logprobs": request.logprobs, "top_logprobs": request.top_logprobs if request.logprobs else None}
        for place, name in enumerate(request.include or ()):
            if name not in body.INCLUDED:
                self._ignored.note(("include", place), f"allowed: {', '.join(body.INCLUDED)}")
        return chat, self._places

    def _effort(self) -> str | None:
        """Return the effort of a chat, and note an unknown one."""
        effort = self._request.effort
        if effort is None or effort in EFFORTS:
            return effort
        self._ignored.note(("reasoning", "effort"), RESPONSES["reasoning.effort"].words())
        return None

    def _items(self, items: Iterable[body.Item]) -> None:
        last = ""
        for place, item in enumerate(items):
            path = f"input.{place}"
            match item:
                case body.Reasoning():
                    parts = item.summary if item.content is None else item.content
                    said = [*filter(None, [self._thoughts]), *(part.said for part in parts)]
                    self._thoughts, last = "\n".join(said) or None, path
                case body.InputMessage(role="assistant"):
                    self._add(path, self._assistant(text_of(item.content)))
                case body.InputMessage():
                    self._add(path, {"role": item.role, "content": text_of(item.content)})
                case body.FunctionToolCall():
                    self._call(path, item.call_id, tools.visible(item.namespace, item.name), item.arguments)
                case body.CustomToolCall():
                    self._call(path, item.call_id, tools.visible(item.namespace, item.name),
                               tools.free_arguments(item.input))
                case body.ShellToolCall():
                    self._call(path, item.call_id or item.id or "", tools.SHELL, tools.shell_arguments(item.action))
                case body.ShellToolCallOutput():
                    self._add(path, {"role": "tool", "tool_call_id": item.id, "content": item.output})
                case body.ToolCallOutput():
                    self._add(path, {"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output),
                                     **({} if item.name is None else {"name": item.name})})
                case body.UnreadItem():
                    self._ignored.note(("input", place), "a model reads nothing of this item")
        if self._thoughts is not None:
            self._add(last, self._assistant(""))

    def _call(self, path: str, call_id: str, name: str, arguments: str) -> None:
        """A call, of the assistant's turn before it if there is one."""
        if not self._turns or self._turns[-1]["role"] != "assistant" or self._thoughts is not None:
            self._add(path, self._assistant(""))
        function = {"name": name, "arguments": arguments}
        self._turns[-1].setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": function})

    def _assistant(self, text: str) -> dict[str, Any]:
        thoughts, self._thoughts = self._thoughts, None
        return {"role": "assistant", "content": text, **({} if thoughts is None else {"reasoning_content": thoughts})}

    def _add(self, path: str, turn: dict[str, Any]) -> None:
        self._turns.append(turn)
        self._places.append(path)


def _format(text: body.TextConfig | None) -> Any:
    form = None if text is None else text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": form.model_dump(by_alias=True, exclude={"type"})}


RESPONSE = Adapter("/v1/responses", "An answer to items, in the form of the Responses API; nothing is stored.",
                  body.ResponseRequest, read, Response, EVENTS, RESPONSES)
