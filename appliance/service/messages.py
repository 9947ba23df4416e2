"""The messages of a chat: one type for each, and what is done with every key that servers and libraries write.

A conversation that another server answered continues here. So an assistant's message may have what OpenAI, vLLM,
llama.cpp, Ollama, DeepSeek, OpenRouter or LiteLLM wrote into it:

    taken     role, content (absent: empty), name, a refusal (where there is no content), the model's thoughts
    ignored   IGNORED: keys that say nothing a template reads (ids, dates, caching marks, citations)
    empty     EMPTY: keys that may be there without a value
    refused   tool calls, their results, audio and pictures, by name; and any other key
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from appliance.service.parameters import THOUGHTS, same

# Keys of messages and of parts that say nothing a template reads: ids, dates, caching marks, citations, signatures.
IGNORED = frozenset({
    "annotations", "cache_control", "citations", "created", "created_at", "createdAt", "experimental_providerMetadata",
    "id", "index", "metadata", "object", "providerMetadata", "providerOptions", "provider_metadata",
    "provider_options", "provider_specific_fields", "reasoning_details", "reasoning_signature", "signature", "status",
    "thinking_blocks", "timestamp"})

# Keys without effect while they have one of these values, which null always is.
EMPTY: dict[str, tuple[Any, ...]] = {
    "audio": (), "function_call": ({},), "images": ([],), "logprobs": ([],), "partial": (False,), "prefix": (False,),
    "tool_call_id": ("",), "tool_calls": ([],), "tool_name": ("",), "type": ("message",)}

_TOOLS = "this service does not call tools"
REFUSED = {  # keys that ask for something, and what is said of them
    "audio": "this service takes text only", "images": "this service takes text only",
    "function_call": _TOOLS, "tool_calls": _TOOLS, "tool_call_id": _TOOLS, "tool_name": _TOOLS,
    "partial": "this service does not continue a message", "prefix": "this service does not continue a message"}

_HIDDEN = frozenset({"reasoning", "redacted_thinking", "thinking"})  # parts of assistants that hold their thoughts
_NOT_TEXT = frozenset({
    "audio", "document", "file", "image", "image_url", "input_audio", "input_file", "input_image", "tool_call",
    "tool-call", "tool_result", "tool-result", "tool_use", "video_url"})


class Wire(BaseModel):
    """A part of a request: strict, frozen, and null is the same as absent."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Also inside: a client that sends an answer's message back says `"refusal": null` in it."""
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class TextPart(Wire):
    """One part of a message's content; only text is served, by the names of two of OpenAI's APIs."""

    type: Literal["text", "input_text", "output_text", "refusal"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = _without_marks(value)
        if kept.get("type") == "refusal" and "refusal" in kept:
            kept["text"] = kept.pop("refusal")
        return kept

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if isinstance(value, str) and value in _NOT_TEXT:
            raise PydanticCustomError("unsupported_parameter", f"this service takes text only; found: {value}")
        return value


class Message(Wire):
    """One turn of a conversation. `developer` is OpenAI's newer name of `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None
    reasoning_content: str | None = None  # by whichever of its names it came

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        kept = _without_marks(value)
        return _assistant(kept) if kept.get("role") == "assistant" else kept

    @field_validator("role", mode="before")
    @classmethod
    def _is_no_tool(cls, value: Any) -> Any:
        if value in ("tool", "function"):
            raise PydanticCustomError("unsupported_parameter", f"{_TOOLS}, and takes no message with the role {value}")
        return value

    @field_validator("content")
    @classmethod
    def _joined(cls, value: str | list[TextPart]) -> str:
        """Parts are many times their text, and a request is kept until its answer has ended."""
        return value if isinstance(value, str) else "\n".join(part.text for part in value)

    @property
    def text(self) -> str:
        """The content, its parts on lines of their own."""
        return str(self.content)


def refused_key(path: tuple[int | str, ...]) -> str | None:
    """What is said of a key of a message that this service knows and does not support; None for another."""
    if len(path) == 3 and path[0] == "messages" and isinstance(path[2], str):
        return REFUSED.get(path[2])
    return None


def _without_marks(value: dict[str, Any]) -> dict[str, Any]:
    """A message or part without what says nothing."""
    return {name: item for name, item in value.items() if not (
        item is None or name in IGNORED or (name in EMPTY and any(same(item, each) for each in EMPTY[name])))}


def _assistant(message: dict[str, Any]) -> dict[str, Any]:
    """An answer that comes back: its thoughts by one name, its refusal as what it said."""
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = [part for part in content if not (isinstance(part, dict) and _is_hidden(part))]
    refusal = message.get("refusal")
    if isinstance(refusal, str):
        del message["refusal"]
    if content in (None, ""):
        message["content"] = refusal if isinstance(refusal, str) else ""
    thoughts = [message.pop(name) for name in THOUGHTS if isinstance(message.get(name), str)]
    if any(thoughts):
        message["reasoning_content"] = next(filter(None, thoughts))
    return message


def _is_hidden(part: dict[str, Any]) -> bool:
    kind = part.get("type")
    return isinstance(kind, str) and kind in _HIDDEN
