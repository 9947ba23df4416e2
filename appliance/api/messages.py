"""The messages of a chat, and what is done with each key that servers and libraries write.

A conversation that another server answered continues here. So an assistant's message may have what
OpenAI, vLLM, llama.cpp, Ollama, DeepSeek, OpenRouter or LiteLLM wrote into it:

    taken     role, content (absent: empty), name, thoughts, a refusal (where content is empty)
    calls     tool_calls, function_call (their older form); tool_call_id in their results
    ignored   IGNORED: keys that say nothing a template reads (ids, dates, citations)
    empty     EMPTY: keys that may be there without a value
    refused   audio and pictures, by name
    other     any other key: taken out and noted before, by `api/wishes`
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from appliance.api.dialects import THOUGHTS
from appliance.api.wishes.parameter import same

# Keys of messages and parts that no template reads: ids, dates, marks, citations, signatures
IGNORED = frozenset({
    "annotations", "citations", "created", "created_at", "createdAt", "experimental_providerMetadata",
    "id", "index", "metadata", "object", "providerMetadata", "providerOptions", "provider_metadata",
    "provider_options", "provider_specific_fields", "reasoning_details", "reasoning_signature", "signature", "status",
    "thinking_blocks", "timestamp"})

# Keys without effect while they have one of these values, which null always is.
EMPTY: dict[str, tuple[Any, ...]] = {
    "audio": (), "function_call": ({},), "images": ([],), "partial": (False,), "prefix": (False,),
    "tool_call_id": ("",), "tool_calls": ([],), "tool_name": ("",)}

REFUSED = {  # keys that ask for something, and what is said of them
    "audio": "this service takes text only", "images": "this service takes text only",
    "partial": "the last message alone can go on", "prefix": "the last message alone can go on"}
_GOES_ON = ("prefix", "partial")  # names of DeepSeek and Mistral, and of Moonshot

_PART_MARKS = IGNORED | {"refusal"}
_MESSAGE_MARKS = IGNORED | EMPTY.keys() - {"function_call", "tool_name"}
MOST_CALLS = 256  # of one message
TEXTS = ("text", "input_text", "output_text", "refusal")  # types of parts
_HIDDEN = frozenset({"reasoning", "redacted_thinking", "thinking"})  # parts with thoughts
_NOT_TEXT = frozenset({
    "audio", "document", "file", "image", "image_url", "input_audio", "input_file", "input_image", "tool_call",
    "tool-call", "tool_result", "tool-result", "tool_use", "video_url"})


class Wire(BaseModel):
    """A part of a request: strict, frozen, and null is the same as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)
    MARKS: ClassVar[Collection[str]] = ()  # members that say nothing: facts of earlier answers, marks of other servers
    TYPES: ClassVar[Collection[str] | None] = None  # a part of another type is refused or noted as a whole

    @classmethod
    def beside(cls, value: Mapping[str, Any]) -> Collection[str]:
        """Return further members that validation itself takes care of."""
        return cls.MARKS if cls.TYPES is None or value.get("type") in cls.TYPES else value.keys()

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return an object without what says nothing. A client that sends an answer's message back
        has `"refusal": null` in it."""
        marks = cls.MARKS
        return {name: item for name, item in value.items() if item is not None and name not in marks}

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return cls.plain(value) if isinstance(value, dict) else value


def type_of(value: Any) -> str | None:
    """Return the type that an object of a request names, None where it names none."""
    kind = value.get("type") if isinstance(value, dict) else None
    return kind if isinstance(kind, str) else None


class Unread(Wire):
    """A part of which a model reads nothing: only its type is kept."""

    TYPES = ()

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the type."""
        return {"type": value.get("type")}


class TextPart(Wire):
    """One part of a message's content: text, by the names of two of OpenAI's APIs."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str

    @classmethod
    def beside(cls, value: Mapping[str, Any]) -> Collection[str]:
        """Return all of a part that is none of text: it is left out, or refused as a whole."""
        return _PART_MARKS if value.get("type") in TEXTS else value.keys() - {"cache_control"}

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return a part by the names of Chat Completions."""
        kept = _without_marks(value)
        if kept.get("type") == "refusal" and "refusal" in kept:
            kept["text"] = kept.pop("refusal")
        return kept


class CalledFunction(Wire):
    """The function that an assistant called, and its arguments as JSON text."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str = "{}"
    MARKS = IGNORED

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the call with its arguments as text: Ollama sends an object, and an empty text has
        none."""
        kept, arguments = super().plain(value), value.get("arguments")
        if isinstance(arguments, dict):
            kept["arguments"] = json.dumps(arguments, ensure_ascii=False)
        elif arguments == "":
            kept["arguments"] = "{}"
        return kept


class MessageToolCall(Wire):
    """One of `tool_calls`."""

    id: Annotated[str, Field(max_length=256)] | None = None
    type: Literal["function"] = "function"
    function: CalledFunction
    MARKS = IGNORED - {"id"} | {"extra_content"}  # its id says which result is its own


