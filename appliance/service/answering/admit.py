"""From a request that was read to a generation that runs: what the policy lets through, in order.

    model       the caller may ask it
    rates       requests of this key, requests in progress
    prompt      redacted, put into the template, turned into tokens
    lengths     prompt and answer within the policy's limits and the context
    sampling    within the policy's bounds; a value outside is refused, not clamped
    tokens      charged to the key ahead
"""

from __future__ import annotations

from dataclasses import dataclass

from appliance.engine.decode.generation import GenerationRequest
from appliance.errors import CapacityError
from appliance.service.admission import prompts, sampling
from appliance.service.admission.limits import Grant
from appliance.service.admission.privacy import round_up
from appliance.service.answering.context import ServedModel, Service
from appliance.service.answering.exchange import Exchange
from appliance.service.api.problems import RequestError
from appliance.service.api.wire import ChatRequest, CompletionRequest, SamplingRequest


@dataclass
class Job:
    """A request that may run."""

    model: ServedModel
    generation: GenerationRequest
    grant: Grant
    prompt_tokens: int


async def admit(service: Service, exchange: Exchange, request: ChatRequest | CompletionRequest) -> Job:
    """Take a request through all steps; RequestError names the first that it does not pass."""
    caller = exchange.known
    model = service.model_for(caller, request.model)
    exchange.model = model.name
    account = service.accounts.of(caller.key_digest)
    try:
        account.admit_request()
        service.enter(exchange, caller)
        if request.logprob_count is not None and service.rules_for("answer"):
            raise RequestError("unsupported_parameter", "logprobs: tokens would show what is redacted from the answer",
                               param="logprobs")
        choosing = await sampling.chosen(model.policy.sampling, model.tokenizer, request)
        if isinstance(request, ChatRequest):
            _check_template(model, request)
        prompt = await _encoded(service, model, request)
        prompts.drop_text(request)
        exchange.forget_text()
        bound = _answer_tokens(service, model, len(prompt), request)
        grant = account.admit_tokens(round_up(len(prompt), service.rounding) + round_up(bound, service.rounding))
    finally:
        exchange.headers.update(account.headers())
    exchange.closing.append(lambda: grant.settle((exchange.prompt_tokens or 0) + (exchange.completion_tokens or 0)))
    exchange.prompt_tokens = round_up(len(prompt), service.rounding)
    generation = GenerationRequest(tuple(prompt), bound, choosing, request.stops)
    return Job(model, generation, grant, len(prompt))


async def _encoded(service: Service, model: ServedModel, request: ChatRequest | CompletionRequest) -> list[int]:
    most, rules = _most_tokens(service, model), service.rules_for("prompt")
    if not rules and prompts.at_least(request, model.tokenizer) > most:  # what waits for its turn takes memory
        raise _too_long(most)
    length, turns, leaving = prompts.length(request), prompts.take_turns(request), prompts.Leaving()
    try:
        return await service.prompts.ready(length, lambda: prompts.encode(
            request, turns, model.running.template, model.tokenizer, rules, most, leaving))
    except CapacityError:
        raise _too_long(most) from None
    finally:
        leaving.leave()


def _check_template(model: ServedModel, request: ChatRequest) -> None:
    """Refuse a chat with a model that has no template, and variables that the template does not
    read."""
    template = model.running.template
    if template is None:
        raise RequestError("no_chat_template", f"model {model.name} has no chat template, so it takes no chats; it "
                           "continues prompts at /v1/completions", param="model")
    for name in request.variables:
        if not template.takes(name):
            param = f"chat_template_kwargs.{name}"
            raise RequestError("unknown_parameter", f"{param}: the model's chat template takes no such variable",
                               param=param)


def _most_tokens(service: Service, model: ServedModel) -> int:
    return min(service.policy.limits.prompt_tokens, model.running.context_length - 1)


def _too_long(most: int) -> RequestError:
    return RequestError("context_length_exceeded", f"the prompt is too long: at most {most} tokens are allowed")


def _answer_tokens(service: Service, model: ServedModel, prompt: int, request: SamplingRequest) -> int:
    """How many tokens the answer may have. Counts in refusals are the policy's, not the request's.
    """
    limits, most, bound = service.policy.limits, _most_tokens(service, model), request.token_bound
    if prompt > most:
        raise _too_long(most)
    if prompt == 0:
        raise RequestError("invalid_value", "the prompt is empty", param="prompt")
    if bound is not None and bound > limits.generation_tokens:
        raise RequestError("generation_length_exceeded", f"{request.bound_name}: at most {limits.generation_tokens} "
                           "are allowed", param=request.bound_name)
    return min(bound or limits.generation_tokens, model.running.context_length - prompt)
