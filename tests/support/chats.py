"""Chats to render with every template: plain, long, with tools, with roles in odd order."""

from __future__ import annotations

from typing import Any

NOW = "2024-07-26T14:05:09"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

_WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather at a place.\nOf today.",
    "parameters": {"type": "object", "required": ["place"], "properties": {
        "place": {"type": "string", "description": "City & country, \"quoted\""},
        "unit": {"type": "string", "enum": ["C", "F"]}, "days": {"type": "integer", "default": 1},
        "detail": {"type": "object", "properties": {"wind": {"type": "boolean"}}},
        "list": {"type": "array", "items": {"type": "number"}}}}}}
_CALL = {"id": "call12345", "type": "function", "function": {"name": "get_weather", "arguments": {
    "place": "Zürich", "days": 2, "unit": "C"}}}
_ASK = {"role": "user", "content": "How is the weather in Zürich?"}
_ANSWERED = [_ASK, {"role": "assistant", "content": "", "tool_calls": [_CALL]},
             {"role": "tool", "tool_call_id": "call12345", "name": "get_weather", "content": '{"sky": "grey"}'}]


def _chat(*messages: dict[str, Any], generate: bool = True, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), "add_generation_prompt": generate, **more}


def _say(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


CHATS: dict[str, dict[str, Any]] = {
    "one": _chat(_say("user", "Hello, world!")),
    "one without the prompt": _chat(_say("user", "Hello, world!"), generate=False),
    "system": _chat(_say("system", "You are terse.\n"), _say("user", "  Why? \n\n")),
    "turns": _chat(_say("user", "1 + 1?"), _say("assistant", " 2. "), _say("user", "And 2 + 2?"),
                   _say("assistant", "4"), _say("user", "ok")),
    "system and turns": _chat(_say("system", "S"), _say("user", "a"), _say("assistant", "b"), _say("user", "c")),
    "ends with an answer": _chat(_say("user", "a"), _say("assistant", "b"), generate=False),
    "thinking": _chat(_say("user", "q"), _say("assistant", "<think>\nhm\n</think>\n\nanswer"), _say("user", "r")),
    "thinking off": _chat(_say("user", "q"), variables={"enable_thinking": False}),
    "unicode": _chat(_say("user", "Zürich 東京 🏔️ \u00a0 {{ not code }} {% raw %} <b>&amp;</b> \"'")),
    "empty": _chat(_say("user", "")),
    "two users": _chat(_say("user", "a"), _say("user", "b")),
    "assistant first": _chat(_say("assistant", "a"), _say("user", "b")),
    "odd role": _chat(_say("narrator", "a"), _say("user", "b")),
    "late system": _chat(_say("user", "a"), _say("system", "b"), _say("user", "c")),
    "developer": _chat(_say("developer", "Be kind."), _say("user", "b")),
    "tools": _chat(_ASK, tools=[_WEATHER]),
    "tools and system": _chat(_say("system", "S"), _ASK, tools=[_WEATHER, _WEATHER]),
    "tool called": _chat(*_ANSWERED, tools=[_WEATHER]),
    "tool called, no tools": _chat(*_ANSWERED),
    "tool answered": _chat(*_ANSWERED, _say("assistant", "Grey."), _say("user", "Thanks"), tools=[_WEATHER]),
}
