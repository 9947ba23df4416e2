"""The requests of the Messages API: their types, and the values of other parameters that change
nothing.

Source of the format: Anthropic's API reference, "Messages" and "Count tokens in a Message", as of
2026-11. Extensions: the sampling parameters of chats, `seed`, `logit_bias` and
`chat_template_kwargs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from appliance.api.messages import Unread, Wire, type_of
from appliance.api.offers import MOST, FunctionName
from appliance.api.wire import MAX_VARIABLES, Bias, Budget, Count, ModelRequest, Parameters, Seed, StopTokens
from appliance.text.stops import MAX_STOPS

_BLOCKS = ("text", "thinking", "redacted_thinking", "tool_use", "tool_result")
_RECORDS = ("advisor_tool_result", "bash_code_execution_tool_result", "code_execution_tool_result", "compaction",
            "container_upload", "fallback", "mcp_tool_result", "mcp_tool_use", "mid_conv_system", "server_tool_use",
            "text_editor_code_execution_tool_result", "tool_search_tool_result", "web_fetch_tool_result",
            "web_search_tool_result")
"""Types of blocks that tell what hosted tools did: a model reads nothing of them."""
_KNOWN = frozenset({None, *_BLOCKS, *_RECORDS})
_Id = Annotated[str, Field(max_length=256)]


class _BlockParam(Wire):
    """A part of a content, without facts of earlier answers."""

    MARKS, TYPES = ("citations", "caller"), _BLOCKS


class TextBlockParam(_BlockParam):
    """A text."""

    type: Literal["text"]
    text: str


class ThinkingBlockParam(_BlockParam):
    """A model's thoughts, which any signature may follow."""

    type: Literal["thinking"]
    thinking: str
    signature: str = ""


class RedactedThinkingBlockParam(_BlockParam):
    """Thoughts that another service keeps to itself: ignored."""

    type: Literal["redacted_thinking"]
    data: str = ""


class ToolUseBlockParam(_BlockParam):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: _Id
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: dict[str, Any]


def _text_only(value: Any) -> Any:
    kind = type_of(value)
    if kind == "tool_reference" and isinstance(value.get("tool_name"), str):
        return {"type": "text", "text": value["tool_name"]}
    if kind not in (None, "text"):
        raise PydanticCustomError("unsupported_parameter", "this service takes text only")
    return value


Texts = Annotated[list[Annotated[TextBlockParam, BeforeValidator(_text_only)]], Field(fail_fast=True)]


class ToolResultBlockParam(_BlockParam):
    """The result of a call. The model reads an error after the word Error."""

    type: Literal["tool_result"]
    tool_use_id: _Id
    content: str | Texts = ""
    is_error: bool = False


class UnreadBlock(Unread):
    """A block of which a model reads nothing."""

    type: Annotated[str, WithJsonSchema({"enum": list(_RECORDS)})]


def _known(value: Any) -> Any:
    if type_of(value) not in _KNOWN:
        raise PydanticCustomError("unsupported_parameter", "this service takes blocks of these types only: {kinds}",
                                  {"kinds": ", ".join(_BLOCKS)})
    return value


def _tag(value: Any) -> str:
    kind = type_of(value)
    return f"({kind})" if kind in _BLOCKS else "(record)" if kind in _RECORDS else "(text)"


# Steps of pydantic's paths in parentheses are left out of refusals
Block = Annotated[
    Annotated[TextBlockParam, Tag("(text)")] | Annotated[ThinkingBlockParam, Tag("(thinking)")]
    | Annotated[RedactedThinkingBlockParam, Tag("(redacted_thinking)")]
    | Annotated[ToolUseBlockParam, Tag("(tool_use)")] | Annotated[ToolResultBlockParam, Tag("(tool_result)")]
    | Annotated[UnreadBlock, Tag("(record)")], Discriminator(_tag), BeforeValidator(_known)]


class MessageParam(Wire):
    """A turn."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(fail_fast=True)]


class CustomTool(Wire):
    """A function that the model may call."""

    type: Literal["custom"] = "custom"
    name: FunctionName
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool = False


class ServerTool(Unread):
    """A tool of another type: this service hosts none, and a model knows none by its type."""

    type: Annotated[str, WithJsonSchema({"type": "string", "not": {"const": "custom"}})]


def _tool_tag(value: Any) -> str:
    return "(custom)" if type_of(value) in (None, "custom") else "(hosted)"


Tool = Annotated[Annotated[CustomTool, Tag("(custom)")] | Annotated[ServerTool, Tag("(hosted)")],
                 Discriminator(_tool_tag)]


class ToolChoice(Wire):
    """The choice among tools; `any` demands a call."""

    type: Literal["auto", "any", "tool", "none"]
    name: FunctionName | None = None
    disable_parallel_tool_use: bool = False

    @model_validator(mode="after")
    def _fits(self) -> ToolChoice:
        if (self.type == "tool") != (self.name is not None):
            raise PydanticCustomError("value_error", "a name goes with the type tool, and only with it")
        return self


class ThinkingConfig(Wire):
    """How the model thinks: `adaptive` leaves it to the model. Thoughts come whole."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None

    @model_validator(mode="after")
    def _fits(self) -> ThinkingConfig:
        if (self.type == "enabled") != (self.budget_tokens is not None):
            raise PydanticCustomError("value_error", "budget_tokens goes with the type enabled, and only with it")
        return self


class JsonOutputFormat(Wire):
    """The structure of an answer's text."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Wire):
    """The effort of an answer, and its structure."""

    effort: str | None = None
    format: JsonOutputFormat | None = None


class CountRequest(ModelRequest):
    """`POST /v1/messages/count_tokens`."""

    messages: Annotated[list[MessageParam], Field(min_length=1, max_length=4096, fail_fast=True)]
    system: str | Texts | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None

    @property
    def effort(self) -> str | None:
        """The effort that is asked for."""
        return None if self.output_config is None else self.output_config.effort


class MessageRequest(CountRequest, Parameters):
    """`POST /v1/messages`."""

    max_tokens: Count
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    stream: bool = False
    seed: Seed | None = None
    ignore_eos: bool = False
    min_tokens: Budget | None = None
    stop_token_ids: StopTokens | None = None
    logit_bias: Bias | None = None
