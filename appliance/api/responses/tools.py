"""The tools of a request as functions of a chat, and their calls as the items that clients know.

    function      itself
    namespace     its functions, each by both names together
    custom        a function of one text; the model reads a grammar of that text in its description
    local_shell   a function of a command, which the client runs
    others        hosted elsewhere: noted, and not offered
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic_core import from_json

from appliance.api.offers import HOSTED, LONGEST_NAME
from appliance.api.problems import missing, unsupported
from appliance.api.responses import body
from appliance.api.wishes.ignored import Ignored, Path

Kind = Literal["message", "reasoning", "function_call", "custom_tool_call", "local_shell_call"]
SHELL = "local_shell"
_NOT_PLAIN = re.compile(r"[^a-zA-Z0-9_-]")
_FREE = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"],
         "additionalProperties": False}
_COMMAND = {"type": "object", "properties": {
    "command": {"type": "array", "items": {"type": "string"}, "description": "The program and its arguments."},
    "working_directory": {"type": "string"}, "timeout_ms": {"type": "integer"}},
    "required": ["command"], "additionalProperties": False}


@dataclass(frozen=True)
class Origin:
    """The kind of an item, and for a call the names that the client gave the tool."""

    kind: Kind
    name: str
    namespace: str | None = None


@dataclass
class ToolOffers:
    """The functions of a chat, with the path of each, and what each is for the client."""

    functions: list[dict[str, Any]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    origins: dict[str, Origin] = field(default_factory=dict)

    def add(self, function: dict[str, Any], place: str, origin: Origin) -> None:
        """Offer one more."""
        self.functions.append({"type": "function", "function": function})
        self.places.append(place)
        self.origins[function["name"]] = origin

    def named(self, name: str, namespace: str | None) -> str:
        """Return a function's name in the chat, by the names of the client."""
        if namespace is None and name not in self.origins:
            return next((each for each, origin in self.origins.items() if origin.name == name), name)
        return visible(namespace, name)


def offers_of(tools: Sequence[body.Tool], ignored: Ignored) -> ToolOffers:
    """Return the functions of a request's tools, and note the tools that are hosted elsewhere."""
    offers = ToolOffers()
    for number, tool in enumerate(tools):
        _offer(offers, tool, ("tools", number), None, ignored)
    return offers


def _offer(offers: ToolOffers, tool: body.Tool, path: Path, namespace: str | None, ignored: Ignored) -> None:
    place = ".".join(map(str, path))
    match tool:
        case body.FunctionTool():
            function = tool.model_dump(exclude={"type"}) | {"name": visible(namespace, tool.name)}
            offers.add(function, place, Origin("function_call", tool.name, namespace))
        case body.FreeTool():
            if tool.grammar:
                ignored.note((*path, "format"), "a grammar of a free-form tool is told to the model, and not enforced")
            offers.add({"name": visible(namespace, tool.name), "description": _described(tool), "parameters": _FREE},
                      place, Origin("custom_tool_call", tool.name, namespace))
        case body.ShellTool():
            offers.add({"name": SHELL, "description": "Runs a command.", "parameters": _COMMAND}, place,
                      Origin("local_shell_call", SHELL))
        case body.ToolNamespace():
            for number, each in enumerate(tool.tools):
                _offer(offers, each, (*path, "tools", number), tool.name, ignored)
        case body.HostedTool():
            ignored.note(path, HOSTED)


def _described(tool: body.FreeTool) -> str | None:
    if not tool.grammar:
        return tool.description
    return "\n\n".join(filter(None, [tool.description, f"The input is a text of this grammar:\n{tool.grammar}"]))


def visible(namespace: str | None, name: str) -> str:
    """Return the name of a function to the model: with its namespace before it, as functions are
    named."""
    if namespace is None:
        return name
    joined = f"{namespace}{'' if namespace.endswith('_') else '__'}{name}"
    plain = _NOT_PLAIN.sub("_", joined)
    if len(plain) <= LONGEST_NAME:
        return plain
    digest = hashlib.sha256(joined.encode()).hexdigest()[:16]
    return f"{plain[:LONGEST_NAME - 17]}_{digest}"


def choice_of(choice: body.ToolChoice | None, offers: ToolOffers, ignored: Ignored) -> Any:
    """Return a choice among tools as a chat's. RequestError if it demands a hosted tool."""
    if choice is None or isinstance(choice, str):
        return choice
    if isinstance(choice, body.ToolReference):
        return _function(choice, offers, "tool_choice")
    names = []
    for number, each in enumerate(choice.tools):
        if each.calls:
            names.append(_function(each, offers, f"tool_choice.tools.{number}"))
        else:
            ignored.note(("tool_choice", "tools", number), HOSTED)
    if names:
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.mode, "tools": names}}
    if choice.mode == "required":
        raise unsupported("tool_choice", HOSTED)
    return "none" if offers.functions else None


def _function(choice: body.ToolReference, offers: ToolOffers, param: str) -> dict[str, Any]:
    if not choice.calls:
        raise unsupported(param, HOSTED)
    name = SHELL if choice.type == SHELL else choice.name
    if name is None:
        raise missing(f"{param}.name")
    return {"type": "function", "function": {"name": offers.named(name, choice.namespace)}}


def free_text(arguments: str) -> str:
    """Return the text of a call of a free-form tool, even if the call was cut. Other arguments are
    returned as they are."""
    try:
        value: Any = from_json(arguments, allow_partial="trailing-strings", cache_strings="none")
    except ValueError:
        return arguments
    text = value.get("input", "" if not value else None) if isinstance(value, dict) else None
    return text if isinstance(text, str) else arguments


def free_arguments(text: str) -> str:
    """Return the arguments of a call of a free-form tool with a text."""
    return json.dumps({"input": text}, ensure_ascii=False)


def command_of(arguments: str) -> dict[str, Any]:
    """Return the action of a call of the shell, without a command if the arguments have none."""
    try:
        value: Any = from_json(arguments, cache_strings="none")
    except ValueError:
        value = {}
    said: Mapping[str, Any] = value if isinstance(value, dict) else {}
    command, time, folder = said.get("command"), said.get("timeout_ms"), said.get("working_directory")
    if isinstance(command, str):
        command = ["sh", "-c", command]
    words = [each for each in command if isinstance(each, str)] if isinstance(command, list) else []
    action: dict[str, Any] = {"command": words}
    action |= {"timeout_ms": time} if type(time) is int else {}
    return action | ({"working_directory": folder} if isinstance(folder, str) else {})


def shell_arguments(action: Mapping[str, Any]) -> str:
    """Return the arguments of a call of the shell with an action."""
    known = {name: action[name] for name in ("command", "working_directory", "timeout_ms")
             if action.get(name) is not None}
    return json.dumps(known, ensure_ascii=False)
