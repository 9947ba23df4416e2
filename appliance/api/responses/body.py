"""The request of the Responses API: its types, and the values of other parameters that change
nothing.

Source of the format: the OpenAI API reference, "Responses", as of 2026-11. Extensions: the sampling
parameters of chats, `seed`, `stop`, `logit_bias` and `chat_template_kwargs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from appliance.api.messages import Unread, Wire, type_of
from appliance.api.offers import MOST, FunctionName
from appliance.api.problems import invalid, missing
from appliance.api.wire import MAX_VARIABLES, Bias, Budget, Count, Parameters, Seed, Stop, StopTokens

MOST_ITEMS = 4096
_PARTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
_TEXTS = frozenset({None, *_PARTS})
_CALLS = ("custom_tool_call", "custom_tool_call_output", "local_shell_call", "local_shell_call_output")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning", *_CALLS)
_RECORDS = (
    "additional_tools", "apply_patch_call", "apply_patch_call_output", "code_interpreter_call", "compaction",
    "compaction_summary", "context_compaction", "file_search_call", "ghost_snapshot", "image_generation_call",
    "mcp_approval_request", "mcp_approval_response", "mcp_call", "mcp_list_tools", "program", "program_output",
    "shell_call", "shell_call_output", "tool_search_call", "tool_search_output", "web_search_call")
"""Types of items without a text that this service could read: what hosted tools did, and what is encrypted."""
_KNOWN = frozenset({None, *_ITEMS, *_RECORDS})
_MARKS = frozenset({"id", "status", "phase", "caller", "async", "created_by", "end_turn"})  # facts of earlier answers


class ContentPart(Wire):
    """A part of a content: text, by whichever of its names."""

    type: Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: str = ""
    refusal: str = ""
    MARKS, TYPES = ("annotations", "logprobs"), _PARTS

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the part without what answers have beside their text."""
        if type_of(value) not in _TEXTS:
            raise PydanticCustomError("unsupported_parameter", "this service takes text only")
        return super().plain(value)

    @property
    def said(self) -> str:
        """Its text."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | Annotated[list[ContentPart], Field(fail_fast=True)]


class _InputItem(Wire):
    """An item; of its id and state a model reads nothing."""

    MARKS = _MARKS


class InputMessage(_InputItem):
    """A turn. `developer` is OpenAI's newer name of `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content


class FunctionToolCall(_InputItem):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str
    namespace: Annotated[str, Field(max_length=256)] | None = None


