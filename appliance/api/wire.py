"""Requests as they arrive: JSON text in, one frozen request type out, or a refusal that names the
parameter.

This module knows the OpenAI wire format and nothing of tenants, engines or a policy's values. A
body passes these steps:

    document     JSON to an object; what is wrong is said, and where
    redaction    the fields that the policy drops are gone
    dialects     what asks for nothing is gone too, other servers' names become ours, demands are refused by name
    wishes       what no type declares is taken out and noted: the caller is told, or a strict policy refuses it
    types        here and in `messages`

Source of the format: the OpenAI API reference, "Chat" and "Completions", as of 2026-11. Extensions,
with the names that llama.cpp and vLLM use: `chat_template_kwargs`, and the rows of
`policy/schema/sampling`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import BeforeValidator, Field, create_model, field_validator, model_validator

from appliance.api import dialects, document, findings, messages, offers
from appliance.api.messages import ChatMessage, Wire
from appliance.api.problems import RequestError, invalid
from appliance.api.structure import Structure, StructureParameters, structure_of
from appliance.api.wishes.features import features_of
from appliance.api.wishes.ignored import Ignored
from appliance.api.wishes.parameter import Endpoint, same
from appliance.api.wishes.table import ROWS
from appliance.policy.schema import sampling
from appliance.text.breakers import MOST_CHARACTERS, MOST_TEXTS
from appliance.text.stops import MAX_STOPS

MAX_BIASED_TOKENS = 1024
MAX_VARIABLES, VARIABLE_CHARACTERS = 16, 1024  # of a chat template, and of the text of one
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")



def _whole(value: Any) -> Any:
    """4.0 as 4: some languages have one kind of number only."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) <= EXACT else value


EXACT = 1 << 53  # up to here each integer is a float
# Bounds on sampling are the policy's; here a number is only a number.
Finite = Annotated[float, Field(allow_inf_nan=False)]
Budget = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1 << 31)]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=1 << 31)]
MOST_CHOICES = 128  # of one request, whatever the policy says
Choices = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=MOST_CHOICES)]
Token = Annotated[int, Field(ge=0, lt=1 << 31)]
Tokens = Annotated[list[Token], Field(min_length=1, fail_fast=True)]
StopTokens = Annotated[list[Token], Field(max_length=MAX_BIASED_TOKENS, fail_fast=True)]
Some = Field(min_length=1, max_length=MOST_CHOICES, fail_fast=True)

Bias = Annotated[dict[str, Finite], Field(max_length=MAX_BIASED_TOKENS)]
Seed = Annotated[int, BeforeValidator(_whole), Field(ge=-(1 << 63), lt=1 << 64)]
Stop = str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)]
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]


Name = Annotated[str, Field(max_length=64)]
Breaker = Annotated[str, Field(min_length=1, max_length=MOST_CHARACTERS)]


def _listed(value: Any) -> Any:
    """Read a list that is written as text: JSON without its brackets, or names with semicolons or
    line ends between them."""
    if not isinstance(value, str) or len(value) > 1024:
        return value
    try:
        return json.loads(f"[{value}]")
    except (ValueError, RecursionError):
        return [name.strip() for name in re.split("[;\n]", value)]


