"""From a request that was read to a generation that runs: what the policy lets through, in order.

    model       the caller may ask it
    rates       requests of this key, requests in progress
    form        tools and structure, where the policy allows them
    prompt      redacted, put into the template, turned into tokens
    lengths     prompt and answer within the policy's limits and the context
    sampling    within the policy's bounds; a value outside is refused, not clamped
    tokens      charged to the key ahead
    constraint  compiled, where calls or structure ask for one
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from appliance.engine.constraint.walk import Constraint
from appliance.engine.decode.generation import GenerationRequest
from appliance.engine.text.calls import readers
from appliance.engine.text.calls.reading.pieces import Reader
from appliance.engine.text.template import ChatTemplate
from appliance.errors import CapacityError
from appliance.service.admission import constraints, prompts, sampling, thinking
from appliance.service.admission.limits import Grant
from appliance.service.admission.privacy import round_up
from appliance.service.admission.prompts import Prompt
from appliance.service.admission.tenants import Caller
from appliance.service.answering.context import ServedModel, Service
from appliance.service.answering.exchange import Exchange
from appliance.service.api.offers import Offer
from appliance.service.api.problems import RequestError
from appliance.service.api.structure import Structure
from appliance.service.api.wire import ChatRequest, CompletionRequest, SamplingRequest


@dataclass
class Job:
    """A request that may run."""

    model: ServedModel
    generation: GenerationRequest
    grant: Grant
    prompt_tokens: int
    reader: Reader | None = None  # of the model's format for calls and thoughts; None: all text is content
    older: bool = False  # a call has the form of `functions`


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
        offer, structure, prompt = await _prompt(service, exchange, model, request)
        count = len(prompt.tokens)
        bound = _answer_tokens(service, model, count, request, caller.tenant.context_length)
        grant = account.admit_tokens(round_up(count, service.rounding) + round_up(bound, service.rounding))
    finally:
        exchange.headers.update(account.headers())
    exchange.closing.append(lambda: grant.settle((exchange.prompt_tokens or 0) + (exchange.completion_tokens or 0)))
    exchange.prompt_tokens = round_up(count, service.rounding)
    constraint = await _constraint(service, caller, model, offer, structure, prompt)
    reading = _reading(model, request, prompt)
    generation = GenerationRequest(tuple(prompt.tokens), bound, choosing, request.stops, constraint=constraint,
                                   visible=reading.visible, shift_keep=_shift_keep(model, prompt.tokens))
    return Job(model, generation, grant, count, reading.reader, older=offer.older)


async def encode(service: Service, exchange: Exchange, request: ChatRequest | CompletionRequest, *,
                 told: bool) -> tuple[ServedModel, Prompt]:
    """Take a request whose prompt alone is wanted through the steps that concern it. RequestError,
    also where tokens are `told` and the policy forbids it."""
    caller = exchange.known
    model = service.model_for(caller, request.model)
    exchange.model = model.name
    if told and not model.policy.tokenization:
        raise RequestError("permission_denied", f"the policy does not let tokens of the model {model.name} be told: "
                           "tokenization = false", param="model")
    account = service.accounts.of(caller.key_digest)
    try:
        account.admit_request()
        service.enter(exchange, caller)
        _offer, _structure, prompt = await _prompt(service, exchange, model, request)
    finally:
        exchange.headers.update(account.headers())
    exchange.prompt_tokens = round_up(len(prompt.tokens), service.rounding)
    return model, prompt


async def _prompt(service: Service, exchange: Exchange, model: ServedModel,
                  request: ChatRequest | CompletionRequest) -> tuple[Offer, Structure | None, Prompt]:
    """The form of an answer, and the prompt, whose text is held no longer."""
    offer, structure = _form(model, request)
    given = thinking.variables(_template(model, request), request) if isinstance(request, ChatRequest) else {}
    prompt = await _encoded(service, model, request, offer, given)
    prompts.drop_text(request)
    exchange.forget_text()
    return offer, structure, prompt


def _form(model: ServedModel, request: ChatRequest | CompletionRequest) -> tuple[Offer, Structure | None]:
    """The calls and the structure that a request asks for, where the policy allows them. The offer
    has no more functions: the prompt's maker takes them."""
    offer = request.offer if isinstance(request, ChatRequest) else Offer()
    if offer.functions and not model.policy.tools:
        raise RequestError("unsupported_parameter", f"{offer.param}: the policy allows no tools with this model",
                           param=offer.param)
    structure = request.structure
    if structure is not None and not model.policy.structured_output:
        raise RequestError("unsupported_parameter", f"{structure.param}: the policy allows no structured output with "
                           "this model", param=structure.param)
    return offer, structure


