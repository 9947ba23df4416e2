"""The answer of the Responses API, and the events of its stream.

Nothing that the client sent comes back but numbers and choices: neither instructions nor tools.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from appliance.api.answers import CompletionUsage, Sparse, TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    """A text of a message."""

    type: Literal["output_text"] = "output_text"
    text: str = ""
    annotations: list[Any] = []
    logprobs: list[TokenLogprob] = []


class OutputMessage(BaseModel):
    """A text that the model said."""

    type: Literal["message"] = "message"
    id: str
    role: Literal["assistant"] = "assistant"
    status: Status
    content: list[OutputText]


class ReasoningText(BaseModel):
    """A text of thoughts."""

    type: Literal["reasoning_text"] = "reasoning_text"
    text: str = ""


class OutputReasoning(BaseModel):
    """A thought of the model."""

    type: Literal["reasoning"] = "reasoning"
    id: str
    status: Status
    summary: list[Any] = []
    content: list[ReasoningText]


class OutputCall(Sparse):
    """A call of a function."""

    type: Literal["function_call"] = "function_call"
    id: str
    status: Status
    name: str = ""
    arguments: str = ""
    call_id: str
    namespace: str | None = None


class OutputFreeCall(Sparse):
    """A call of a free-form tool."""

    type: Literal["custom_tool_call"] = "custom_tool_call"
    id: str
    status: Status
    name: str = ""
    input: str = ""
    call_id: str
    namespace: str | None = None


class ShellAction(BaseModel):
    """A command that the client runs."""

    type: Literal["exec"] = "exec"
    command: list[str] = []
    env: dict[str, str] = {}
    timeout_ms: int | None = None
    working_directory: str | None = None


class OutputShellCall(BaseModel):
    """A call of the client's shell."""

    type: Literal["local_shell_call"] = "local_shell_call"
    id: str
    status: Status
    call_id: str
    action: ShellAction = ShellAction()


Output = Annotated[OutputMessage | OutputReasoning | OutputCall | OutputFreeCall | OutputShellCall,
                   Field(discriminator="type")]


class InputDetails(BaseModel):
    """Prompt tokens that were not read again. Tokens written to a cache are not reported."""

    cached_tokens: int = 0
    cache_write_tokens: int = 0


class OutputDetails(BaseModel):
    """Tokens of thoughts: not told apart."""

    reasoning_tokens: int = 0


class ResponseUsage(BaseModel):
    """Token counts, rounded as the policy says."""

    input_tokens: int
    input_tokens_details: InputDetails = InputDetails()
    output_tokens: int
    output_tokens_details: OutputDetails = OutputDetails()
    total_tokens: int

    @classmethod
    def of(cls, usage: CompletionUsage) -> ResponseUsage:
        """Return the same counts by these names."""
        return cls(input_tokens=usage.prompt_tokens, output_tokens=usage.completion_tokens,
                   input_tokens_details=InputDetails(cached_tokens=usage.cached), total_tokens=usage.total_tokens)


class Incomplete(BaseModel):
    """Why an answer ends early."""

    reason: Literal["max_output_tokens"] = "max_output_tokens"


class Response(Sparse):
    """An answer, with counts once it has some."""

    ALWAYS = frozenset({"error", "incomplete_details", "instructions", "max_output_tokens", "previous_response_id",
                        "temperature", "top_p"})

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status
    output: list[Output]
    model: str
    usage: ResponseUsage | None = None
    error: None = None
    incomplete_details: Incomplete | None = None
    instructions: None = None
    metadata: dict[str, str] = Field(default={})
    max_output_tokens: int | None = None
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    store: Literal[False] = False
    background: Literal[False] = False
    temperature: float | None = None
    top_p: float | None = None
    tool_choice: Literal["none", "auto", "required"] = "auto"
    tools: list[Any] = Field(default=[])
    truncation: Literal["disabled"] = "disabled"

class _Event(BaseModel):
    sequence_number: int


class ResponseEvent(_Event):
    """The answer begins or has ended, as far as it is."""

    type: Literal["response.created", "response.in_progress", "response.completed", "response.incomplete"]
    response: Response


class _ItemEvent(_Event):
    output_index: int


class ItemEvent(_ItemEvent):
    """An item begins or has ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    item: Output


class _TextEvent(_ItemEvent):
    item_id: str


class PartEvent(_TextEvent):
    """A part of an item begins or has ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int = 0
    part: OutputText | ReasoningText


class OutputTextDelta(_TextEvent):
    """More of a message."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    content_index: int = 0
    delta: str
    logprobs: list[TokenLogprob] = []


class OutputTextDone(_TextEvent):
    """The whole text of a message; its log-probabilities came with its deltas."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    content_index: int = 0
    text: str
    logprobs: list[TokenLogprob] = []


class ReasoningTextDelta(_TextEvent):
    """More of a thought."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    content_index: int = 0
    delta: str


class ReasoningTextDone(_TextEvent):
    """The whole text of a thought."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    content_index: int = 0
    text: str


class ArgumentsDelta(_TextEvent):
    """More of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    delta: str


class ArgumentsDone(_TextEvent):
    """A call's name, and all of its arguments."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


class CustomInputDelta(_TextEvent):
    """The text of a call of a free-form tool, which comes whole."""

    type: Literal["response.custom_tool_call_input.delta"] = "response.custom_tool_call_input.delta"
    delta: str


class CustomInputDone(_TextEvent):
    """The same again."""

    type: Literal["response.custom_tool_call_input.done"] = "response.custom_tool_call_input.done"
    input: str


class ErrorEvent(_Event):
    """A refusal amid a stream, also in the form (`error`) by which clients know one."""

    type: Literal["error"] = "error"
    code: str | None
    message: str
    param: str | None
    error: dict[str, Any]


EVENTS = (ResponseEvent, ItemEvent, PartEvent, OutputTextDelta, OutputTextDone, ReasoningTextDelta, ReasoningTextDone,
          ArgumentsDelta, ArgumentsDone, CustomInputDelta, CustomInputDone, ErrorEvent)