class CustomToolCall(_InputItem):
    """A call of a free-form tool."""

    type: Literal["custom_tool_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    input: str
    namespace: Annotated[str, Field(max_length=256)] | None = None


class ShellToolCall(_InputItem):
    """A call of the shell. One of an older client has its id for its call's."""

    type: Literal["local_shell_call"]
    call_id: Annotated[str, Field(max_length=256)] | None = None
    id: Annotated[str, Field(max_length=256)] | None = None
    action: dict[str, Any]
    MARKS = _MARKS - {"id"}


class ShellToolCallOutput(_InputItem):
    """The result of a call of the shell."""

    type: Literal["local_shell_call_output"]
    id: Annotated[str, Field(max_length=256)]
    output: str
    MARKS = _MARKS - {"id"}


class ToolCallOutput(_InputItem):
    """The result of a call."""

    type: Literal["function_call_output", "custom_tool_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Content
    name: str | None = None


class Reasoning(_InputItem):
    """A model's thoughts. They are read from `content`, or where it is absent from `summary`."""

    type: Literal["reasoning"]
    summary: Annotated[list[ContentPart], Field(default_factory=list, fail_fast=True)]
    content: Annotated[list[ContentPart], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None


class UnreadItem(Unread):
    """An item of which a model reads nothing."""

    type: Annotated[str, WithJsonSchema({"enum": list(_RECORDS)})]


def _known(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "item_reference" or (isinstance(value, dict) and kind is None and value.keys() == {"id"}):
        raise PydanticCustomError("unsupported_parameter", "this service stores nothing: send the item itself, as "
                                  "clients do with store = false")
    if type_of(value) not in _KNOWN:
        raise PydanticCustomError("unsupported_parameter", "this service takes items of these types only: {kinds}",
                                  {"kinds": ", ".join(_ITEMS)})
    return value


def _tag(value: Any) -> str:
    kind = type_of(value)
    if kind in _RECORDS:
        return "(record)"
    return f"({kind.replace('custom_tool_call_output', 'function_call_output')})" if kind in _ITEMS else "(message)"


# Steps of pydantic's paths in parentheses are left out of refusals
Item = Annotated[
    Annotated[InputMessage, Tag("(message)")] | Annotated[FunctionToolCall, Tag("(function_call)")]
    | Annotated[ToolCallOutput, Tag("(function_call_output)")] | Annotated[Reasoning, Tag("(reasoning)")]
    | Annotated[CustomToolCall, Tag("(custom_tool_call)")] | Annotated[ShellToolCall, Tag("(local_shell_call)")]
    | Annotated[ShellToolCallOutput, Tag("(local_shell_call_output)")] | Annotated[UnreadItem, Tag("(record)")],
    Discriminator(_tag), BeforeValidator(_known)]


_CALLED = ("function", "custom", "local_shell")


class FunctionTool(Wire):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


class FreeTool(Wire):
    """A tool that takes a text, as its format says."""

    type: Literal["custom"]
    name: FunctionName
    description: str | None = None
    format: dict[str, Any] | None = None

    @property
    def grammar(self) -> str:
        """The grammar of its text; empty: any text."""
        found = (self.format or {}).get("definition")
        return found if isinstance(found, str) else ""


class ShellTool(Wire):
    """A shell that the client has."""

    type: Literal["local_shell"]


class HostedTool(Unread):
    """A tool of another type: this service hosts none."""

    type: Annotated[str, WithJsonSchema({"type": "string", "not": {"enum": [*_CALLED, "namespace"]}})]


def _tool_tag(value: Any) -> str:
    kind = type_of(value)
    if kind in (None, "function"):
        return "(function)"
    return f"({kind})" if kind in (*_CALLED, "namespace") else "(hosted)"


_Function = Annotated[FunctionTool, Tag("(function)")]
_Free = Annotated[FreeTool, Tag("(custom)")]
_Hosted = Annotated[HostedTool, Tag("(hosted)")]


class ToolNamespace(Wire):
    """Functions with a name in common."""

    type: Literal["namespace"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    tools: Annotated[list[Annotated[_Function | _Free | _Hosted, Discriminator(_tool_tag)]],
                     Field(max_length=MOST, fail_fast=True)]


Tool = Annotated[
    _Function | _Free | Annotated[ShellTool, Tag("(local_shell)")]
    | Annotated[ToolNamespace, Tag("(namespace)")] | _Hosted, Discriminator(_tool_tag)]


class ToolReference(Wire):
    """A tool, as a choice names it."""

    type: Annotated[str, WithJsonSchema({"type": "string", "not": {"const": "allowed_tools"}})]
    name: FunctionName | None = None
    namespace: Annotated[str, Field(max_length=256)] | None = None
    TYPES = _CALLED

    @classmethod
    def plain(cls, value: dict[str, Any]) -> dict[str, Any]:
        """Return the tool; where it is hosted elsewhere, only its type."""
        called = value.get("type") in _CALLED
        return {name: item for name, item in value.items() if item is not None and (called or name == "type")}

    @property
    def calls(self) -> bool:
        """Whether a model here can call it."""
        return self.type in _CALLED


class AllowedTools(Wire):
    """Some of the tools, and whether one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ToolReference], Field(min_length=1, max_length=MOST)]


def _choice(value: Any) -> str:
    if isinstance(value, str):
        return "(text)"
    return "(allowed)" if isinstance(value, dict) and value.get("type") == "allowed_tools" else "(tool)"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(text)")] | Annotated[AllowedTools, Tag("(allowed)")]
    | Annotated[ToolReference, Tag("(tool)")], Discriminator(_choice)]


class TextFormat(Wire):
    """The structure of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> TextFormat:
        if self.type == "json_schema" and self.schema_ is None:
            raise missing("text.format.schema")
        if self.type != "json_schema" and self.schema_ is not None:
            raise invalid("text.format.schema", "allowed with the type json_schema alone")
        return self


class TextConfig(Wire):
    """`text`: the form of what the answer says."""

    format: TextFormat | None = None


class ReasoningConfig(Wire):
    """`reasoning`: how much a model thinks."""

    effort: str | None = None


class ResponseStreamOptions(Wire):
    """The options of a stream: none has an effect."""


_LOGPROBS = "message.output_text.logprobs"
INCLUDED = (_LOGPROBS, "reasoning.encrypted_content")  # thoughts are not hidden


class ResponseRequest(Parameters):
    """`POST /v1/responses`."""

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextConfig | None = None
    reasoning: ReasoningConfig | None = None
    include: Annotated[list[Annotated[str, Field(max_length=256)]], Field(max_length=64)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    ignore_eos: bool = False
    min_tokens: Budget | None = None
    stop_token_ids: StopTokens | None = None
    logit_bias: Bias | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None

    @property
    def logprobs(self) -> bool:
        """Whether the answer is to have log-probabilities."""
        return _LOGPROBS in (self.include or ()) or bool(self.top_logprobs)

    @property
    def effort(self) -> str | None:
        """How much a model is to think."""
        return None if self.reasoning is None else self.reasoning.effort
