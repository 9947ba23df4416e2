"""Requests as they arrive: JSON text in, one frozen request type out, or a refusal that names the parameter.

This module knows the OpenAI wire format and nothing of tenants, engines or policies. Three tables decide what
happens to a parameter that OpenAI defines and this service does not act on:

* `NEUTRAL`: refused by name, unless it is null or says what would happen anyway (`n = 1`, `tools = []`);
* `DROPPED`: accepted so that existing clients work, and discarded before anything reads it;
* everything else that no request type declares is refused: a parameter is never silently without effect, unless
  the policy's redaction says that its field is dropped.

Source of the format: the OpenAI API reference, "Chat" and "Completions", as of 2026-11. Extensions, with the
names that llama.cpp and vLLM use: `top_k`, `min_p`, `repeat_penalty`, `chat_template_kwargs`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from appliance.engine.stops import MAX_STOPS
from appliance.service.problems import RequestError

MAX_BIASED_TOKENS = 1024
MAX_KEYS = 4096  # of one object
MAX_VARIABLES, VARIABLE_CHARACTERS = 16, 1024  # of a chat template, and of the text of one
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}")

# parameter -> values (besides null) that change nothing; of several that are refused the first is named
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "functions": ([],),
    "audio": (),
    "best_of": (1,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "moderation": (),
    "n": (1,),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "prompt_cache_retention": (),
    "reasoning_effort": ("none",),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "verbosity": (),
    "web_search_options": (),
}

DROPPED = frozenset({"user", "metadata", "safety_identifier", "prompt_cache_key"})

EMPTY = frozenset({"annotations", "tool_calls"})  # of an earlier answer, which may list none

# Bounds on sampling are the policy's; here a number is only a number.
Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=1 << 31)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, hide_input_in_errors=True)

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, value: Any) -> Any:
        """Also inside: a client that sends an answer's message back says `"refusal": null` in it."""
        return {name: item for name, item in value.items() if item is not None} if isinstance(value, dict) else value


class TextPart(_Wire):
    """One part of a message's content; only text is served."""

    type: Literal["text"]
    text: str


class Message(_Wire):
    """One turn of a conversation. `developer` is OpenAI's newer name of `system`."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | Annotated[list[TextPart], Field(fail_fast=True)]
    name: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _empty_is_absent(cls, value: Any) -> Any:
        """Of an answer that comes back: other services write `"annotations": []` into theirs."""
        if not isinstance(value, dict) or value.get("role") != "assistant":
            return value
        return {name: item for name, item in value.items() if not (item == [] and name in EMPTY)}

    @field_validator("content")
    @classmethod
    def _joined(cls, value: str | list[TextPart]) -> str:
        """Parts are many times their text, and a request is kept until its answer has ended."""
        return value if isinstance(value, str) else "\n".join(part.text for part in value)

    @property
    def text(self) -> str:
        """The content, its parts on lines of their own."""
        return str(self.content)


class StreamOptions(_Wire):
    """What a stream carries besides text."""

    include_usage: bool = False
    include_obfuscation: bool = False

    @field_validator("include_obfuscation")
    @classmethod
    def _none_is_added(cls, value: bool) -> bool:
        if value:  # the policy's size_padding decides about sizes
            raise PydanticCustomError("unsupported_parameter", "this service does not support true")
        return value


class SamplingRequest(_Wire):
    """The parameters that chat and text completions share; None means that the policy's default applies."""

    model: Annotated[str, Field(min_length=1, max_length=256)]
    temperature: Finite | None = None
    top_p: Finite | None = None
    top_k: Annotated[int, Field(ge=0, le=1 << 31)] | None = None
    min_p: Finite | None = None
    presence_penalty: Finite | None = None
    frequency_penalty: Finite | None = None
    repeat_penalty: Finite | None = None
    logit_bias: Annotated[dict[str, Finite], Field(max_length=MAX_BIASED_TOKENS)] | None = None
    seed: Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)] | None = None
    stop: str | Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None = None
    max_tokens: Count | None = None
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
        if "" in ([value] if isinstance(value, str) else value or []):
            raise ValueError("a stop sequence is not empty")
        return value

    @model_validator(mode="after")
    def _options_need_stream(self) -> SamplingRequest:
        if self.stream_options is not None and not self.stream:
            raise RequestError("invalid_value", "stream_options needs stream = true", param="stream_options")
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop sequences, none, one or many, as a tuple."""
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def wanted_tokens(self) -> int | None:
        """The caller's bound on generated tokens."""
        return self.max_tokens

    @property
    def bound_name(self) -> str:
        """The name by which the caller gave that bound."""
        return "max_tokens"

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token the caller wants; None: no log probabilities at all."""
        return None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage event."""
        return self.stream_options is not None and self.stream_options.include_usage