class StreamOptions(Wire):
    """The options of a stream besides its text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False  # vLLM's: counts so far in each event


ModelName = Annotated[str, Field(min_length=1, max_length=256)]
ANY_MODEL = "*"  # no model has this name: it stands for the only model that the key may ask


class ModelRequest(Wire):
    """A request names its model before all else."""

    model: ModelName


def _parameter(row: sampling.Setting) -> Any:
    """Return the type of a sampling parameter, and its default: None, which leaves it to the
    policy."""
    least = int(min(row.low, 0))
    kind: Any = Annotated[int, BeforeValidator(_whole), Field(ge=least, le=1 << 31)] if row.whole else Finite

    def read(value: Any) -> Any:
        if row.switch and isinstance(value, bool):
            return int(value)
        return row.off if any(same(value, each) for each in row.unset) else value

    return Annotated[kind | None, BeforeValidator(read)], None


Parameters = create_model("Parameters", __base__=ModelRequest, **{
    row.name: _parameter(row) for row in sampling.PARAMETERS})


class SamplingRequest(Parameters, StructureParameters):
    """The common fields of chat and text completions. A parameter that is None has the policy's
    default."""

    endpoint: ClassVar[Endpoint] = "completions"

    negative_prompt: str | Tokens | None = None
    logit_bias: Bias | None = None
    seed: Seed | None = None
    samplers: Annotated[list[Name], Field(max_length=32, fail_fast=True), BeforeValidator(_listed)] | None = None
    dry_sequence_breakers: Annotated[list[Breaker], Field(max_length=MOST_TEXTS, fail_fast=True),
                                     BeforeValidator(_listed)] | None = None
    stop: Stop | None = None
    max_tokens: Count | None = None
    n: Choices | None = None
    use_beam_search: bool = False
    length_penalty: Finite | None = None
    ignore_eos: bool = False  # vLLM's: no token that ends a generation is chosen
    min_tokens: Budget | None = None  # before such a token
    stop_token_ids: StopTokens | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None

    @field_validator("logit_bias")
    @classmethod
    def _bias_by_token(cls, value: dict[str, float] | None) -> dict[str, float] | None:
        for token, bias in (value or {}).items():
            if not (token.isascii() and token.isdigit() and len(token) < 10 and token == str(int(token))):
                raise ValueError("keys are token ids")
            if not -100 <= bias <= 100:
                raise ValueError("values lie between -100 and 100")
        return value

    @field_validator("stop")
    @classmethod
    def _no_empty_stop(cls, value: str | list[str] | None) -> str | list[str] | None:
        """Leave out empty sequences, which stop nothing."""
        return [each for each in value if each] if isinstance(value, list) else value

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences, none, one or many, as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def token_bound(self) -> int | None:
        """The caller's bound on generated tokens."""
        return self.max_tokens

    @property
    def bound_name(self) -> str:
        """The name by which the caller gave that bound."""
        return "max_tokens"

    @property
    def told(self) -> int:
        """How many answers to each prompt the caller gets."""
        return self.n or 1

    @property
    def tried(self) -> int:
        """How many answers to each prompt are made; the caller gets the likeliest."""
        return self.told

    @property
    def echoed(self) -> bool:
        """Whether an answer begins with its prompt."""
        return False

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives per token the caller wants; None: no log probabilities."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage event."""
        return self.stream and self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous(self) -> bool:
        """Whether each event of a stream is to have the counts so far."""
        return self.stream and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @model_validator(mode="after")
    def _one_structure(self) -> SamplingRequest:
        structure_of(self)
        return self

    @property
    def structure(self) -> Structure | None:
        """The structure that the answer must have."""
        return structure_of(self)

    @property
    def free(self) -> bool:
        """Whether the answer goes on with a text, and is bound to no structure."""
        return self.endpoint == "completions" and self.structure is None


class ChatRequest(SamplingRequest):
    """`POST /v1/chat/completions`."""

    endpoint: ClassVar[Endpoint] = "chat"

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=20)] | None = None
    negative_prompt: str | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None
    reasoning_effort: Effort | None = None
    thinking_token_budget: Budget | None = None  # vLLM's name
    reasoning_budget: Budget | None = None  # llama.cpp's
    reasoning_format: Literal["auto", "deepseek", "none"] | None = None
    tools: Annotated[list[offers.ChatTool], Field(max_length=offers.MOST, fail_fast=True)] | None = None
    tool_choice: offers.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[offers.FunctionDefinition], Field(max_length=offers.MOST, fail_fast=True)] | None = None
    function_call: offers.FunctionCallChoice | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False

    @field_validator("chat_template_kwargs")
    @classmethod
    def _scalars_by_name(cls, value: dict[str, Any] | None) -> dict[str, Any] | None:
        for name, item in (value or {}).items():
            if _VARIABLE.fullmatch(name) is None:
                raise ValueError("keys are names of variables")
            if not (item is None or (isinstance(item, str) and len(item) <= VARIABLE_CHARACTERS)
                    or (isinstance(item, int | float) and -(1 << 63) <= item < 1 << 63)):
                raise ValueError(f"values are booleans, numbers of 64 bits, null, or texts of at most "
                                 f"{VARIABLE_CHARACTERS} characters")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> ChatRequest:
        if self.top_logprobs and not self.logprobs:
            raise RequestError("invalid_value", "top_logprobs needs logprobs = true", param="top_logprobs")
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise RequestError("invalid_value", "max_tokens and max_completion_tokens differ", param="max_tokens")
        if None not in (self.thinking_token_budget, self.reasoning_budget):
            raise invalid("reasoning_budget", "thinking_token_budget says the same")
        if self.continue_final_message:
            self._can_go_on()
        findings.require_together(features_of(self))
        return self

    def _can_go_on(self) -> None:
        last = self.messages[-1]
        if last.role != "assistant" or last.calls != "[]":
            raise invalid("continue_final_message",
                          "the last message is an assistant's, without calls, where it is to go on")

    @property
    def begins(self) -> bool:
        """Whether the answer is a message of its own, which its prompt begins."""
        return not self.continue_final_message and self.add_generation_prompt is not False

    @property
    def offer(self) -> offers.Offer:
        """The functions that the answer may call."""
        return offers.offer(self.tools, self.tool_choice, self.parallel_tool_calls, self.functions, self.function_call)

    @property
    def token_bound(self) -> int | None:
        """The caller's bound on generated tokens, by its new or its old name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def bound_name(self) -> str:
        """The name of that bound in the request."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives per token; 0: the chosen token's own log probability only."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def budget(self) -> tuple[str, int] | None:
        """The tokens that a thought may have, after the name by which the caller gave them."""
        for name in ("thinking_token_budget", "reasoning_budget"):
            if getattr(self, name) is not None:
                return name, getattr(self, name)
        return None

    @property
    def variables(self) -> dict[str, Any]:
        """The values that the chat template gets by name."""
        return self.chat_template_kwargs or {}


