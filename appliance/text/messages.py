"""Messages as a chat template takes them: checked, in plain types, every string marked as from
outside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

from appliance.errors import TemplateError
from appliance.text.jinja.marks import is_marked, mark
from appliance.text.jinja.values import Value

MAX_DEPTH = 32  # of tools and arguments
# Names of roles are the service's, not a user's: templates build control tokens from them
# (<|user|>).
ROLES = frozenset(["system", "developer", "user", "assistant", "tool", "function", "ipython", "model"])

# The template of a model without one, if the policy allows it.
CHATML = """{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>'
 + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"""


class MessageForm(NamedTuple):
    """How a template takes messages, where templates differ."""

    parts: bool = False  # content as a list of parts, not as a string
    text: bool = False  # arguments of tool calls as JSON text, not as a mapping
    none: bool = False  # absent content as none, not as an empty string


def prepare(messages: Sequence[Mapping[str, Any]], form: MessageForm) -> list[Value]:
    """The messages for a template that takes them in this form. A content that is marked already
    keeps its marks: what is not marked there is text of ours."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise TemplateError("a chat needs a list of at least one message")
    return [_message(message, index, form) for index, message in enumerate(messages)]


def _message(message: Mapping[str, Any], index: int, form: MessageForm) -> dict[str, Value]:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise TemplateError(f"message {index} has no role")
    prepared = outside({name: value for name, value in message.items() if name not in ("role", "content")})
    role = str(message["role"])
    prepared["role"] = role if role in ROLES else mark(role)
    text = _content(message.get("content"), index)
    text = text if is_marked(text) else mark(text)
    prepared["content"] = [{"type": "text", "text": text}] if form.parts else text
    if form.none and message.get("content") is None:
        prepared["content"] = None
    calls = prepared.get("tool_calls")
    for call in calls if isinstance(calls, list) and not form.text else ():
        _open_arguments(call)
    return cast("dict[str, Value]", prepared)


def _content(content: object, index: int) -> str:
    """The text of a message; parts are joined by newlines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        raise TemplateError(f"the content of message {index} is neither a string nor a list of parts")
    texts = []
    for part in content:
        if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise TemplateError(f"a part of message {index} is not text; only text parts can be used here")
        texts.append(part["text"])
    return "\n".join(texts)


def _open_arguments(call: Value) -> None:
    """Arguments come as JSON text over the API; most templates take them as a mapping."""
    function = call.get("function") if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if isinstance(function, dict) and isinstance(arguments, str):
        try:
            parsed = json.loads(arguments)
        except (ValueError, RecursionError):
            return
        if isinstance(parsed, dict):
            function["arguments"] = outside(parsed)


def outside(value: Any, depth: int = 0) -> Any:
    """A value from outside in the types that templates know, all strings marked (keys too)."""
    if depth > MAX_DEPTH:
        raise TemplateError(f"messages and tools may be nested {MAX_DEPTH} deep at most")
    if isinstance(value, str):
        return mark(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {_name(key): outside(item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [outside(item, depth + 1) for item in value]
    raise TemplateError(f"a value of type {type(value).__name__} cannot be part of a message")


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TemplateError("the keys of messages and tools must be strings")
    return mark(key)

