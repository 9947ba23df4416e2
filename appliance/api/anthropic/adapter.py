"""A request of the Messages API as a chat, and the way back of refusals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TypeVar

from appliance.api import document, findings
from appliance.api.adapter import Adapter, Encoding, Names, Translation, as_chat
from appliance.api.anthropic import body
from appliance.api.anthropic.answer import EVENTS, ErrorResponse, MessageAnswer, MessageTokensCount, refusal_body
from appliance.api.anthropic.shape import MessageShape
from appliance.api.offers import HOSTED
from appliance.api.problems import RequestError
from appliance.api.wire import ChatRequest, remove
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.other import MESSAGES

Q = TypeVar("Q", bound=body.CountRequest)

_NAMES = (  # of the chat's parameters -> ours
    (r"(tools\.\d+)\.parameters", r"\1.input_schema"), (r"tool_choice\.function", "tool_choice"),
    (r"parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    (r"response_format\.json_schema", "output_config.format"), (r"response_format", "output_config.format"),
    (r"thinking_token_budget", "thinking.budget_tokens"), (r"stop", "stop_sequences"),
    (r"continue_final_message", "messages"))
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "xhigh", "max": "xhigh"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def read(data: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    """Return a body as a chat. Raises RequestError."""
    request, names = _chat(data, body.MessageRequest, drop, ignored)
    return Translation(request, MessageShape, names=names)


def read_to_count(data: bytes, drop: Sequence[str], ignored: Ignored) -> Translation:
    """Return a body as a chat whose prompt is counted. Raises RequestError."""
    request, names = _chat(data, body.CountRequest, drop, ignored)
    return Translation(request, counted=_counted, names=names)


def _chat(data: bytes, kind: type[Q], drop: Sequence[str], ignored: Ignored) -> tuple[ChatRequest, Names]:
    request = _read(data, kind, drop, ignored)
    turns = [] if request.system is None else [("system", {"role": "system", "content": text_of(request.system)})]
    turns += [turn for number, message in enumerate(request.messages) for turn in _turns(message, f"messages.{number}")]
    functions = {place: tool for place, tool in enumerate(request.tools or ()) if isinstance(tool, body.CustomTool)}
    form = None if request.output_config is None else request.output_config.format
    chat = {
        "messages": [turn for _, turn in turns], "stop": getattr(request, "stop_sequences", None),
        "continue_final_message": request.messages[-1].role == "assistant" or None,
        **_thinking(request.thinking, request.effort, ignored), **_choice(request.tool_choice),
        "tools": None if request.tools is None else [{"type": "function", "function": {
            "name": tool.name, "description": tool.description, "parameters": tool.input_schema,
            "strict": tool.strict}} for tool in functions.values()],
        "response_format": None if form is None else {
            "type": "json_schema", "json_schema": {"name": "output", "schema": form.schema_}}}
    thinks = "thinking" if request.effort is None else "output_config.effort"
    names = Names((*_NAMES, (r"reasoning_effort", thinks)), [place for place, _ in turns],
                  [f"tools.{place}" for place in functions], flat=True)
    return as_chat(request, chat, names, drop, ignored), names


def _read(data: bytes, kind: type[Q], drop: Sequence[str], ignored: Ignored) -> Q:
    """Read a body as its type, and note hosted tools and the blocks that say what they did."""
    fields = document.read(data)
    remove(fields, drop)
    _beginning(fields)
    _without_edits(fields, ignored)
    request = findings.check(fields, kind, MESSAGES, ignored, more=True)
    for place, tool in enumerate(request.tools or ()):
        if isinstance(tool, body.ServerTool):
            ignored.note(("tools", place), HOSTED)
    for number, message in enumerate(request.messages):
        for place, block in enumerate(message.content if isinstance(message.content, list) else ()):
            if isinstance(block, body.UnreadBlock):
                ignored.note(("messages", number, "content", place), "a model reads nothing of this block")
    return request


def _beginning(fields: dict[str, Any]) -> None:
    """Refuse a request that continues a stored thread: it has only the last messages."""
    thread = fields.get("thread")
    if isinstance(thread, dict) and (thread.get("type") not in (None, "create") or thread.get("previous_message_id")):
        raise RequestError("thread_not_found", param="thread")


def _without_edits(fields: dict[str, Any], ignored: Ignored) -> None:
    """Take out a management of the context that keeps all of it."""
    management = fields.get("context_management")
    edits = management.get("edits") if isinstance(management, dict) and management.keys() == {"edits"} else None
    if isinstance(edits, list) and edits and all(map(_keeps_all, edits)):
        ignored.note(("context_management",), MESSAGES["context_management"].words())
        del fields["context_management"]


def text_of(content: str | Sequence[body.TextBlockParam]) -> str:
    """Return a content's text, its blocks on lines of their own."""
    return content if isinstance(content, str) else "\n".join(block.text for block in content)


