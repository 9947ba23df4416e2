"""The response types of the OpenAI API, and the parts of an answer that fill them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, SerializerFunctionWrapHandler, model_serializer

Finish = Literal["stop", "length", "tool_calls", "function_call"]


class TopLogprob(BaseModel):
    """An alternative at one place; `bytes` are those of its text, of which a control token has
    none."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(TopLogprob):
    """A token of the answer with its alternatives."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log-probabilities of a chat answer."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(BaseModel):
    """Log-probabilities of a text completion, in OpenAI's older form. The first token of a prompt
    that is echoed has none."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Sparse(BaseModel):
    """A part that is written without what is None, but for the fields that OpenAI always writes."""

    ALWAYS: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _present(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: item for name, item in write(self).items() if item is not None or name in self.ALWAYS}


class PromptDetails(BaseModel):
    """Tokens of a prompt that were not read again: an earlier text of the tenant began with them.
    """

    cached_tokens: int


class CompletionUsage(Sparse):
    """Token counts, each rounded up as the policy says, and their sum. Those of a cache only where
    the model has one."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails | None = None

    @classmethod
    def of(cls, prompt: int, completion: int, cached: int | None = None) -> CompletionUsage:
        """Return usage from its counts."""
        return cls(prompt_tokens=prompt, completion_tokens=completion, total_tokens=prompt + completion,
                   prompt_tokens_details=None if cached is None else PromptDetails(cached_tokens=cached))

    @property
    def cached(self) -> int:
        """Tokens of the prompt that were not read again."""
        return 0 if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class FunctionCall(Sparse):
    """A call: the function's name, and its arguments, or a part of them, as JSON text."""

    name: str | None = None
    arguments: str


class ToolCall(Sparse):
    """One of the calls of a message or delta. Only deltas have an index; only the first delta of a
    call has its id and its name."""

    index: int | None = None
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class AssistantMessage(Sparse):
    """The answer of a chat."""

    ALWAYS = frozenset({"content", "refusal"})

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    function_call: FunctionCall | None = None


class ChatChoice(BaseModel):
    """A choice of a chat answer."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish


class ChatDelta(BaseModel):
    """A choice in an event of a chat stream."""

    index: int
    delta: dict[str, Any]
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None


class TextChoice(BaseModel):
    """A choice of a text completion or of an event of its stream."""

    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: Finish | None


class _Envelope(BaseModel):
    id: str
    created: int
    model: str
    system_fingerprint: str


class ChatCompletion(_Envelope):
    """A whole chat answer."""

    object: Literal["chat.completion"] = "chat.completion"
    choices: list[ChatChoice]
    usage: CompletionUsage


class ChatChunk(_Envelope):
    """An event of a chat stream; `usage` only where it was asked for."""

    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    choices: list[ChatDelta]
    usage: CompletionUsage | None = None


class TextCompletion(_Envelope):
    """A whole text completion, or an event of its stream."""

    object: Literal["text_completion"] = "text_completion"
    choices: list[TextChoice]
    usage: CompletionUsage | None = None


@dataclass(frozen=True)
class AnswerFacts:
    """Facts of an answer before it is written."""

    request_id: str
    model: str
    fingerprint: str
    channels: bool = False  # whether there may be more than content
    older: bool = False  # whether calls have the form of `functions`
    padding: int | None = None  # the multiple of bytes that events and bodies have; None: none
    usage: Callable[[], CompletionUsage] = lambda: CompletionUsage.of(0, 0)  # so far
    counts: Callable[[], CompletionUsage] | None = None  # so far, for each event of a stream; None: events have none
    stopped: Mapping[int, str] = field(default_factory=dict)  # choice -> the stop sequence that has ended it
    leads: bool = False  # whether the text of an answer's first token has a space before it that is not there
    missing: Callable[[str], int] = lambda _text: 0  # bytes by which a text becomes longer before it leaves


@dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call, or all of it. `name` is there where the call begins."""

    index: int
    id: str
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """A part of one choice, or all of it. `logprobs` can be iterated more than once; None where
    there are none."""

    choice: int
    text: str
    logprobs: Iterable[TokenLogprob] | None = None
    thoughts: str = ""
    calls: tuple[CallPart, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it says nothing."""
        return not (self.text or self.thoughts or self.calls) and self.logprobs is None

    def begun(self) -> Iterator[AnswerPart]:
        """Split a part in which a call begins with some of its arguments; keep others whole."""
        if any(call.name is not None and call.arguments for call in self.calls):
            begins = tuple(replace(call, arguments="") for call in self.calls if call.name is not None)
            yield replace(self, calls=begins)
            yield AnswerPart(self.choice, "", calls=tuple(replace(call, name=None)
                                                          for call in self.calls if call.arguments))
        else:
            yield self