async def _constraint(service: Service, caller: Caller, model: ServedModel, offer: Offer, structure: Structure | None,
                      prompt: Prompt) -> Constraint | None:
    """The compiled constraint of an answer; None where nothing asks for one."""
    wanted = constraints.Wanted(model.running.template, model.tokenizer, model.running.engine.constraints, offer,
                                prompt.tools, structure, prompt.opened)
    if not (wanted.calls or structure):
        return None
    return await service.constraints.ready(caller.name, model.name, wanted)


@dataclass(frozen=True)
class _Reading:
    """How an answer's text is read, and which control tokens its reader must see."""

    reader: Reader | None = None
    visible: frozenset[int] = frozenset()


def _reading(model: ServedModel, request: ChatRequest | CompletionRequest, prompt: Prompt) -> _Reading:
    """The reading of an answer: of all text as content where the request offers no tools and the
    model has no thoughts."""
    template = model.running.template
    if not isinstance(request, ChatRequest) or template is None:
        return _Reading()
    markers = readers.markers_of(template, tools=bool(prompt.tools))
    visible = frozenset(readers.control_of(model.tokenizer, markers).values())
    if not (prompt.tools or markers) or request.reasoning_format == "none":
        return _Reading(None, visible)
    return _Reading(readers.reader_of(template, prompt.tools or None, prompt.opened), visible)


async def _encoded(service: Service, model: ServedModel, request: ChatRequest | CompletionRequest,
                   offer: Offer, given: Mapping[str, object]) -> Prompt:
    most, rules = _most_tokens(service, model), service.rules_for("prompt")
    if not rules and prompts.at_least(request, model.tokenizer) > most:  # what waits for its turn takes memory
        raise _too_long(most)
    length, turns, leaving = prompts.length(request), prompts.take_turns(request, given), prompts.Leaving()
    try:
        return await service.prompts.ready(length, lambda: prompts.encode(
            request, turns, model.running.template, model.tokenizer, rules, most, leaving, offer.path))
    except CapacityError:
        raise _too_long(most) from None
    finally:
        leaving.leave()


def _template(model: ServedModel, request: ChatRequest) -> ChatTemplate:
    """The model's template. RequestError for a model that has none, and for variables that it does
    not read."""
    template = model.running.template
    if template is None:
        raise RequestError("no_chat_template", f"model {model.name} has no chat template, so it takes no chats; it "
                           "continues prompts at /v1/completions", param="model")
    for name in request.variables:
        if not template.takes(name):
            param = f"chat_template_kwargs.{name}"
            raise RequestError("unknown_parameter", f"{param}: the model's chat template takes no such variable",
                               param=param)
    return template


def _most_tokens(service: Service, model: ServedModel) -> int:
    return min(service.policy.limits.prompt_tokens, model.running.context_length - 1)


def _shift_keep(model: ServedModel, tokens: Sequence[int]) -> int | None:
    """First tokens that stay where a full context drops its older half: the one that begins a text.
    None where the answer ends then."""
    return int(tokens[0] == model.tokenizer.bos) if model.policy.context_shift else None


def _too_long(most: int) -> RequestError:
    return RequestError("context_length_exceeded", f"the prompt is too long: at most {most} tokens are allowed")


def _answer_tokens(service: Service, model: ServedModel, prompt: int, request: SamplingRequest,
                   own: int | None) -> int:
    """How many tokens the answer may have; `own`: the tenant's bound on prompt and answer. Counts
    in refusals are the policy's, not the request's."""
    limits, most, bound = service.policy.limits, _most_tokens(service, model), request.token_bound
    most = most if own is None else min(most, own - 1)
    if prompt > most:
        raise _too_long(most)
    if prompt == 0:
        raise RequestError("invalid_value", "the prompt is empty", param="prompt")
    if bound is not None and bound > limits.generation_tokens:
        raise RequestError("generation_length_exceeded", f"{request.bound_name}: at most {limits.generation_tokens} "
                           "are allowed", param=request.bound_name)
    room = limits.generation_tokens if model.policy.context_shift else model.running.context_length - prompt
    return min(bound or limits.generation_tokens, room if own is None else min(room, own - prompt))