def _keeps_all(edit: Any) -> bool:
    return isinstance(edit, dict) and edit.get("keep") == "all"


def _turns(message: body.MessageParam, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return a message as turns of a chat, each with its path: results of calls are turns of their
    own."""
    if isinstance(message.content, str):
        return [(path, {"role": message.role, "content": message.content})]
    if message.role == "assistant":
        return [(path, _assistant(message.content))]
    results = [(f"{path}.content.{place}", _result(block)) for place, block in enumerate(message.content)
               if isinstance(block, body.ToolResultBlockParam)]
    texts = [block for block in message.content if isinstance(block, body.TextBlockParam)]
    messages = [(path, {"role": message.role, "content": text_of(texts)})] if texts or not results else []
    return results + messages


def _assistant(blocks: Sequence[body.Block]) -> dict[str, Any]:
    turn: dict[str, Any] = {"role": "assistant",
                            "content": text_of([block for block in blocks if isinstance(block, body.TextBlockParam)])}
    thoughts = [block.thinking for block in blocks if isinstance(block, body.ThinkingBlockParam)]
    if any(thoughts):
        turn["reasoning_content"] = "\n".join(thoughts)
    calls = [block for block in blocks if isinstance(block, body.ToolUseBlockParam)]
    if calls:
        turn["tool_calls"] = [{"id": call.id, "type": "function", "function": {
            "name": call.name, "arguments": json.dumps(call.input, ensure_ascii=False)}} for call in calls]
    return turn


def _result(block: body.ToolResultBlockParam) -> dict[str, Any]:
    text = text_of(block.content)
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": f"Error: {text}" if block.is_error else text}


def _thinking(config: body.ThinkingConfig | None, effort: str | None, ignored: Ignored) -> dict[str, Any]:
    """Return how much a model is to think, by a chat's names. Note an unknown effort, and an effort
    beside thoughts that are turned off."""
    disabled = config is not None and config.type == "disabled"
    if effort is not None and (disabled or effort not in _EFFORTS):
        ignored.note(("output_config", "effort"), MESSAGES["output_config.effort"].words())
        effort = None
    if disabled:
        return {"reasoning_effort": "none"}
    budget = None if config is None else config.budget_tokens
    return {"reasoning_effort": effort and _EFFORTS[effort], "thinking_token_budget": budget}


def _choice(choice: body.ToolChoice | None) -> dict[str, Any]:
    if choice is None:
        return {}
    chosen_tool = {"type": "function", "function": {"name": choice.name}} if choice.name else _CHOICES[choice.type]
    return {"tool_choice": chosen_tool, "parallel_tool_calls": False if choice.disable_parallel_tool_use else None}


def _counted(encoding: Encoding) -> MessageTokensCount:
    return MessageTokensCount(input_tokens=-(-len(encoding.tokens) // encoding.rounding) * encoding.rounding)


MESSAGE = Adapter("/v1/messages", "An answer to a conversation, in the form of Anthropic's Messages API.",
                  body.MessageRequest, read, MessageAnswer, EVENTS, MESSAGES, refusal=refusal_body,
                  problem=ErrorResponse)
MESSAGE_COUNT = Adapter("/v1/messages/count_tokens", "How many tokens a conversation's prompt has.", body.CountRequest,
                        read_to_count, MessageTokensCount, rows=MESSAGES, refusal=refusal_body, problem=ErrorResponse)
