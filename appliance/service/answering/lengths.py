"""How long prompts and answers of a request may be, and as how many requests it counts.

    one prompt      `prompt_tokens`, also the model's own, and the context with room for one token
    one answer      `generation_tokens`, also the model's own, and the rest of the context; what is more is clamped or
                    refused
    all together    as many requests' worth of either as one tenant may have in progress, and of
                    `ANSWERS`: so the memory that was planned suffices, however many answers a
                    request has, and it leaves the places that are kept for other tenants

Numbers in refusals and headers are the policy's. Those of the request's own tokens are told where
the policy does not round counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from appliance.api.problems import RequestError, too_long
from appliance.api.wire import SamplingRequest
from appliance.policy.schema import Limits
from appliance.policy.schema.model import ModelLimits
from appliance.service.admission.privacy import round_up
from appliance.service.answering.choices import Choices

ANSWERS = 16
"""Answers of a request that counts as one: objects of each take 9 KiB, and a request has 256 KiB."""

CLAMPED = "x-max-tokens-clamped-to"
"""The header that says which bound an answer has in place of the one that was asked for."""


@dataclass(frozen=True)
class Count:
    """The tokens of a prompt, and of the negative prompt beside it, if there is one."""

    prompt: int
    negative: int = 0

    @property
    def longest(self) -> int:
        """Tokens of the longer one."""
        return max(self.prompt, self.negative)

    @property
    def places(self) -> int:
        """Sequences that an answer is."""
        return 2 if self.negative else 1


@dataclass(frozen=True)
class Extent:
    """The positions that a prompt and its answer may take: the model's context, and less where the
    tenant has a bound of its own. `shifts`: a full context drops its older half."""

    context: int
    own: int | None = None
    shifts: bool = False
    bounds: ModelLimits = field(default_factory=ModelLimits)  # of the model's requests

    @property
    def most(self) -> int:
        """Tokens of prompt and answer that are in the context at the same time."""
        return self.context if self.own is None else min(self.context, self.own)

    def after(self, prompt: Count, bound: int) -> int:
        """Tokens of an answer of up to `bound`."""
        most = self.own if self.shifts and not prompt.negative else self.most
        return bound if most is None else min(bound, most - prompt.longest)


@dataclass(frozen=True)
class Lengths:
    """The bounds of a request. `clamped`: the tokens that each answer may have in place of more."""

    bounds: tuple[int, ...]  # tokens of each answer, by its prompt
    weight: int  # requests that it counts as
    clamped: int | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The headers of an answer with these bounds."""
        return {} if self.clamped is None else {CLAMPED: str(self.clamped)}


def most_tokens(limits: Limits, context: int, bounds: ModelLimits | None = None) -> int:
    """Tokens that one prompt may have; `bounds` of its model."""
    own = None if bounds is None else bounds.prompt_tokens
    return min(limits.prompt_tokens, own or limits.prompt_tokens, context - 1)


def most_generated(limits: Limits, bounds: ModelLimits | None = None) -> int:
    """Tokens that one answer may have; `bounds` of its model."""
    own = None if bounds is None else bounds.generation_tokens
    return min(limits.generation_tokens, own or limits.generation_tokens)


def lengths_of(limits: Limits, extent: Extent, prompts: Sequence[Count], request: SamplingRequest, choices: Choices,
               rounding: int = 1, heaviest: int | None = None) -> Lengths:
    """The bounds of a request whose prompts have so many tokens; `rounding` of counts that are
    told; `heaviest`: requests that it may count as, None: `concurrent_requests`. RequestError names
    what is too much."""
    most, heaviest = most_tokens(limits, extent.most, extent.bounds), heaviest or limits.concurrent_requests
    if (longest := max(count.longest for count in prompts)) > most:
        raise too_long(most, longest if rounding == 1 else None)
    if not min(count.prompt for count in prompts):
        raise RequestError("invalid_value", "the prompt is empty", param="prompt")
    own, places = sum(count.prompt for count in prompts), prompts[0].places
    both = own + sum(count.negative for count in prompts)
    if both > limits.prompt_tokens * heaviest:
        raise RequestError("context_length_exceeded", "prompt: all prompts together are too long: at most "
                           f"{limits.prompt_tokens * heaviest} tokens are allowed", param="prompt")
    sequences = places * choices.count
    if sequences > ANSWERS * heaviest:
        raise RequestError("invalid_value", f"n: at most {ANSWERS * heaviest} answers of one request are allowed",
                           param="n")
    repeated = round_up(own, rounding) * choices.tried if request.echoed else 0
    bound, clamped = _bound(limits, extent.bounds, request, sequences, repeated, heaviest)
    weight = max(places, _times(sequences, ANSWERS), _times(both, limits.prompt_tokens),
                 _times(bound * sequences + repeated, limits.generation_tokens))
    return Lengths(tuple(extent.after(count, bound) for count in prompts), weight, bound if clamped else None)


def _bound(limits: Limits, bounds: ModelLimits, request: SamplingRequest, sequences: int, repeated: int,
           heaviest: int) -> tuple[int, bool]:
    """The tokens that each answer may have, and whether more were asked for."""
    most, name, own = limits.generation_tokens, request.bound_name, most_generated(limits, bounds)
    wanted = (bounds.max_tokens_default or own) if request.token_bound is None else request.token_bound
    allowed = min(own, (most * heaviest - repeated) // sequences)
    if allowed < min(wanted, 1):
        name = "echo" if request.echoed else "n"
        raise RequestError("generation_length_exceeded", f"{name}: all answers together have at most "
                           f"{most * heaviest} tokens", param=name)
    if wanted > allowed and limits.oversized_max_tokens == "refuse":
        raise RequestError("generation_length_exceeded", f"{name}: at most {allowed} are allowed; found: {wanted}",
                           param=name)
    return min(wanted, allowed), wanted > allowed


def _times(count: int, most: int) -> int:
    return max(1, -(-count // most))
