"""A chat as its template takes it: messages, calls and functions, redacted.

Templates that know tools get calls and results as OpenAI's API has them. One that does not gets
plain text, in the words of the generic format. Functions stand in the system's message, calls in
what the assistant wrote, results in what a user says.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from appliance.api.dialects import THOUGHTS
from appliance.api.problems import RequestError
from appliance.text.calls.history import fit
from appliance.text.calls.objects import generic
from appliance.text.calls.readers import format_of, native_of
from appliance.text.calls.reading.pieces import ToolSpec
from appliance.text.calls.table import GENERIC
from appliance.text.template import ChatTemplate

Clean = Callable[[str], str]
"""A text, redacted."""
Message = dict[str, Any]

_SHORT_IDS = re.compile(r"\|\s*length\s*!=\s*9\b")  # templates of Mistral refuse other ids than those of 9 characters
_SHORT = re.compile(r"[a-zA-Z0-9]{9}")
_LETTERS = string.digits + string.ascii_letters
_NOTHING: Mapping[str, Any] = {"type": "object", "properties": {}}  # the parameters of a function that says none
_RESULTS = ("tool", "function")  # roles
_DESCRIPTIONS = frozenset({"description", "title"})


class Turn(NamedTuple):
    """A turn of a request."""

    role: str
    text: str
    name: str | None
    thoughts: str | None
    calls: str  # JSON: a list of objects with id, name and arguments
    call_id: str | None  # of the call whose result it is


class Chat(NamedTuple):
    """The messages and the tools of a template's rendering."""

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    offered: str | None = None  # what a system's message says about tools


def chat_of(template: ChatTemplate, turns: Sequence[Turn], tools: Sequence[ToolSpec], clean: Clean) -> Chat:
    """A chat for a template; `tools` are redacted already."""
    thoughts = next(filter(template.mentions, THOUGHTS), None)
    messages = list(_with_ids([_message(clean, thoughts, turn) for turn in turns],
                              short=_SHORT_IDS.search(template.source) is not None))
    native, has_calls = native_of(template), any(turn.calls != "[]" or turn.role in _RESULTS for turn in turns)
    if has_calls and (template.shows_calls or (native is not None and native.spell is not None)):
        messages = [dict(message) for message in fit(template, messages)]
    elif has_calls:
        messages = _plain(messages)
    if not tools or format_of(template) is not GENERIC:
        functions = [function_of(tool, described=bool(tools) and template.needs_descriptions) for tool in tools]
        return Chat(messages, [{"type": "function", "function": function} for function in functions] or None)
    offered = generic.instructions(tools)
    first, *rest = messages
    if first["role"] == "system":
        return Chat([{**first, "content": f"{first['content']}\n\n{offered}"}, *rest], None, offered)
    return Chat([{"role": "system", "content": offered}, *messages], None, offered)


def negative(turns: Sequence[Turn], text: str | None) -> list[Turn]:
    """A chat whose negative prompt is said by the system, in place of what it says in the chat.
    RequestError where nothing is left."""
    found = [Turn("system", text, None, None, "[]", None)] if text else []
    found += [turn for turn in turns if turn.role not in ("system", "developer")]
    if not found:
        raise RequestError("invalid_value", "negative_prompt: needed, since the system alone says something in this "
                           "chat", param="negative_prompt")
    return found


def function_of(tool: ToolSpec, *, described: bool) -> dict[str, Any]:
    """A tool in the words of the API. `described`: with a description, be it empty."""
    said = {} if tool.description is None and not described else {"description": tool.description or ""}
    return {"name": tool.name, **said, "parameters": tool.parameters}


def _message(clean: Clean, thoughts: str | None, turn: Turn) -> Message:
    """A turn as templates take it, redacted. `thoughts`: the template's name for a model's earlier
    thoughts; None: it reads none."""
    message: Message = {"role": {"developer": "system", "function": "tool"}.get(turn.role, turn.role),
                        "content": clean(turn.text)}
    if turn.name is not None:
        message["name"] = clean(turn.name)
    if turn.thoughts is not None and thoughts is not None:
        message[thoughts] = clean(turn.thoughts)
    if turn.call_id is not None:
        message["tool_call_id"] = clean(turn.call_id)
    calls = json.loads(turn.calls)
    if calls:
        message["tool_calls"] = [{
            "id": None if call["id"] is None else clean(call["id"]), "type": "function",
            "function": {name: clean(call[name]) for name in ("name", "arguments")}} for call in calls]
        message["content"] = message["content"] or None
    return message


def _with_ids(messages: Sequence[Message], *, short: bool) -> Iterator[Message]:
    """Messages whose calls have ids, and whose results have the id and the name of their call."""
    numbers, names = itertools.count(), dict[str, str]()
    for message in messages:
        for call in message.get("tool_calls") or ():
            number = next(numbers)
            call["id"] = _id(call["id"] or f"call{number:05}", short)
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            given, name = message.get("tool_call_id"), message.get("name")
            own = _id(given, short) if given is not None else next(
                (each for each in reversed(names) if name in (None, names[each])), None)
            message.update({} if own is None else {"tool_call_id": own})
            message.update({"name": names[own]} if name is None and own in names else {})
        yield message


