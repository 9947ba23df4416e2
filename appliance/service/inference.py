"""From a request that was read to a generation that runs: what the policy lets through, in order.

    model       the caller may ask it
    rates       requests of this key, requests in progress
    prompt      redacted, put into the template, turned into tokens
    lengths     prompt and answer within the policy's limits and the context
    sampling    within the policy's bounds; a value outside is refused, not clamped
    tokens      charged to the key ahead
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

from appliance.engine.generation import GenerationRequest
from appliance.engine.sampler import Sampling
from appliance.engine.stops import MAX_LENGTH
from appliance.service.context import ServedModel, Service
from appliance.service.exchange import Exchange
from appliance.service.limits import Grant
from appliance.service.privacy import round_up
from appliance.service.problems import RequestError
from appliance.service.redaction import Rule, redact
from appliance.service.wire import ChatRequest, CompletionRequest, Message, SamplingRequest

BOUNDED = ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "frequency_penalty", "presence_penalty")


@dataclass
class Job:
    """A request that may run."""

    model: ServedModel
    generation: GenerationRequest
    grant: Grant
    prompt_tokens: int


async def admit(service: Service, exchange: Exchange, request: ChatRequest | CompletionRequest) -> Job:
    """Take a request through all steps; RequestError names the first that it does not pass."""
    caller = exchange.caller
    if caller is None:
        raise RequestError("invalid_api_key")
    model = service.model_for(caller, request.model)
    exchange.model = model.name
    account = service.accounts.of(caller.key_digest)
    try:
        account.admit_request()
        service.enter(exchange)
        if request.wanted_logprobs is not None and service.rules_for("answer"):
            raise RequestError("unsupported_parameter", "logprobs: tokens would show what is redacted from the answer",
                               param="logprobs")
        sampling = choose_sampling(model, request)
        prompt = await asyncio.to_thread(_encode, service, model, request)
        bound = _answer_tokens(service, model, len(prompt), request.wanted_tokens)
        grant = account.admit_tokens(round_up(len(prompt), service.rounding) + round_up(bound, service.rounding))
    finally:
        exchange.headers.update(account.headers())
    exchange.closing.append(lambda: grant.settle((exchange.prompt_tokens or 0) + (exchange.completion_tokens or 0)))
    exchange.prompt_tokens = round_up(len(prompt), service.rounding)
    generation = GenerationRequest(tuple(prompt), bound, sampling, request.stops)
    return Job(model, generation, grant, len(prompt))


def _encode(service: Service, model: ServedModel, request: ChatRequest | CompletionRequest) -> list[int]:
    """The prompt's tokens. Runs in a thread: long prompts take milliseconds."""
    rules = service.rules_for("prompt")
    if isinstance(request, ChatRequest):
        messages = [_message(rules, turn) for turn in request.messages]
        return list(model.running.template.encode(messages, model.tokenizer))
    text = request.text
    if text is not None:
        return list(model.tokenizer.encode(redact(rules, text), add_special=True))
    if rules:
        raise RequestError("unsupported_parameter", "prompt: token ids are not accepted where prompts are redacted",
                           param="prompt")
    ids = [token for token in request.prompt if isinstance(token, int)]
    if any(token >= model.tokenizer.vocab_size for token in ids):
        raise RequestError("invalid_value", f"prompt: token ids lie below {model.tokenizer.vocab_size}", param="prompt")
    return ids


def _message(rules: Sequence[Rule], turn: Message) -> dict[str, str]:
    """A turn as templates take it, redacted."""
    message = {"role": "system" if turn.role == "developer" else turn.role, "content": redact(rules, turn.text)}
    return message if turn.name is None else {**message, "name": redact(rules, turn.name)}


def _answer_tokens(service: Service, model: ServedModel, prompt: int, wanted: int | None) -> int:
    """How many tokens the answer may have. Counts in refusals are the policy's, not the request's."""
    limits = service.policy.limits
    most = min(limits.prompt_tokens, model.running.context_length - 1)
    if prompt > most:
        raise RequestError("context_length_exceeded", f"the prompt is longer than {most} tokens")
    if prompt == 0:
        raise RequestError("invalid_value", "the prompt is empty")
    if wanted is not None and wanted > limits.generation_tokens:
        raise RequestError("generation_length_exceeded", f"max_tokens: at most {limits.generation_tokens} are allowed",
                           param="max_tokens")
    return min(wanted or limits.generation_tokens, model.running.context_length - prompt)


def choose_sampling(model: ServedModel, request: SamplingRequest) -> Sampling:
    """The request's sampling within the policy's bounds, the policy's defaults where it says nothing."""
    values: dict[str, float] = {}
    for name in BOUNDED:
        rule, asked = getattr(model.policy.sampling, name), getattr(request, name)
        if asked is not None and not rule.min <= asked <= rule.max:
            raise RequestError("invalid_value", f"{name}: allowed are {rule.min:g} to {rule.max:g}", param=name)
        values[name] = rule.default if asked is None else asked
    if any(len(stop) > MAX_LENGTH for stop in request.stops):
        raise RequestError("invalid_value", f"stop: at most {MAX_LENGTH} characters", param="stop")
    seed = secrets.randbits(64) if request.seed is None else request.seed % (1 << 64)
    return Sampling(
        temperature=values["temperature"], top_p=values["top_p"], top_k=int(values["top_k"]), min_p=values["min_p"],
        repeat_penalty=values["repeat_penalty"], frequency_penalty=values["frequency_penalty"],
        presence_penalty=values["presence_penalty"], seed=seed, logit_bias=_bias(model, request),
        top_logprobs=_logprobs(model, request))


def _bias(model: ServedModel, request: SamplingRequest) -> dict[int, float]:
    bias = {int(token): value for token, value in (request.logit_bias or {}).items()}
    if any(token >= model.tokenizer.vocab_size for token in bias):
        raise RequestError("invalid_value", f"logit_bias: token ids lie below {model.tokenizer.vocab_size}",
                           param="logit_bias")
    return bias


def _logprobs(model: ServedModel, request: SamplingRequest) -> int | None:
    wanted, allowed = request.wanted_logprobs, model.policy.sampling.max_logprobs
    if wanted is not None and (allowed == 0 or wanted > allowed):
        raise RequestError("unsupported_parameter", f"logprobs: the policy allows {allowed or 'none'}",
                           param="logprobs")
    return wanted


