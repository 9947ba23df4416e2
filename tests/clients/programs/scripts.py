"""Scripts that demand what a small model would not say of its own accord: calls of a tool, an end, a text.

A demand is a constraint of the service itself. It gives the tool a schema with one value and chooses the tool, or
holds the content to one text. All else of a request passes as the program sent it.
"""

from __future__ import annotations

from typing import Any

from tests.clients.programs.relay import Script

DONE = {"enum": ["done"]}  # the last answer


def calls(tool: str, most: int, **values: str | bool) -> Script:
    """Demand so many calls of a tool in a conversation, then an end. `{number}` in a value is the call's number."""
    def script(path: str, body: dict[str, Any]) -> bool:
        if "count_tokens" in path or not any(_name(offer) == tool for offer in body.get("tools") or ()):
            return False
        number = _results(body)
        if number >= most:
            _end(path, body)
        else:
            _call(path, body, tool, {name: value.format(number=number) if isinstance(value, str) else value
                                     for name, value in values.items()})
        return True

    return script


def says(text: str) -> Script:
    """Demand a text as the content of each chat."""
    def script(path: str, body: dict[str, Any]) -> bool:
        if not path.endswith("/chat/completions"):
            return False
        body["structured_outputs"] = {"choice": [text]}
        return True

    return script


def _results(body: dict[str, Any]) -> int:
    """How many results of tools a conversation has, in any of the three APIs."""
    turns = [turn for turn in body.get("messages") or body.get("input") or () if isinstance(turn, dict)]
    parts = [part for turn in turns if isinstance(turn.get("content"), list) for part in turn["content"]]
    return sum(turn.get("role") == "tool" or str(turn.get("type")).endswith("call_output") for turn in turns) + sum(
        part.get("type") == "tool_result" for part in parts if isinstance(part, dict))


def _name(offer: dict[str, Any]) -> str:
    return str(offer.get("function", offer).get("name"))


def _call(path: str, body: dict[str, Any], tool: str, values: dict[str, Any]) -> None:
    schema = {"type": "object", "properties": {name: {"enum": [value]} for name, value in values.items()},
              "required": list(values), "additionalProperties": False}
    for offer in body["tools"]:
        if _name(offer) == tool:
            function = offer.get("function", offer)
            function["input_schema" if path.endswith("/messages") else "parameters"] = schema
    body["tool_choice"] = {"type": "tool", "name": tool} if path.endswith("/messages") else {
        "type": "function", "name": tool} if path.endswith("/responses") else {
        "type": "function", "function": {"name": tool}}


def _end(path: str, body: dict[str, Any]) -> None:
    if path.endswith("/messages"):
        body |= {"tool_choice": {"type": "none"}, "output_config": {"format": {"type": "json_schema", "schema": DONE}}}
    elif path.endswith("/responses"):
        body |= {"tool_choice": "none", "text": {"format": {"type": "json_schema", "name": "end", "schema": DONE}}}
    else:
        body |= {"tool_choice": "none", "response_format": {
            "type": "json_schema", "json_schema": {"name": "end", "schema": DONE}}}
