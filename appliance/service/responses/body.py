"""The request of the Responses API: its types, and the values of other parameters that change
nothing.

Source of the format: the OpenAI API reference, "Responses", as of 2026-11. Extensions: the sampling
parameters of chats, `seed`, `stop`, `logit_bias` and `chat_template_kwargs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from appliance.service.api.dialects import Parameter
from appliance.service.api.messages import Wire
from appliance.service.api.offers import MOST, FunctionName, Name
from appliance.service.api.problems import RequestError
from appliance.service.api.wire import MAX_VARIABLES, Bias, Count, Effort, Parameters, Seed, Stop

MOST_ITEMS = 4096
_STORED = "this service stores nothing: send the earlier items in input"

ROWS = {row.name: row for row in (
    Parameter("previous_response_id", instead=_STORED),
    Parameter("conversation", instead=_STORED),
    Parameter("store", (False,), "this service stores nothing"),
    Parameter("background", (False,), "this service stores nothing, so nobody could ask for the answer later"),
    Parameter("prompt", instead="this service stores no prompts: send instructions and input"),
    Parameter("context_management", ([],), "send the input that is to count"),
    Parameter("truncation", ("disabled",), "send the input that is to count"),
    Parameter("moderation"),
    Parameter("prompt_cache_retention", ("in_memory", "in-memory")),
    Parameter("prompt_cache_options", ({},)),
    Parameter("service_tier", ("auto", "default")),
    Parameter("max_tool_calls", idle=True),  # of hosted tools, which there are none of
    *(Parameter(name, idle=True) for name in ("user", "metadata", "safety_identifier", "prompt_cache_key")))}
"""Parameters that no type declares, by name."""

_PARTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


class Part(Wire):
    """A part of a content: text, by whichever of its names."""

    type: Literal["input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text"]
    text: str = ""
    refusal: str = ""

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Without what answers have beside their text."""
        if not isinstance(value, dict):
            return value
        kind = value.get("type")
        if isinstance(kind, str) and kind not in _PARTS:
            raise PydanticCustomError("unsupported_parameter", "this service takes text only")
        return {name: item for name, item in value.items()
                if item is not None and name not in ("annotations", "logprobs", "prompt_cache_breakpoint")}

    @property
    def said(self) -> str:
        """Its text."""
        return self.refusal if self.type == "refusal" else self.text


Content = str | Annotated[list[Part], Field(fail_fast=True)]


class _Item(Wire):
    """An item's id and state, of which a model reads nothing."""

    id: str | None = None
    status: Literal["in_progress", "completed", "incomplete"] | None = None


class Message(_Item):
    """A turn. `developer` is OpenAI's newer name of `system`."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    phase: Literal["commentary", "final_answer"] | None = None


class FunctionCall(_Item):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    arguments: str


class FunctionCallOutput(_Item):
    """The result of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Content
    name: str | None = None


class Reasoning(_Item):
    """A model's thoughts. They are read from `content`, or where it is absent from `summary`."""

    type: Literal["reasoning"]
    summary: Annotated[list[Part], Field(default_factory=list, fail_fast=True)]
    content: Annotated[list[Part], Field(fail_fast=True)] | None = None
    encrypted_content: str | None = None


def _known(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "item_reference" or (isinstance(value, dict) and kind is None and value.keys() == {"id"}):
        raise PydanticCustomError("unsupported_parameter", "this service stores nothing: send the item itself, as "
                                  "clients do with store = false")
    if isinstance(kind, str) and kind not in _ITEMS:
        raise PydanticCustomError("unsupported_parameter", "this service takes items of these types only: {kinds}",
                                  {"kinds": ", ".join(_ITEMS)})
    return value


def _tag(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    return f"({kind})" if kind in _ITEMS else "(message)"


# Steps of pydantic's paths in parentheses are left out of refusals
Item = Annotated[
    Annotated[Message, Tag("(message)")] | Annotated[FunctionCall, Tag("(function_call)")]
    | Annotated[FunctionCallOutput, Tag("(function_call_output)")] | Annotated[Reasoning, Tag("(reasoning)")],
    Discriminator(_tag), BeforeValidator(_known)]


def _function_only(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind != "function":
        raise PydanticCustomError("unsupported_parameter", "this service calls functions only, and hosts no tools")
    return value


class FunctionTool(Wire):
    """A function that the model may call."""

    type: Literal["function"]
    name: FunctionName
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool = False


Tool = Annotated[FunctionTool, BeforeValidator(_function_only)]


class NamedFunction(Name):
    """A function, as a choice names it."""

    type: Literal["function"]


class AllowedFunctions(Wire):
    """Some of the functions, and whether one must be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[NamedFunction], Field(min_length=1, max_length=MOST)]


def _choice(value: Any) -> str:
    if isinstance(value, str):
        return "(text)"
    return "(allowed)" if isinstance(value, dict) and value.get("type") == "allowed_tools" else "(function)"


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("(text)")] | Annotated[AllowedFunctions, Tag("(allowed)")]
    | Annotated[Annotated[NamedFunction, BeforeValidator(_function_only)], Tag("(function)")], Discriminator(_choice)]


class Format(Wire):
    """The structure of an answer's text."""

    type: Literal["text", "json_object", "json_schema"]
    name: Annotated[str, Field(max_length=256)] | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None

    @model_validator(mode="after")
    def _fits(self) -> Format:
        if self.type == "json_schema" and self.schema_ is None:
            raise RequestError("missing_required_parameter", "text.format.schema: this parameter is required",
                               param="text.format.schema")
        if self.type != "json_schema" and self.schema_ is not None:
            raise RequestError("invalid_value", "text.format.schema: allowed with the type json_schema alone",
                               param="text.format.schema")
        return self


class Text(Wire):
    """`text`: the form of what the answer says."""

    format: Format | None = None
    verbosity: Literal["medium"] | None = None


class Thinking(Wire):
    """`reasoning`: how much a model thinks. Thoughts come whole, and without a summary."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class StreamOptions(Wire):
    """The options of a stream: the policy's `size_padding` decides about sizes."""

    include_obfuscation: Literal[False] = False


class ResponseRequest(Parameters):
    """`POST /v1/responses`."""

    input: str | Annotated[list[Item], Field(min_length=1, max_length=MOST_ITEMS, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    tools: Annotated[list[Tool], Field(max_length=MOST, fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: Text | None = None
    reasoning: Thinking | None = None
    include: list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    seed: Seed | None = None
    stop: Stop | None = None
    logit_bias: Bias | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None

    @property
    def logprobs(self) -> bool:
        """Whether the answer is to have log-probabilities."""
        return "message.output_text.logprobs" in (self.include or ()) or bool(self.top_logprobs)