def _calls_text(calls: list[MessageToolCall]) -> Any:
    """Calls as JSON text, which is what a message keeps: as objects they take many times as much.
    """
    return json.dumps([{"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
                       for call in calls], ensure_ascii=False)


class ChatMessage(Wire):
    """One turn of a conversation. `developer` is OpenAI's newer name of `system`, and `function`
    its older one of `tool`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    reasoning_content: str | None = None  # by whichever of its names it came
    tool_calls: Annotated[list[MessageToolCall], Field(max_length=MOST_CALLS, fail_fast=True),
                          AfterValidator(_calls_text)] | None = None  # as JSON text, see `calls`
    tool_call_id: Annotated[str, Field(max_length=256)] | None = None

    @classmethod
    def beside(cls, value: Mapping[str, Any]) -> Collection[str]:
        """Marks of other servers, and what its role alone has."""
        known = set(_MESSAGE_MARKS)
        if value.get("role") == "assistant":
            known |= {"refusal", "function_call", *(name for name in THOUGHTS if isinstance(value.get(name), str))}
        return known | {"tool_name"} if value.get("role") in ("tool", "function") else known

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the message without what says nothing, its parts joined."""
        kept = value if value.keys() == _USUAL and None not in value.values() else _without_marks(value)
        role = kept.get("role")
        if role == "assistant":
            kept = _assistant(kept)
        elif role in ("tool", "function"):
            kept = _result(kept)
        content = kept.get("content")
        return {**kept, "content": _joined(content)} if isinstance(content, list) else kept

    @field_validator("tool_calls")
    @classmethod
    def _assistants_call(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("role", "assistant") != "assistant":
            raise PydanticCustomError("value_error", "only messages with the role assistant have calls")
        return value

    @field_validator("tool_call_id")
    @classmethod
    def _results_are_of_calls(cls, value: Any, info: ValidationInfo) -> Any:
        if info.data.get("role", "tool") not in ("tool", "function"):
            raise PydanticCustomError("value_error", "only messages with the role tool are results of calls")
        return value

    @property
    def calls(self) -> str:
        """An assistant's calls as JSON text: a list of objects with id (or null), name and
        arguments."""
        return "[]" if self.tool_calls is None else str(self.tool_calls)

    @property
    def text(self) -> str:
        """The content, its parts on lines of their own."""
        return str(self.content)


def settle(document: dict[str, Any]) -> None:
    """Take a mark by which the last message goes on out of a chat's request, as the parameter of
    that meaning."""
    turns = document.get("messages")
    if not isinstance(turns, list) or not turns or not isinstance(turns[-1], dict):
        return
    *before, last = turns
    if not any(last.get(name) is True for name in _GOES_ON):
        return
    document["messages"] = [*before, {name: item for name, item in last.items() if name not in _GOES_ON}]
    document["continue_final_message"] = True


_USUAL = {"role", "content"}
_PART = {"type", "text"}
_TEXT = TextPart.model_construct(type="text", text="")


def unsupported(finding: ErrorDetails) -> str | None:
    """Return the refusal of something that this service knows but does not support, else None."""
    path, value = finding["loc"], finding["input"]
    if len(path) < 3 or path[0] != "messages":
        return None
    if finding["type"] == "extra_forbidden" and len(path) == 3:
        return REFUSED.get(str(path[2]))
    if finding["type"] == "literal_error" and path[-1] == "type" and isinstance(value, str) and value in _NOT_TEXT:
        return f"this service takes text only; found: {value}"
    return None


def _without_marks(value: dict[str, Any]) -> dict[str, Any]:
    """Return a message or part without what says nothing."""
    return {name: item for name, item in value.items() if not (
        item is None or name in IGNORED or (name in EMPTY and any(same(item, each) for each in EMPTY[name])))}


def _joined(parts: list[Any]) -> str | list[Any]:
    """Join the text of all parts. Where one is not text, return the list for its refusal, with
    stand-ins before it: an object for each part would take many times the memory and time."""
    texts: list[str] = []
    for part in parts:
        if not isinstance(part, dict):
            break
        plain = part if part.keys() == _PART else TextPart.plain(part)
        text = plain.get("text")
        if plain.keys() != _PART or plain["type"] not in TEXTS or not isinstance(text, str):
            break
        texts.append(text)
    else:
        return "\n".join(texts)
    return [*[_TEXT] * len(texts), *parts[len(texts):]]


def _assistant(message: dict[str, Any]) -> dict[str, Any]:
    """Return an answer that comes back: its thoughts by one name, its refusal as what it said."""
    content, refusal = message.get("content"), message.get("refusal")
    if isinstance(content, str) and content and message.keys() == _USUAL:
        return message
    assistant = {name: item for name, item in message.items() if name not in THOUGHTS or not isinstance(item, str)}
    if isinstance(content, list):
        assistant["content"] = [part for part in content if type_of(part) not in _HIDDEN]
    if isinstance(refusal, str):
        del assistant["refusal"]
    if content in (None, ""):
        assistant["content"] = refusal if isinstance(refusal, str) else ""
    if "function_call" in assistant and "tool_calls" not in assistant:
        assistant["tool_calls"] = [{"function": assistant.pop("function_call")}]
    thoughts = [text for text in map(message.get, THOUGHTS) if isinstance(text, str) and text]
    if thoughts:
        assistant["reasoning_content"] = thoughts[0]
    return assistant


def _result(message: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a call: nothing, or text. Some servers give its name as `tool_name`."""
    result = {"content": "", **message}
    if "tool_name" in result and "name" not in result:
        result["name"] = result.pop("tool_name")
    return result
