"""A request's sampling: within the policy's bounds, the policy's defaults where it says nothing."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence

from appliance.api import findings
from appliance.api.problems import RequestError
from appliance.api.wire import SamplingRequest
from appliance.api.wishes import features
from appliance.engine.decode.chain.ending import Ending
from appliance.engine.decode.sampler import Sampling
from appliance.errors import CapacityError
from appliance.policy import bounds
from appliance.policy.schema import SamplingBounds
from appliance.policy.schema.sampling import BREAKERS, PARAMETERS
from appliance.text.breakers import sequences
from appliance.text.pieces import words
from appliance.text.stops import MAX_LENGTH
from appliance.text.tokenizer import Tokenizer


async def chosen(rules: SamplingBounds, tokenizer: Tokenizer, request: SamplingRequest) -> Sampling:
    """How to choose the tokens of an answer. RequestError names the first parameter that the policy
    does not allow."""
    asked = {row.name: getattr(request, row.name) for row in PARAMETERS}
    try:
        values = bounds.numbers(rules, asked, request.samplers, free=request.free)
    except bounds.OutsideError as error:
        raise RequestError("unsupported_parameter" if error.fixed else "invalid_value", str(error),
                           param=error.name) from None
    if any(len(stop) > MAX_LENGTH for stop in request.stops):
        raise RequestError("invalid_value", f"stop: at most {MAX_LENGTH} characters", param="stop")
    if any(values[row.name] != row.off for row in PARAMETERS if row.spells):
        await asyncio.to_thread(words, tokenizer)
    if values["dry_multiplier"] and "dry" in values["samplers"]:
        texts = BREAKERS if request.dry_sequence_breakers is None else request.dry_sequence_breakers
        values["dry_breakers"] = await _breakers(tokenizer, texts)
    seed = secrets.randbits(64) if request.seed is None else request.seed % (1 << 64)
    return Sampling(**values, seed=seed, logit_bias=_bias(tokenizer, request), top_logprobs=_logprobs(rules, request))


def ending(tokenizer: Tokenizer, request: SamplingRequest, *, bound: bool) -> Ending:
    """When a token may end an answer. `bound`: by a structure or a call, which say it themselves.
    RequestError."""
    also = frozenset(request.stop_token_ids or ())
    if any(token >= tokenizer.vocab_size for token in also):
        raise RequestError("invalid_value", f"stop_token_ids: token ids lie below {tokenizer.vocab_size}",
                           param="stop_token_ids")
    also = also if request.ignore_eos else also - frozenset(tokenizer.eot_ids)
    found = Ending(request.ignore_eos, request.min_tokens or 0, also)
    if request.token_bound is not None and found.least > request.token_bound:
        raise RequestError("invalid_value", f"min_tokens: at most {request.bound_name}, which is "
                           f"{request.token_bound}; found: {found.least}", param="min_tokens")
    if bound and found != Ending():
        name = "ignore_eos" if found.never else "min_tokens" if found.least else "stop_token_ids"
        raise findings.refusal_of(features.exclusion(name, features.BOUND))
    return found


async def _breakers(tokenizer: Tokenizer, texts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The breakers as tokens, by a thread: a vocabulary is searched."""
    try:
        return await asyncio.to_thread(sequences, tokenizer, texts)
    except CapacityError as error:
        raise RequestError("invalid_value", f"dry_sequence_breakers: {error.summary}",
                           param="dry_sequence_breakers") from None


def _bias(tokenizer: Tokenizer, request: SamplingRequest) -> dict[int, float]:
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    if any(token >= tokenizer.vocab_size for token in bias):
        raise RequestError("invalid_value", f"logit_bias: token ids lie below {tokenizer.vocab_size}",
                           param="logit_bias")
    return bias


def _logprobs(rules: SamplingBounds, request: SamplingRequest) -> int | None:
    count, allowed = request.logprob_count, rules.max_logprobs
    if count is not None and (allowed == 0 or count > allowed):
        raise RequestError("unsupported_parameter", f"logprobs: the policy allows {allowed or 'none'}",
                           param="logprobs")
    return count
