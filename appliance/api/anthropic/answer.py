"""The answers of the Messages API, the events of its stream, and its refusals."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field
from pydantic_core import to_json

from appliance.api.answers import CompletionUsage
from appliance.api.problems import RequestError

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(BaseModel):
    """A text that the model said."""

    type: Literal["text"] = "text"
    text: str = ""


class ThinkingBlock(BaseModel):
    """A thought of the model. Its signature is empty: nobody needs one to send it back."""

    type: Literal["thinking"] = "thinking"
    thinking: str = ""
    signature: str = ""


class ToolUseBlock(BaseModel):
    """A call of a function. Arguments that were cut are an empty object."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str = ""
    input: dict[str, Any] = Field(default_factory=dict)


ContentBlock = Annotated[TextBlock | ThinkingBlock | ToolUseBlock, Field(discriminator="type")]


class MessageUsage(BaseModel):
    """Token counts, rounded as the policy says. `input_tokens` counts tokens that were read; tokens
    written to a cache are not reported."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int

    @classmethod
    def of(cls, usage: CompletionUsage) -> MessageUsage:
        """Return the same counts by these names."""
        return cls(input_tokens=usage.prompt_tokens - usage.cached, cache_read_input_tokens=usage.cached,
                   output_tokens=usage.completion_tokens)


class MessageAnswer(BaseModel):
    """An answer."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[ContentBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


class MessageTokensCount(BaseModel):
    """The tokens of a prompt, rounded as the policy says."""

    input_tokens: int


class MessageStart(BaseModel):
    """The answer begins."""

    type: Literal["message_start"] = "message_start"
    message: MessageAnswer


class BlockStart(BaseModel):
    """A block begins."""

    type: Literal["content_block_start"] = "content_block_start"
    index: int
    content_block: ContentBlock


class TextDelta(BaseModel):
    """More of a text."""

    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(BaseModel):
    """More of a thought."""

    type: Literal["thinking_delta"] = "thinking_delta"
    thinking: str


class InputJsonDelta(BaseModel):
    """More of a call's arguments, which are JSON text."""

    type: Literal["input_json_delta"] = "input_json_delta"
    partial_json: str


class BlockDelta(BaseModel):
    """More of a block."""

    type: Literal["content_block_delta"] = "content_block_delta"
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | InputJsonDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    """A block has ended."""

    type: Literal["content_block_stop"] = "content_block_stop"
    index: int


class MessageStopReason(BaseModel):
    """Why an answer ended."""

    stop_reason: StopReason
    stop_sequence: str | None = None


class MessageDelta(BaseModel):
    """The end of the answer, and its counts."""

    type: Literal["message_delta"] = "message_delta"
    delta: MessageStopReason
    usage: MessageUsage


class MessageStop(BaseModel):
    """Nothing follows."""

    type: Literal["message_stop"] = "message_stop"


class Ping(BaseModel):
    """Nothing new."""

    type: Literal["ping"] = "ping"


class ErrorObject(BaseModel):
    """The kind of a refusal, and its words."""

    type: str
    message: str
    details: dict[str, str] | None = Field(default=None, exclude_if=lambda told: told is None)


class ErrorResponse(BaseModel):
    """A refusal, as an answer or as the last event of a stream."""

    type: Literal["error"] = "error"
    error: ErrorObject
    request_id: str | None = None


EVENTS = (MessageStart, BlockStart, BlockDelta, BlockStop, MessageDelta, MessageStop, Ping, ErrorResponse)

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
          429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}  # by status


def refusal_body(error: RequestError, request_id: str | None) -> bytes:
    """Return a refusal in Anthropic's shape. Its clients send all messages again where `details`
    says that a thread is lost."""
    kind = _KINDS.get(error.status, "api_error" if error.status >= 500 else "invalid_request_error")
    details = {"error_code": error.code} if error.code == "thread_not_found" else None
    told = ErrorObject(type=kind, message=error.summary, details=details)
    return to_json(ErrorResponse(error=told, request_id=request_id))
