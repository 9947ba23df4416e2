"""Which features of requests go together: one table, from which the refusals are made and the page
`docs/reference/features.md`; a test tries every pair.

A feature has the name of its parameter, or stands in words: then it is the policy's, or follows
from several parameters. All features go together but those that the table excludes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal

from appliance.policy.schema.sampling import PARAMETERS

Code = Literal["invalid_value", "unsupported_parameter"]

# Features in words
PROMPT_LOGPROBS = "echo with logprobs"
TOKEN_IDS = "a prompt of token ids"  # noqa: S105 - a name of a feature
SEVERAL = "several answers"
GRAMMAR = "a grammar"
THINKING = "a model that thinks first"
NEWER_FORM = "tools, tool_choice or parallel_tool_calls"
OPTIONAL_CALLS = "tools of which none must be called"
BOUND = "a structure, or calls that must come, come one at most, or are strict"
CHAT = "a chat"
RECEIPT = "a receipt"
REDACTED_PROMPTS, REDACTED_ANSWERS = "redacted prompts", "redacted answers"

_SAMPLING = tuple(row for row in PARAMETERS if row.name != "temperature")  # that has no effect on a beam search
_SEARCH = "a beam search looks at the model's own distribution, and tells whole texts at its end: leave it out"


@dataclass(frozen=True)
class Exclusion:
    """A feature that does not go together with others. `why` is what the refusal says of it."""

    feature: str
    others: tuple[str, ...]
    why: str
    code: Code = "invalid_value"


EXCLUSIONS = (
    Exclusion("best_of", ("stream",), "a stream has every answer; allowed: as many as n"),
    Exclusion("echo", ("suffix",), "it does not go together with suffix"),
    Exclusion("token_healing", (PROMPT_LOGPROBS,), "it does not go together with echo and logprobs"),
    Exclusion("reasoning_format", ("tools",), "with tools, a model's thoughts come apart; allowed: auto or deepseek"),
    *(Exclusion(NEWER_FORM, (older,), f"it does not go together with {older}, its older form")
      for older in ("functions", "function_call")),
    Exclusion("continue_final_message", ("add_generation_prompt",), "add_generation_prompt begins another message"),
    Exclusion("logprobs", (REDACTED_ANSWERS,), "tokens would show what is redacted from the answer",
              "unsupported_parameter"),
    *(Exclusion(each, ("use_beam_search",), _SEARCH, "unsupported_parameter") for each in (
        "stream", "stop", "logit_bias", "samplers", "negative_prompt", "logprobs", "ignore_eos", "min_tokens",
        "stop_token_ids", "echo", "best_of", "response_format", "tools", *(row.name for row in _SAMPLING))),
    Exclusion(TOKEN_IDS, (REDACTED_PROMPTS,), "token ids are not accepted where prompts are redacted",
              "unsupported_parameter"),
    Exclusion(GRAMMAR, (OPTIONAL_CALLS, THINKING), "a grammar does not go together with tools, nor with a model that "
              "thinks first", "unsupported_parameter"),
    *(Exclusion(each, (BOUND,), "a structure, or a call that must come, says itself where an answer ends")
      for each in ("ignore_eos", "min_tokens", "stop_token_ids")),
    *(Exclusion(row.name, (CHAT, "response_format"), row.why_free, "unsupported_parameter")
      for row in PARAMETERS if row.free),  # `policy/bounds` refuses these, too, and knows the template
    Exclusion(RECEIPT, (SEVERAL,), "a receipt is of one answer", "unsupported_parameter"),
    Exclusion("guidance_scale", (RECEIPT,), "no answer with appliance-receipt has a negative prompt",
              "unsupported_parameter"),
    Exclusion("use_beam_search", (RECEIPT,), "no answer with appliance-receipt comes of one", "unsupported_parameter"),
)

_ASKED: dict[str, Callable[[Any], object]] = {
    "stream": lambda request: request.stream,
    "best_of": lambda request: request.tried != request.told,
    "echo": lambda request: request.echoed,
    "suffix": lambda request: getattr(request, "suffix", None) is not None,
    "logprobs": lambda request: request.logprob_count is not None,
    PROMPT_LOGPROBS: lambda request: request.echoed and request.logprob_count is not None,
    "stop": lambda request: request.stops,
    "response_format": lambda request: request.structure_names,
    "tools": lambda request: request.endpoint == "chat" and request.offer.functions,
    "reasoning_format": lambda request: getattr(request, "reasoning_format", None) == "none",
}
_SAME_NAME = ("logit_bias", "samplers", "negative_prompt", "ignore_eos", "min_tokens", "stop_token_ids",
              "continue_final_message", "add_generation_prompt")


def features_of(request: Any) -> frozenset[str]:
    """Return the features that a request for text asks for by its own parameters, but for beam
    search, which a policy may not have."""
    return frozenset([*(name for name, asks in _ASKED.items() if asks(request)),
                      *(name for name in _SAME_NAME if getattr(request, name, None)),
                      *(row.name for row in _SAMPLING if getattr(request, row.name) not in (None, row.off))])


def conflict(features: Collection[str]) -> Exclusion | None:
    """Return the first exclusion that holds for features of one request."""
    return next((row for row in EXCLUSIONS if row.feature in features
                 and any(other in features for other in row.others)), None)


def exclusion(feature: str, other: str) -> Exclusion:
    """Return the exclusion of two features. Raises LookupError where there is none."""
    return next(row for row in EXCLUSIONS if row.feature == feature and other in row.others)