class ChatRequest(SamplingRequest):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=4096, fail_fast=True)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Field(max_length=MAX_VARIABLES)] | None = None

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
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("invalid_value", "top_logprobs needs logprobs = true", param="top_logprobs")
        if self.max_tokens and self.max_completion_tokens and self.max_tokens != self.max_completion_tokens:
            raise RequestError("invalid_value", "max_tokens and max_completion_tokens differ", param="max_tokens")
        return self

    @property
    def wanted_tokens(self) -> int | None:
        """The caller's bound on generated tokens, by its new or its old name."""
        return self.max_completion_tokens or self.max_tokens

    @property
    def bound_name(self) -> str:
        """See `SamplingRequest`."""
        return "max_completion_tokens" if self.max_completion_tokens else "max_tokens"

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token; 0: the chosen token's own log probability only."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def variables(self) -> dict[str, Any]:
        """What the chat template gets by name."""
        return self.chat_template_kwargs or {}


class CompletionRequest(SamplingRequest):
    """`POST /v1/completions`. `prompt` is text or token ids, or a list of one of these."""

    prompt: str | Annotated[list[str], Field(min_length=1, fail_fast=True)] | Annotated[
        list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(min_length=1, fail_fast=True)]
    logprobs: Annotated[int, Field(ge=0, le=5)] | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _only_one(cls, value: Any) -> Any:
        match value:
            case [[int(), *_] as ids]:
                return ids
            case [list() | str(), _, *_]:
                raise ValueError(f"allowed: one prompt; found: {len(value)}")
        return value

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives per token."""
        return self.logprobs

    @property
    def text(self) -> str | None:
        """The prompt as text, None when it came as token ids."""
        if isinstance(self.prompt, str):
            return self.prompt
        return self.prompt[0] if isinstance(self.prompt[0], str) else None


R = TypeVar("R", bound=SamplingRequest)


def parse(body: bytes, kind: type[R], *, drop: Sequence[str] = ()) -> R:
    """Read a request body strictly; raises RequestError with the path of the first parameter at fault.

    `drop` names fields (`metadata.user_id`; a list on the way stands for each of its items) that the policy
    removes before anything else looks at them. Duplicate keys, NaN and infinities are refused: two readers of one
    body must not disagree about it.
    """
    document = _document(body)
    for path in drop:
        _remove(document, path.split("."))
    for name in [name for name in NEUTRAL if name in document]:
        value = document.pop(name)
        neutral = value is None or any(type(value) is type(same) and value == same for same in NEUTRAL[name])
        if not neutral:
            allowed = " or ".join([*map(json.dumps, NEUTRAL[name]), "null"])
            raise RequestError("unsupported_parameter", f"{name}: this service supports no value but {allowed}",
                               param=name)
    fields = {name: value for name, value in document.items() if name not in DROPPED}
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        raise _refusal(error) from None


def _document(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
        if b"\\ud" in body.lower():  # halves of characters, which may not come in pairs
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except RequestError:
        raise
    except (ValueError, RecursionError) as error:
        problem = "a number in the body has too many digits"  # the only other ValueError
        if isinstance(error, RecursionError):
            problem = "the body is nested too deeply"
        elif isinstance(error, json.JSONDecodeError | UnicodeError):
            problem = "the body is not valid JSON in UTF-8"
        raise RequestError("malformed_json", problem) from None
    if not isinstance(document, dict):
        raise RequestError("malformed_json", "the body is not a JSON object")
    return document


def _remove(value: Any, path: list[str]) -> None:
    if isinstance(value, list):
        for item in value:
            _remove(item, path)
    elif isinstance(value, dict) and len(path) == 1:
        value.pop(path[0], None)
    elif isinstance(value, dict):
        _remove(value.get(path[0]), path[1:])


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MAX_KEYS:
        raise RequestError("invalid_value", f"an object in the body has more than {MAX_KEYS} keys")
    result = dict(pairs)
    if len(result) != len(pairs):
        raise RequestError("malformed_json", "an object in the body has a key twice")
    return result


def _no_constant(_name: str) -> float:
    raise RequestError("malformed_json", "NaN and infinities are not JSON")


# What pydantic found -> what is allowed there, with the bounds of its context
_ALLOWED = {
    "string_type": "a text", "int_type": "an integer", "int_from_float": "an integer", "float_type": "a number",
    "bool_type": "true or false", "list_type": "a list", "dict_type": "an object", "model_type": "an object",
    "literal_error": "{expected}", "finite_number": "a number within 1.8e308 of 0",
    "greater_than_equal": "{ge} or more", "less_than_equal": "{le} or less", "less_than": "less than {lt}",
    **dict.fromkeys(("string_too_short", "too_short"), "a length of {min_length} or more"),
    **dict.fromkeys(("string_too_long", "too_long"), "a length of {max_length} or less"),
}
_KINDS = {str: "a text", int: "an integer", float: "a number", bool: "a boolean", list: "a list", dict: "an object"}


def _refusal(error: ValidationError) -> RequestError:
    """A finding of pydantic as a refusal to the caller, in words of ours: which parameter, what is allowed, what was
    found. Paths, bounds, sizes and kinds of values, never a value."""
    found = error.errors(include_url=False)
    for finding in found:  # an integer that is no float is one that is too large for it
        if finding["type"] == "float_type" and type(finding["input"]) is int:
            finding["type"] = "finite_number"
    # What is there before what is absent: `"content": null` goes with tool calls, which are the reason. Of a union's
    # branches the one that got furthest: whose type fits, then whose path is the longest, or leads to a later item.
    first = max(found, key=lambda finding: (
        not finding["type"].endswith("_type"), finding["type"] != "missing", len(finding["loc"]),
        [step for step in finding["loc"] if isinstance(step, int)]))
    path = _path(first)
    code = {"extra_forbidden": "unknown_parameter", "missing": "missing_required_parameter",
            "unsupported_parameter": "unsupported_parameter"}.get(first["type"], "invalid_value")
    if code == "unknown_parameter":
        message = "this service does not know this parameter"
    elif code == "missing_required_parameter":
        message = "this parameter is required"
    elif first["type"] in _ALLOWED:
        kinds = [first] if not first["type"].endswith("_type") else [
            finding for finding in found if _path(finding) == path and finding["type"].endswith("_type")]
        allowed = dict.fromkeys(_ALLOWED[finding["type"]].format_map(finding.get("ctx", {})) for finding in kinds)
        message = f"allowed: {' or '.join(allowed)}; found: {_found(first)}"
    else:
        message = first["msg"].removeprefix("Value error, ")  # of our own validators
    return RequestError(code, message if path is None else f"{path}: {message}", param=path)


def _path(finding: ErrorDetails) -> str | None:
    *path, last = finding["loc"] or ("",)
    kept = [step for place, step in enumerate(path) if place == 0 or not _is_branch(step)]
    if not (kept and _is_branch(last)) or finding["type"] == "extra_forbidden":  # then it is what somebody sent
        kept.append(last)
    return ".".join(map(str, kept))[:200] or None


def _found(finding: ErrorDetails) -> str:
    kind, value = finding["type"], finding["input"]
    if kind.endswith(("too_short", "too_long")):
        return str(len(value))
    if kind in ("greater_than_equal", "less_than_equal", "less_than"):
        return "less" if kind == "greater_than_equal" else "more"
    if kind == "finite_number":
        return "more" if value > 0 else "less"
    return "another text" if kind == "literal_error" and isinstance(value, str) else _KINDS.get(type(value), "null")


def _is_branch(step: int | str) -> bool:
    """Whether a step of pydantic's path names a branch of a union (`list[...]`, `str`) and not a parameter."""
    return isinstance(step, str) and (step in {"str", "float"} or "[" in step or "(" in step)
