"""A request of the Messages API as a chat, and the way back of refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from appliance.service.anthropic.answer import EVENTS, Counted, ErrorAnswer, MessageAnswer, refused
from appliance.service.anthropic.body import (
    ROWS,
    Block,
    CountRequest,
    Message,
    MessageRequest,
    Text,
    Thinking,
    ThinkingConfig,
    ToolChoice,
    ToolResult,
    ToolUse,
)
from appliance.service.anthropic.shape import MessageShape
from appliance.service.api.adapter import Adapter, Ask, Encoding, Names, read_as
from appliance.service.api.wire import ChatRequest, Parameters, settled

Q = TypeVar("Q", bound=CountRequest)

_NAMES = (  # of the chat's parameters -> ours
    (r"tools\.(\d+)\.function\.parameters", r"tools.\1.input_schema"), (r"tools\.(\d+)\.function", r"tools.\1"),
    (r"tool_choice\.function", "tool_choice"), (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"response_format\.json_schema", "output_config.format"), (r"response_format", "output_config.format"),
    (r"thinking_token_budget", "thinking.budget_tokens"), (r"stop", "stop_sequences"),
    (r"continue_final_message", "messages"))
_SAME = (*Parameters.model_fields, "max_tokens", "stream", "seed", "logit_bias", "chat_template_kwargs")
_EFFORTS = {"max": "xhigh"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read(body: bytes, drop: Sequence[str] = ()) -> Ask:
    """A body as a chat; RequestError."""
    request, names = _chat(body, MessageRequest, drop)
    return Ask(request, MessageShape, names=names)


def read_to_count(body: bytes, drop: Sequence[str] = ()) -> Ask:
    """A body whose prompt is counted; RequestError."""
    request, names = _chat(body, CountRequest, drop)
    return Ask(request, counted=_counted, names=names)


def _chat(body: bytes, kind: type[Q], drop: Sequence[str]) -> tuple[ChatRequest, Names]:
    given = read_as(body, kind, ROWS, drop)
    turns: list[dict[str, Any]] = []
    places: list[str] = []
    if given.system is not None:
        turns.append({"role": "system", "content": text_of(given.system)})
        places.append("system")
    for number, message in enumerate(given.messages):
        for path, turn in _turns(message, f"messages.{number}"):
            turns.append(turn)
            places.append(path)
    thinks = "output_config.effort" if given.effort is not None else "thinking"
    names = Names((*_NAMES, (r"reasoning_effort", thinks)), places)
    chat = {name: getattr(given, name, None) for name in _SAME}
    chat |= {
        "messages": turns, "stop": getattr(given, "stop_sequences", None), **_thinking(given.thinking, given.effort),
        **_choice(given.tool_choice), "tools": None if given.tools is None else [
            {"type": "function", "function": {
                "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
                "strict": tool.strict}} for tool in given.tools]}
    if given.messages[-1].role == "assistant":
        chat["continue_final_message"] = True
    if given.output_config is not None and given.output_config.format is not None:
        chat["response_format"] = {"type": "json_schema", "json_schema": {
            "name": "output", "schema": given.output_config.format.schema_}}
    asked = {name: value for name, value in chat.items() if value is not None}
    with names.told():
        return settled(asked, ChatRequest, drop=drop), names


def text_of(content: str | Sequence[Text]) -> str:
    """A content's text, its blocks on lines of their own."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _turns(message: Message, path: str) -> list[tuple[str, dict[str, Any]]]:
    """A message as turns of a chat, each with its path: results of calls are turns of their own."""
    if isinstance(message.content, str):
        return [(path, {"role": message.role, "content": message.content})]
    if message.role == "assistant":
        return [(path, _assistant(message.content))]
    results = [(f"{path}.content.{place}", _result(block)) for place, block in enumerate(message.content)
               if isinstance(block, ToolResult)]
    texts = [block for block in message.content if isinstance(block, Text)]
    said = [(path, {"role": message.role, "content": text_of(texts)})] if texts or not results else []
    return results + said


def _assistant(blocks: Sequence[Block]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant",
                            "content": text_of([block for block in blocks if isinstance(block, Text)])}
    thoughts = [block.thinking for block in blocks if isinstance(block, Thinking)]
    if any(thoughts):
        turn["reasoning_content"] = "\n".join(thoughts)
    calls = [block for block in blocks if isinstance(block, ToolUse)]
    if calls:
        turn["tool_calls"] = [{"id": call.id, "type": "function", "function": {
            "name": call.name, "arguments": json.dumps(call.input, ensure_ascii=False)}} for call in calls]
    return turn


def _result(block: ToolResult) -> dict[str, Any]:
    text = text_of(block.content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {text}" if block.is_error else text}


def _thinking(config: ThinkingConfig | None, effort: str | None) -> dict[str, Any]:
    if config is not None and config.type == "disabled":
        return {"reasoning_effort": "none"}
    budget = None if config is None else config.budget_tokens
    return {"reasoning_effort": effort and _EFFORTS.get(effort, effort), "thinking_token_budget": budget}


def _choice(choice: ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    wanted = {"type": "function", "function": {"name": choice.name}} if choice.name else _CHOICES[choice.type]
    return {"tool_choice": wanted, "parallel_tool_calls": False if choice.disable_parallel_tool_use else None}


def _counted(encoding: Encoding) -> Counted:
    return Counted(input_tokens=-(-len(encoding.tokens) // encoding.rounding) * encoding.rounding)


ADAPTER = Adapter("/v1/messages", "An answer to a conversation, in the form of Anthropic's Messages API.",
                  MessageRequest, read, MessageAnswer, EVENTS, ROWS, refusal=refused, problem=ErrorAnswer)
COUNTING = Adapter("/v1/messages/count_tokens", "How many tokens a conversation's prompt has.", CountRequest,
                   read_to_count, Counted, rows=ROWS, refusal=refused, problem=ErrorAnswer)