def _id(given: str, short: bool) -> str:
    """An id of a call as the template takes it: of two equal ones two equal ones."""
    if not short or _SHORT.fullmatch(given):
        return given
    number, letters = int.from_bytes(hashlib.sha256(given.encode()).digest()), ""
    for _ in range(9):
        number, place = divmod(number, len(_LETTERS))
        letters += _LETTERS[place]
    return letters


def _plain(messages: Sequence[Message]) -> list[Message]:
    """A chat without calls and results but in its text."""
    plain: list[Message] = []
    after_result = False  # whether the turn before has a result
    for message in messages:
        turn = {name: value for name, value in message.items() if name not in ("tool_calls", "tool_call_id")}
        is_result = turn["role"] == "tool"
        if is_result:
            name = turn.pop("name", None)
            turn = {"role": "user", "content": f"Result of {name}: {turn['content']}" if name else turn["content"]}
        calls = [_call_text(call["function"])
                 for call in message.get("tool_calls") or ()]
        if calls:
            turn["content"] = "\n".join([*filter(None, [turn["content"]]), *calls])
        if after_result and turn["role"] == "user":
            plain[-1]["content"] += "\n\n" + turn["content"]
        else:
            plain.append(turn)
        after_result = is_result or (after_result and turn["role"] == "user")
    return plain


def _call_text(function: Mapping[str, str]) -> str:
    """A call as the generic format writes it. Arguments that are not an object of JSON are a text
    in it."""
    arguments = function["arguments"]
    try:
        is_object = isinstance(json.loads(arguments), dict)
    except (ValueError, RecursionError):
        is_object = False
    name, value = json.dumps(function["name"]), arguments if is_object else json.dumps(arguments)
    return f'{{"tool_call": {{"name": {name}, "arguments": {value}}}}}'


def without_system(chat: Chat) -> list[Message]:
    """A chat for a template that takes no system's message: a user says first what it says."""
    system, *rest = chat.messages
    if rest and rest[0]["role"] == "user":
        return [{**rest[0], "content": f"{system['content']}\n\n{rest[0]['content']}"}, *rest[1:]]
    return [{"role": "user", "content": system["content"]}, *rest]


def thoughts_with_text(messages: Sequence[Message]) -> list[Message] | None:
    """A chat for a template that takes a model's thoughts or its text beside a call, and not both:
    they are one text of thoughts. None where no turn has both."""
    found = [{**message, "content": None, name: f"{message[name]}\n\n{message['content']}"}
             if message.get("tool_calls") and message["content"] and name else message
             for message in messages for name in [next(filter(message.get, THOUGHTS), None)]]
    return None if found == messages else found


def systems_first(messages: Sequence[Message]) -> list[Message] | None:
    """A chat for a template that takes a system's message at its beginning alone: those that begin
    it are one, and a user says the others. None where there are none such."""
    count = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    if count < 2 and all(message["role"] != "system" for message in messages[count:]):
        return None
    found: list[Message] = []
    if count:
        found.append({"role": "system", "content": "\n\n".join(message["content"] for message in messages[:count])})
    for message in messages[count:]:
        turn = {**message, "role": "user"} if message["role"] == "system" else message
        if found and turn["role"] == found[-1]["role"] == "user":
            found[-1] = {**found[-1], "content": f"{found[-1]['content']}\n\n{turn['content']}"}
        else:
            found.append(turn)
    return found


def tools_of(functions: Sequence[Mapping[str, Any]], clean: Clean, path: Callable[[int], str]) -> tuple[ToolSpec, ...]:
    """Functions of a request as tools: their descriptions redacted. RequestError for any other text
    that redaction would change, since a call by it would be another call. `path`: where the
    parameters of a function stand."""
    found = []
    for index, function in enumerate(functions):
        parameters = _clean(function.get("parameters") or _NOTHING, clean, path(index))
        description = function.get("description")
        if clean(function["name"]) != function["name"]:
            raise _alteration(path(index).removesuffix("parameters") + "name")
        found.append(ToolSpec(function["name"], None if description is None else clean(description), parameters,
                          bool(function.get("strict"))))
    return tuple(found)


def _clean(value: Any, clean: Clean, path: str) -> Any:
    """A schema with its descriptions redacted."""
    if isinstance(value, str):
        if clean(value) != value:
            raise _alteration(path)
        return value
    if isinstance(value, Mapping):
        return {_clean(name, clean, path): clean(item)
                if name in _DESCRIPTIONS and isinstance(item, str)
                else _clean(item, clean, f"{path}.{name}") for name, item in value.items()}
    if isinstance(value, Sequence):
        return [_clean(item, clean, f"{path}.{place}") for place, item in enumerate(value)]
    return value


def _alteration(path: str) -> RequestError:
    return RequestError("invalid_value", f"{path[:200]}: the policy redacts this text, and an answer by another one "
                        "would not be what is asked for", param=path[:200])

