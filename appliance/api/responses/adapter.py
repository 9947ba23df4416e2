"""A request of the Responses API as a chat, and the way back of refusals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from appliance.api import findings
from appliance.api.adapter import Adapter, Ask, Names, Told, read_as
from appliance.api.responses.answer import EVENTS, Response
from appliance.api.responses.body import (
    INCLUDED,
    Content,
    CustomCall,
    FunctionCall,
    FunctionCallOutput,
    Item,
    Message,
    Reasoning,
    Record,
    ResponseRequest,
    ShellCall,
    ShellOutput,
    Text,
)
from appliance.api.responses.shape import Echo, ResponseShape
from appliance.api.responses.tools import (
    SHELL,
    Offered,
    choice_of,
    free_arguments,
    offered,
    shell_arguments,
    visible,
)
from appliance.api.wire import ChatRequest, Parameters, settled
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.other import RESPONSES
from appliance.api.wishes.table import EFFORTS

_NAMES = (  # of the chat's parameters -> ours
    (r"messages", "input"), (r"tool_choice\.function", "tool_choice"),
    (r"response_format\.json_schema", "text.format"), (r"response_format", "text.format"),
    (r"max_completion_tokens|max_tokens", "max_output_tokens"), (r"reasoning_effort", "reasoning.effort"),
    (r"logprobs", "top_logprobs"))
_SAME = (*Parameters.model_fields, "stream", "parallel_tool_calls", "seed", "stop", "logit_bias", "ignore_eos",
         "min_tokens", "stop_token_ids", "chat_template_kwargs")


def read(body: bytes, drop: Sequence[str], ignored: Ignored) -> Ask:
    """A body as a chat; RequestError."""
    given = read_as(body, ResponseRequest, RESPONSES, drop, ignored, more=True)
    tools = offered(given.tools or (), ignored)
    chat, places = _Turns(given, tools, ignored).chat()
    findings.require(ignored)
    names = Names(_NAMES, places, tools.places, flat=True)
    with names.told():
        request = settled(chat, ChatRequest, drop=drop, ignored=Ignored())
    echo = Echo(getattr(request, "temperature", None), getattr(request, "top_p", None), given.max_output_tokens,
                given.parallel_tool_calls is not False,
                given.tool_choice if isinstance(given.tool_choice, str) else "auto")

    def shape(told: Told) -> ResponseShape:
        return ResponseShape(told, echo, tools.origins)

    return Ask(request, shape, names=names)


def text_of(content: Content) -> str:
    """A content's text, its parts on lines of their own."""
    return content if isinstance(content, str) else "\n".join(part.said for part in content)


class _Turns:
    """A request's items as the messages of a chat, each with its path in the request."""

    def __init__(self, given: ResponseRequest, tools: Offered, ignored: Ignored) -> None:
        self._given, self._tools, self._ignored = given, tools, ignored
        self._turns: list[dict[str, Any]] = []
        self._places: list[str] = []
        self._thoughts: str | None = None  # that wait for what they led to

    def chat(self) -> tuple[dict[str, Any], list[str]]:
        """The chat's object, and the paths of its messages."""
        given = self._given
        if given.instructions is not None:
            self._add("instructions", {"role": "system", "content": given.instructions})
        if isinstance(given.input, str):
            self._add("input", {"role": "user", "content": given.input})
        else:
            self._items(given.input)
        chat: dict[str, Any] = {name: getattr(given, name) for name in _SAME}
        chat |= {
            "messages": self._turns, "max_completion_tokens": given.max_output_tokens,
            "reasoning_effort": self._effort(), "tools": None if given.tools is None else self._tools.functions,
            "tool_choice": choice_of(given.tool_choice, self._tools, self._ignored),
            "response_format": _format(given.text),
            "logprobs": given.logprobs, "top_logprobs": given.top_logprobs if given.logprobs else None}
        for place, name in enumerate(given.include or ()):
            if name not in INCLUDED:
                self._ignored.note(("include", place), f"allowed: {', '.join(INCLUDED)}")
        return {name: value for name, value in chat.items() if value is not None}, self._places

    def _effort(self) -> str | None:
        """The effort of a chat; one that there is not is noted."""
        effort = self._given.effort
        if effort is None or effort in EFFORTS:
            return effort
        self._ignored.note(("reasoning", "effort"), RESPONSES["reasoning.effort"].words())
        return None

    def _items(self, items: Iterable[Item]) -> None:
        last = ""
        for place, item in enumerate(items):
            path = f"input.{place}"
            match item:
                case Reasoning():
                    parts = item.summary if item.content is None else item.content
                    said = [*filter(None, [self._thoughts]), *(part.said for part in parts)]
                    self._thoughts, last = "\n".join(said) or None, path
                case Message(role="assistant"):
                    self._add(path, self._assistant(text_of(item.content)))
                case Message():
                    self._add(path, {"role": item.role, "content": text_of(item.content)})
                case FunctionCall():
                    self._call(path, item.call_id, visible(item.namespace, item.name), item.arguments)
                case CustomCall():
                    self._call(path, item.call_id, visible(item.namespace, item.name), free_arguments(item.input))
                case ShellCall():
                    self._call(path, item.call_id or item.id or "", SHELL, shell_arguments(item.action))
                case ShellOutput():
                    self._add(path, {"role": "tool", "tool_call_id": item.id, "content": item.output})
                case FunctionCallOutput():
                    self._add(path, {"role": "tool", "tool_call_id": item.call_id, "content": text_of(item.output),
                                     **({} if item.name is None else {"name": item.name})})
                case Record():
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


def _format(text: Text | None) -> Any:
    form = None if text is None else text.format
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": form.model_dump(by_alias=True, exclude={"type"})}


ADAPTER = Adapter("/v1/responses", "An answer to items, in the form of the Responses API; nothing is stored.",
                  ResponseRequest, read, Response, EVENTS, RESPONSES)