class CompletionRequest(SamplingRequest):
    """`POST /v1/completions`. `prompt` is text or token ids, or a list of texts or of lists of ids.
    """

    prompt: str | Annotated[list[str], Some] | Tokens | Annotated[list[Tokens], Some]
    max_tokens: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=1 << 31)] | None = None
    best_of: Choices | None = None
    echo: bool = False
    suffix: str | None = None
    logprobs: Annotated[int, BeforeValidator(_whole), Field(ge=0, le=5)] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> CompletionRequest:
        if self.tried < self.told:
            raise invalid("best_of", f"no fewer than n, which is {self.told}")
        if self.max_tokens == 0 and not self.echo:
            raise invalid("max_tokens", "0 is allowed with echo = true")
        findings.require_together(features_of(self))
        return self

    @property
    def tried(self) -> int:
        """How many answers to each prompt are made."""
        return self.best_of or self.told

    @property
    def echoed(self) -> bool:
        """Whether an answer begins with its prompt."""
        return self.echo

    @property
    def logprob_count(self) -> int | None:
        """How many alternatives per token."""
        return self.logprobs

    @property
    def prompts(self) -> Sequence[str | Sequence[int]]:
        """Each prompt: a text, or token ids."""
        match self.prompt:
            case str() as text:
                return [text]
            case [int(), *_] as ids:
                return [[token for token in ids if isinstance(token, int)]]
            case several:
                return [each for each in several if not isinstance(each, int)]


R = TypeVar("R", bound=SamplingRequest)


def parse(body: bytes, kind: type[R], *, drop: Sequence[str] = (), ignored: Ignored | None = None) -> R:
    """Read a request body strictly; raises RequestError with the path of the first parameter at
    fault.

    `drop` names fields (`metadata.user_id`; a list on the way stands for each of its items) that
    the policy removes before anything else looks at them, by whichever name they come. `ignored`
    takes note of what has no effect; without it that is refused.
    """
    return request_of(document.read(body), kind, drop=drop, ignored=ignored)


def request_of(fields: dict[str, Any], kind: type[R], *, drop: Sequence[str] = (), ignored: Ignored | None = None) -> R:
    """Return a body's object as a request, as `parse` does. The object is altered."""
    ignored = Ignored(strict=True) if ignored is None else ignored
    remove(fields, dialects.spellings(drop))
    if kind.endpoint == "chat":
        offers.without_hosted(fields, ("function",), ignored)
        offers.settle(fields)
        messages.settle(fields)
    if not fields.get("stream") and isinstance(fields.get("stream_options"), dict):
        _without_stream(fields, ignored)
    refused = dialects.settle(fields, kind.endpoint, ignored)
    return findings.check(fields, kind, ROWS, ignored, refused)


def _without_stream(fields: dict[str, Any], ignored: Ignored) -> None:
    """Take out the options of a stream where there is none."""
    if any(value not in (None, False) for value in fields.pop("stream_options").values()):
        ignored.note(("stream_options",), "it needs stream = true")


def remove(fields: dict[str, Any], paths: Iterable[str]) -> None:
    """Take fields out of a body's object, by their paths."""
    for path in paths:
        _remove(fields, path.split("."))


def _remove(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _remove(item, path)
    elif isinstance(value, dict) and len(path) == 1:
        value.pop(path[0], None)
    elif isinstance(value, dict):
        _remove(value.get(path[0]), path[1:])
